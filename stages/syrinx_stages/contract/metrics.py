"""Every metric that Syrinx stages export: name, type, labels and buckets.

`runtime.metrics` creates the prometheus-client objects from this list; dashboards, alerts and the tuner use its names.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

TTFA_BUCKETS = (0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds. Every TTFA objective that the resource accepts is an edge, so counts need no interpolation."""
STEP_BUCKETS = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)
HOP_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)
DURATION_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
ROW_BUCKETS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 128, 256)

REPLICA_LABELS = ("task_type", "talker", "codec")
"""Labels that identify the replicas of a request: the tuner compares the arms of a trial by them."""


class Metric(Struct, frozen=True):
    """One metric family. The name of a counter ends in `_total`, as it is exported."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _counter(name: str, help: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(name, "counter", help, labels)


def _gauge(name: str, help: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(name, "gauge", help, labels)


def _histogram(name: str, help: str, labels: tuple[str, ...], buckets: tuple[float, ...]) -> Metric:
    return Metric(name, "histogram", help, labels, buckets)


# Gateway ------------------------------------------------------------------------------------------------------
REQUESTS = _counter(
    "syrinx_requests_total",
    "Completed speech requests by outcome: stop, length, cancelled, error or refused.",
    ("task_type", "outcome"),
)
TTFA = _histogram(
    "syrinx_ttfa_seconds",
    "Time from accepting a request to sending its first audible sample (time to first audio).",
    REPLICA_LABELS,
    TTFA_BUCKETS,
)
FIRST_BYTE = _histogram(
    "syrinx_first_byte_seconds",
    "Time from accepting a request to sending its first byte of audio, audible or not.",
    REPLICA_LABELS,
    TTFA_BUCKETS,
)
REQUEST_SECONDS = _histogram(
    "syrinx_request_seconds",
    "Time from accepting a request to sending its last byte of audio.",
    REPLICA_LABELS,
    DURATION_BUCKETS,
)
AUDIO_SECONDS = _counter("syrinx_audio_seconds_total", "Seconds of audio sent to clients.", REPLICA_LABELS)
UNDERRUNS = _counter(
    "syrinx_underruns_total",
    "Live streams whose playback stalled at least once. Counted when the stall starts.",
    REPLICA_LABELS,
)
UNDERRUN_SECONDS = _counter(
    "syrinx_underrun_seconds_total", "Seconds that the playback of live streams stalled.", REPLICA_LABELS
)
LIVE_STREAMS = _gauge("syrinx_live_streams", "Live streams that are being delivered.")
QUEUE_LENGTH = _gauge("syrinx_queue_length", "Requests that no talker has claimed.")
QUEUE_AGE = _gauge(
    "syrinx_queue_oldest_age_seconds", "Age of the oldest request that no talker has claimed; 0 if the queue is empty."
)

# Talker and codec ---------------------------------------------------------------------------------------------
INFO = _gauge(
    "syrinx_info",
    "Constant 1, labeled with the Syrinx version and the torch device. Set when the device is opened.",
    ("version", "device"),
)
CLAIM_WAIT = _histogram(
    "syrinx_claim_wait_seconds", "Time from accepting a request to its claim by this stage.", ("stage",), TTFA_BUCKETS
)
ROWS_RESIDENT = _gauge("syrinx_rows_resident", "Requests that hold state in this replica.", ("stage",))
ROWS_RUNNING = _gauge("syrinx_rows_running", "Rows in the last step.", ("stage",))
MAX_NUM_SEQS = _gauge("syrinx_max_num_seqs", "Maximum number of rows per step, as currently set.", ("stage",))
SETTINGS_GENERATION = _gauge("syrinx_settings_generation", "Generation of the base settings.", ("stage",))
SETTINGS_TEMPORARY = _gauge(
    "syrinx_settings_temporary", "1 while temporary settings override the base settings, else 0.", ("stage",)
)
STEP_SECONDS = _histogram(
    "syrinx_step_seconds",
    "Time the engine was busy with one step, by the number of rows rounded up to a bucket.",
    ("stage", "rows"),
    STEP_BUCKETS,
)
PREFILL_SECONDS = _histogram(
    "syrinx_prefill_seconds",
    "Wall time of one prefill. On a GPU a prefill is only queued in this time; its computation counts toward the next "
    "step.",
    ("stage",),
    STEP_BUCKETS,
)
FRAMES = _counter("syrinx_frames_total", "Frames generated (talker) or decoded (codec).", ("stage",))
TAKEOVERS = _counter("syrinx_takeovers_total", "Requests taken over from a replica whose lease expired.", ("stage",))
LOST_CLAIMS = _counter(
    "syrinx_lost_claims_total", "Requests evicted because another replica has taken them over.", ("stage",)
)
REQUESTS_FINISHED = _counter(
    "syrinx_requests_finished_total",
    "Requests finished by this replica, by reason: stop, length, cancelled, error (this replica failed), invalid (the "
    "request cannot be served) or upstream (codec only: the talker failed).",
    ("stage", "reason"),
)
CODEC_CALLS = _counter(
    "syrinx_codec_calls_total",
    "Decoder calls by requested shape. The result is hit (shape was captured), padded (to a captured shape) or eager.",
    ("rows", "frames", "result"),
)
CODEC_CALL_SECONDS = _counter(
    "syrinx_codec_call_seconds_total",
    "Wall time of decoder calls by requested shape and result. Divide by syrinx_codec_calls_total for the mean.",
    ("rows", "frames", "result"),
)
CHUNK_RAMP = _gauge(
    "syrinx_chunk_ramp_frames",
    "Frames in a stream's first (position 0), second, ... chunk, as currently set. The last one repeats.",
    ("position",),
)
CAPTURED_SHAPES = _gauge("syrinx_codec_captured_shapes", "Captured shapes of decoder calls that are ready for use.")
CAPTURE_SECONDS = _gauge(
    "syrinx_codec_capture_seconds", "Wall time of the last capture of a decoder shape.", ("rows", "frames")
)
CAPTURE_BYTES = _gauge(
    "syrinx_codec_capture_bytes",
    "Device memory used by calls of a captured shape. All shapes share one allocation, so the sum is an upper bound.",
    ("rows", "frames"),
)
PADDED_FRAMES = _counter("syrinx_codec_padded_frames_total", "Frames computed only as padding to a captured shape.")

# Connector ----------------------------------------------------------------------------------------------------
REDIS_SECONDS = _histogram(
    "syrinx_redis_write_seconds", "Round-trip time of one batched write.", ("stage",), HOP_BUCKETS
)
REDIS_ERRORS = _counter("syrinx_redis_errors_total", "Redis commands that failed and were retried.", ("stage",))

_EVERY_STAGE = (SETTINGS_GENERATION, SETTINGS_TEMPORARY, REDIS_SECONDS, REDIS_ERRORS)
_WORKER = (
    *(INFO, CLAIM_WAIT, ROWS_RESIDENT, ROWS_RUNNING, MAX_NUM_SEQS, STEP_SECONDS, FRAMES, TAKEOVERS),
    *(LOST_CLAIMS, REQUESTS_FINISHED),
)
_GATEWAY = (
    *(REQUESTS, TTFA, FIRST_BYTE, REQUEST_SECONDS, AUDIO_SECONDS, UNDERRUNS, UNDERRUN_SECONDS, LIVE_STREAMS),
    *(QUEUE_LENGTH, QUEUE_AGE),
)
_CODEC = (CODEC_CALLS, CODEC_CALL_SECONDS, PADDED_FRAMES, CHUNK_RAMP, CAPTURED_SHAPES, CAPTURE_SECONDS, CAPTURE_BYTES)

BY_STAGE: dict[str, tuple[Metric, ...]] = {
    "gateway": _GATEWAY + _EVERY_STAGE,
    "talker": (*_WORKER, PREFILL_SECONDS, *_EVERY_STAGE),
    "codec": (*_WORKER, *_CODEC, *_EVERY_STAGE),
}
"""The metrics that each stage exports from its start."""
