"""Every metric Syrinx exports: name, kind, labels and buckets. Dashboards, rules and the tuner read this list.

`runtime.metrics` turns the entries into prometheus-client objects. Counters carry `_total` as exported.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

TTFA_BUCKETS = (0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds; an edge at every TTFA objective the resource accepts, so that counts need no interpolation."""
STEP_BUCKETS = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)
HOP_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)
DURATION_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
ROW_BUCKETS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 128, 256)


class Metric(Struct, frozen=True):
    """One metric family."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


# Gateway ------------------------------------------------------------------------------------------------------
REPLICA_LABELS = ("task_type", "talker", "codec")
"""Which replicas served a request: the arms of a trial."""

REQUESTS = Metric(
    "syrinx_requests_total",
    "counter",
    "Speech requests ended, by outcome (stop, length, cancelled, error, refused).",
    ("task_type", "outcome"),
)
TTFA = Metric(
    "syrinx_ttfa_seconds",
    "histogram",
    "Request accepted to first audible sample handed to the client.",
    REPLICA_LABELS,
    TTFA_BUCKETS,
)
FIRST_BYTE = Metric(
    "syrinx_first_byte_seconds",
    "histogram",
    "Request accepted to first audio byte handed to the client, audible or not.",
    REPLICA_LABELS,
    TTFA_BUCKETS,
)
REQUEST_SECONDS = Metric(
    "syrinx_request_seconds", "histogram", "Request accepted to last byte.", REPLICA_LABELS, DURATION_BUCKETS
)
AUDIO_SECONDS = Metric("syrinx_audio_seconds_total", "counter", "Seconds of audio handed to clients.", REPLICA_LABELS)
UNDERRUNS = Metric(
    "syrinx_underruns_total",
    "counter",
    "Live streams whose playback would have waited at least once, counted while it waits.",
    REPLICA_LABELS,
)
UNDERRUN_SECONDS = Metric(
    "syrinx_underrun_seconds_total",
    "counter",
    "Seconds that playback of live streams would have waited.",
    REPLICA_LABELS,
)
LIVE_STREAMS = Metric("syrinx_live_streams", "gauge", "Streams being listened to now.")
QUEUE_LENGTH = Metric("syrinx_queue_length", "gauge", "Requests that no talker has claimed.")
QUEUE_AGE = Metric(
    "syrinx_queue_oldest_seconds",
    "gauge",
    "Age of the oldest request that no talker has claimed; 0 when none waits.",
)

# Talker and codec ---------------------------------------------------------------------------------------------
INFO = Metric(
    "syrinx_info",
    "gauge",
    "1, with the version of Syrinx and the device as torch calls it: known once the device is open.",
    ("version", "device"),
)
CLAIM_WAIT = Metric(
    "syrinx_claim_wait_seconds",
    "histogram",
    "Request accepted to claimed by this stage.",
    ("stage",),
    TTFA_BUCKETS,
)
ROWS_RESIDENT = Metric("syrinx_rows_resident", "gauge", "Requests that hold state here.", ("stage",))
ROWS_RUNNING = Metric("syrinx_rows_running", "gauge", "Rows of the last step.", ("stage",))
MAX_NUM_SEQS = Metric("syrinx_max_num_seqs", "gauge", "Rows per step at most, as set now.", ("stage",))
SETTINGS_GENERATION = Metric(
    "syrinx_settings_generation",
    "gauge",
    "Generation of the base settings.",
    ("stage",),
)
SETTINGS_LIMITED = Metric(
    "syrinx_settings_limited", "gauge", "1 while settings for a limited time are in force, else 0.", ("stage",)
)
STEP_SECONDS = Metric(
    "syrinx_step_seconds",
    "histogram",
    "Time that the engine was busy with one step, by its rows (rounded up to a bucket).",
    ("stage", "rows"),
    STEP_BUCKETS,
)
PREFILL_SECONDS = Metric(
    "syrinx_prefill_seconds",
    "histogram",
    "Wall time of one prefill: with the steps, all that keeps the engine busy. A GPU's is only queued then; its time "
    "is the next step's.",
    ("stage",),
    STEP_BUCKETS,
)
FRAMES = Metric("syrinx_frames_total", "counter", "Frames made.", ("stage",))
TAKEOVERS = Metric(
    "syrinx_takeovers_total", "counter", "Requests taken over from a replica that fell silent.", ("stage",)
)
LOST = Metric(
    "syrinx_lost_rows_total",
    "counter",
    "Rows dropped because another replica owns the request now.",
    ("stage",),
)
ENDS = Metric(
    "syrinx_ends_total",
    "counter",
    "Requests ended by this replica, by reason: stop, length, cancelled, error (it failed), invalid (the request "
    "cannot be served), upstream (at a codec: the talker failed).",
    ("stage", "reason"),
)
CODEC_CALLS = Metric(
    "syrinx_codec_calls_total",
    "counter",
    "Decoder calls by wanted shape; result is hit (captured as is), padded (to a captured shape) or eager.",
    ("rows", "frames", "result"),
)
CODEC_CALL_SECONDS = Metric(
    "syrinx_codec_call_seconds_total",
    "counter",
    "Wall time of decoder calls by wanted shape and result: by syrinx_codec_calls_total, what one costs.",
    ("rows", "frames", "result"),
)
CHUNK_RAMP = Metric(
    "syrinx_chunk_ramp_frames",
    "gauge",
    "Frames of a stream's first (position 0), second, ... chunk, as set now; the last one repeats.",
    ("position",),
)
CAPTURE_PAIRS = Metric("syrinx_capture_pairs", "gauge", "Shapes of decoder calls that are ready.")
CAPTURE_SECONDS = Metric(
    "syrinx_codec_capture_seconds",
    "gauge",
    "Wall time that it took to capture a shape of decoder calls, when it was captured last.",
    ("rows", "frames"),
)
CAPTURE_BYTES = Metric(
    "syrinx_codec_capture_bytes",
    "gauge",
    "Device memory that calls of a captured shape work in. All shapes share the largest's, so their sum is a bound.",
    ("rows", "frames"),
)
PADDED_FRAMES = Metric("syrinx_codec_padded_frames_total", "counter", "Frames computed only to fill a captured shape.")

# Connector ----------------------------------------------------------------------------------------------------
REDIS_SECONDS = Metric(
    "syrinx_redis_write_seconds", "histogram", "Round trip of one pipelined write.", ("stage",), HOP_BUCKETS
)
REDIS_ERRORS = Metric(
    "syrinx_redis_errors_total", "counter", "Redis commands that failed and were tried again.", ("stage",)
)

_GATEWAY = (
    REQUESTS,
    TTFA,
    FIRST_BYTE,
    REQUEST_SECONDS,
    AUDIO_SECONDS,
    UNDERRUNS,
    UNDERRUN_SECONDS,
    LIVE_STREAMS,
    QUEUE_LENGTH,
    QUEUE_AGE,
)
_EVERY_STAGE = (SETTINGS_GENERATION, SETTINGS_LIMITED, REDIS_SECONDS, REDIS_ERRORS)
_WORKER = (INFO, CLAIM_WAIT, ROWS_RESIDENT, ROWS_RUNNING, MAX_NUM_SEQS, STEP_SECONDS, FRAMES, TAKEOVERS, LOST, ENDS)
_CODEC = (
    CODEC_CALLS,
    CODEC_CALL_SECONDS,
    PADDED_FRAMES,
    CHUNK_RAMP,
    CAPTURE_PAIRS,
    CAPTURE_SECONDS,
    CAPTURE_BYTES,
)

BY_STAGE: dict[str, tuple[Metric, ...]] = {
    "gateway": _GATEWAY + _EVERY_STAGE,
    "talker": (*_WORKER, PREFILL_SECONDS, *_EVERY_STAGE),
    "codec": (*_WORKER, *_CODEC, *_EVERY_STAGE),
}
"""What each stage's `/metrics` has, from its start."""
