"""Every metric that Syrinx stages export: name, type, labels and buckets, from `metrics.yaml`.

`runtime.telemetry` creates the prometheus-client objects from it; dashboards, alerts and the tuner use its names.
"""

from pathlib import Path
from typing import Literal

import msgspec

ROW_BUCKETS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 128, 256)


class Metric(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One metric family."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    stages: tuple[Literal["gateway", "talker", "codec"], ...]
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_METRICS = msgspec.yaml.decode(Path(__file__).with_suffix(".yaml").read_bytes(), type=tuple[Metric, ...])
_BY_NAME = {metric.name: metric for metric in _METRICS}
BY_STAGE: dict[str, tuple[Metric, ...]] = {
    stage: tuple(metric for metric in _METRICS if stage in metric.stages) for stage in ("gateway", "talker", "codec")
}
"""The metrics that each stage exports from its start."""

REQUESTS = _BY_NAME["syrinx_requests_total"]
TTFA = _BY_NAME["syrinx_ttfa_seconds"]
FIRST_BYTE = _BY_NAME["syrinx_first_byte_seconds"]
REQUEST_SECONDS = _BY_NAME["syrinx_request_seconds"]
AUDIO_SECONDS = _BY_NAME["syrinx_audio_seconds_total"]
STREAMS_ACCEPTED = _BY_NAME["syrinx_streams_accepted_total"]
STREAM_CHARACTERS = _BY_NAME["syrinx_stream_characters"]
STREAM_ARRIVALS = _BY_NAME["syrinx_stream_arrivals"]
STREAM_OUTCOMES = _BY_NAME["syrinx_stream_outcomes_total"]
SILENT_STREAMS = _BY_NAME["syrinx_silent_streams_total"]
UNDERRUNS = _BY_NAME["syrinx_underruns_total"]
UNDERRUN_SECONDS = _BY_NAME["syrinx_underrun_seconds_total"]
LIVE_STREAMS = _BY_NAME["syrinx_live_streams"]
QUEUE_LENGTH = _BY_NAME["syrinx_queue_length"]
QUEUE_AGE = _BY_NAME["syrinx_queue_oldest_age_seconds"]
EXPECTED_WAIT = _BY_NAME["syrinx_expected_wait_seconds"]
CANARY_FORWARDS = _BY_NAME["syrinx_canary_forwards_total"]
VOICE_REQUESTS = _BY_NAME["syrinx_voice_requests_total"]
VOICE_CHANGES = _BY_NAME["syrinx_voice_changes_total"]
CLIENT_REQUESTS = _BY_NAME["syrinx_client_requests_total"]
CLIENT_AUDIO_SECONDS = _BY_NAME["syrinx_client_audio_seconds_total"]
CLIENT_LIMITED = _BY_NAME["syrinx_client_limited_total"]
UNAUTHORIZED = _BY_NAME["syrinx_unauthorized_requests_total"]
FILE_VALID = _BY_NAME["syrinx_file_valid"]

INFO = _BY_NAME["syrinx_info"]
CLAIM_WAIT = _BY_NAME["syrinx_claim_wait_seconds"]
ROWS_RESIDENT = _BY_NAME["syrinx_rows_resident"]
ROWS_RUNNING = _BY_NAME["syrinx_rows_running"]
MAX_NUM_SEQS = _BY_NAME["syrinx_max_num_seqs"]
SETTINGS_GENERATION = _BY_NAME["syrinx_settings_generation"]
SETTINGS_TEMPORARY = _BY_NAME["syrinx_settings_temporary"]
STEP_SECONDS = _BY_NAME["syrinx_step_seconds"]
PREPARE_SECONDS = _BY_NAME["syrinx_prepare_seconds"]
PREFILL_SECONDS = _BY_NAME["syrinx_prefill_seconds"]
FRAMES = _BY_NAME["syrinx_frames_total"]
TAKEOVERS = _BY_NAME["syrinx_takeovers_total"]
LOST_CLAIMS = _BY_NAME["syrinx_lost_claims_total"]
REQUESTS_FINISHED = _BY_NAME["syrinx_requests_finished_total"]
SEGMENT_FAULTS = _BY_NAME["syrinx_segment_faults_total"]
CODEC_CALLS = _BY_NAME["syrinx_codec_calls_total"]
CODEC_CALL_SECONDS = _BY_NAME["syrinx_codec_call_seconds_total"]
CHUNK_RAMP = _BY_NAME["syrinx_chunk_ramp_frames"]
CAPTURED_SHAPES = _BY_NAME["syrinx_codec_captured_shapes"]
CAPTURE_SECONDS = _BY_NAME["syrinx_codec_capture_seconds"]
CAPTURE_BYTES = _BY_NAME["syrinx_codec_capture_bytes"]

REDIS_SECONDS = _BY_NAME["syrinx_redis_write_seconds"]
REDIS_FULL = _BY_NAME["syrinx_redis_full"]
REDIS_ERRORS = _BY_NAME["syrinx_redis_errors_total"]

TTFA_BUCKETS = TTFA.buckets
"""Seconds. Every TTFA objective that the resource accepts is an edge, so counts need no interpolation."""
