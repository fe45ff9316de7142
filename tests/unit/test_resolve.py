"""What a stage gets whose sizes the resource leaves open."""

from typing import Any

import pytest

from support.resolved import resolved
from syrinx_operator.resource.checks.rules import violations
from syrinx_operator.resource.fields.pods import Resources
from syrinx_operator.resource.fields.tuning import RowBounds, TuningBounds, TuningSpec
from syrinx_operator.resource.resolve import ResolvedPipeline, capture_grid
from syrinx_operator.resource.spec import CaptureShape, CodecSpec, TalkerSpec
from syrinx_stages.contract.settings import CodecSettings, TalkerSettings

GPU = Resources(limits={"nvidia.com/gpu": 1})


def valid(**fields: Any) -> ResolvedPipeline:
    pipeline = resolved(**fields)
    assert violations(pipeline.resource) == []
    return pipeline


def test_a_cpu_has_the_defaults_of_the_stages() -> None:
    found = valid()
    assert (found.talker.settings, found.codec.settings) == (TalkerSettings(), CodecSettings())
    assert (found.talker.max_resident, found.codec.max_resident) == (32, 32)


@pytest.mark.parametrize("fields", [{"device": "cuda"}, {"resources": GPU}])
def test_a_gpu_has_the_best_sizes_of_a_large_one(fields: dict[str, Any]) -> None:
    found = valid(talker=TalkerSpec(**fields), codec=CodecSpec(**fields))
    assert found.talker.settings.max_num_seqs == 256
    assert (found.talker.max_resident, found.codec.max_resident) == (1024, 1024)
    codec = found.codec.settings
    assert (codec.max_num_seqs, codec.chunk_ramp) == (32, (2, 2, 4, 8, 12))
    assert codec.capture_pairs == tuple((rows, frames) for rows in (1, 2, 4, 8, 16, 32) for frames in (2, 4, 8, 12))


def test_what_is_stated_decides_what_is_left_open() -> None:
    found = valid(
        talker=TalkerSpec(device="cuda", max_resident=16),
        codec=CodecSpec(device="cuda", capture_pairs=(CaptureShape(rows=2000 // 2, frames=2),), max_num_seqs=4),
    )
    assert found.talker.settings.max_num_seqs == 16
    assert found.codec.settings.capture_pairs == ((1000, 2),)
    many = valid(talker=TalkerSpec(max_num_seqs=64), codec=CodecSpec(max_num_seqs=8, chunk_ramp=(4,)))
    assert many.talker.max_resident == 64
    assert many.codec.settings == CodecSettings(chunk_ramp=(4,))


def test_the_start_of_tuning_is_within_its_bounds() -> None:
    bounds = TuningBounds(talker_max_num_seqs=RowBounds(max=16), codec_max_num_seqs=RowBounds(min=48))
    found = valid(talker=TalkerSpec(device="cuda"), codec=CodecSpec(device="cuda"), tuning=TuningSpec(bounds=bounds))
    assert (found.talker.settings.max_num_seqs, found.codec.settings.max_num_seqs) == (16, 48)


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
