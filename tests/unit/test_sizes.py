"""What a stage gets whose sizes the resource leaves open."""

from typing import Any

import pytest

from syrinx_operator.resource.pods import Resources
from syrinx_operator.resource.rules import violations
from syrinx_operator.resource.sizes import (
    capture_grid,
    codec_resident,
    codec_settings,
    talker_resident,
    talker_settings,
)
from syrinx_operator.resource.spec import CaptureShape, CodecSpec, PipelineSpec, TalkerSpec, TTSPipeline
from syrinx_operator.resource.spec import Metadata as Name
from syrinx_operator.resource.tuning import RowBounds, TuningBounds, TuningSpec
from syrinx_stages.contract.settings import CodecSettings, TalkerSettings

GPU = Resources(limits={"nvidia.com/gpu": 1})


def spec_of(**fields: Any) -> PipelineSpec:
    spec = PipelineSpec(**fields)
    pipeline = TTSPipeline(api_version="syrinx.dev/v1beta1", kind="TTSPipeline", metadata=Name(name="demo"), spec=spec)
    assert violations(pipeline) == []
    return spec


def test_a_cpu_has_the_defaults_of_the_stages() -> None:
    spec = spec_of()
    assert (talker_settings(spec), codec_settings(spec)) == (TalkerSettings(), CodecSettings())
    assert (talker_resident(spec), codec_resident(spec)) == (32, 32)


@pytest.mark.parametrize("fields", [{"device": "cuda"}, {"resources": GPU}])
def test_a_gpu_has_the_best_sizes_of_a_large_one(fields: dict[str, Any]) -> None:
    spec = spec_of(talker=TalkerSpec(**fields), codec=CodecSpec(**fields))
    assert talker_settings(spec).max_num_seqs == 256
    assert (talker_resident(spec), codec_resident(spec)) == (1024, 1024)
    codec = codec_settings(spec)
    assert (codec.max_num_seqs, codec.chunk_ramp) == (32, (2, 2, 4, 8, 12))
    assert codec.capture_pairs == tuple((rows, frames) for rows in (1, 2, 4, 8, 16, 32) for frames in (2, 4, 8, 12))


def test_what_is_stated_decides_what_is_left_open() -> None:
    spec = spec_of(
        talker=TalkerSpec(device="cuda", max_resident=16),
        codec=CodecSpec(device="cuda", capture_pairs=(CaptureShape(rows=2000 // 2, frames=2),), max_num_seqs=4),
    )
    assert talker_settings(spec).max_num_seqs == 16
    assert codec_settings(spec).capture_pairs == ((1000, 2),)
    many = spec_of(talker=TalkerSpec(max_num_seqs=64), codec=CodecSpec(max_num_seqs=8, chunk_ramp=(4,)))
    assert talker_resident(many) == 64
    assert codec_settings(many) == CodecSettings(chunk_ramp=(4,))


def test_the_start_of_tuning_is_within_its_bounds() -> None:
    bounds = TuningBounds(talker_max_num_seqs=RowBounds(max=16), codec_max_num_seqs=RowBounds(min=48))
    spec = spec_of(talker=TalkerSpec(device="cuda"), codec=CodecSpec(device="cuda"), tuning=TuningSpec(bounds=bounds))
    assert (talker_settings(spec).max_num_seqs, codec_settings(spec).max_num_seqs) == (16, 48)


def test_a_colocated_codec_serves_all_requests_of_its_talker() -> None:
    talker = TalkerSpec(resources=GPU, max_resident=512)
    assert codec_resident(spec_of(topology="Colocated", talker=talker)) == 1024
    assert codec_settings(spec_of(topology="Colocated", talker=talker)).max_num_seqs == 32
    fewer = spec_of(topology="Colocated", talker=TalkerSpec(resources=GPU), codec=CodecSpec(max_resident=64))
    assert (talker_resident(fewer), codec_resident(fewer)) == (64, 64)


@pytest.mark.parametrize(
    ("rows", "ramp", "limit", "counts"),
    [
        (32, (2, 2, 4, 8, 12), 32, [1, 2, 4, 8, 16, 32]),
        (32, (2, 2, 4, 8, 12), 12, [1, 8, 32]),
        (32, (2, 2, 4, 8, 12), 5, [32]),
        (32, (2, 2, 4, 8, 12), 3, []),
        (24, (2, 4), 64, [1, 2, 4, 8, 16, 24]),
        (1, (2, 4), 64, [1]),
    ],
)
def test_captured_shapes_are_evenly_spaced_within_their_limit(
    rows: int, ramp: tuple[int, ...], limit: int, counts: list[int]
) -> None:
    grid = capture_grid(rows, ramp, limit)
    assert grid == tuple((count, frames) for count in counts for frames in sorted(set(ramp)))
    assert len(grid) <= limit
