"""The speed of an engine is a linear function that is fitted to its steps. It decides how many streams are admitted."""

import math
from collections.abc import Sequence

import pytest

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.scheduling.speed import (
    HEADROOM,
    KNOWN_SECONDS,
    KNOWN_STEPS,
    TYPICAL_SECONDS,
    EngineSpeed,
    live_demand,
)

FRAME = FAMILY.frame_seconds


def measured(fixed: float, per_row: float, rows: Sequence[int] = (1, 2, 4, 8), steps: int = 1000) -> EngineSpeed:
    """Returns the speed of an engine whose steps took `fixed` seconds and `per_row` for each of `rows` in turn."""
    speed = EngineSpeed()
    speed.max_num_seqs = 8
    for step in range(steps):
        count = rows[step % len(rows)]
        speed.add_step(count, count, fixed + per_row * count)
    return speed


def test_capacity_is_that_of_steps_with_as_many_rows_as_allowed() -> None:
    speed = measured(0.012, 0.001)
    assert speed.capacity == pytest.approx(8 * FRAME / 0.020, rel=0.02)
    speed.max_num_seqs = 16
    assert speed.capacity == pytest.approx(16 * FRAME / 0.028, rel=0.02)


def test_a_few_small_steps_show_the_capacity_of_large_ones() -> None:
    assert measured(0.029, 0.0005, rows=(1, 2), steps=20).capacity == pytest.approx(8 * FRAME / 0.033, rel=0.1)
    assert measured(0.0, 0.0055, rows=(2, 4), steps=30).capacity == pytest.approx(FRAME / 0.0055, rel=0.1)


def test_a_stream_alone_does_not_show_how_much_its_neighbors_would_cost() -> None:
    alone = measured(0.029, 0.001, rows=(1,))
    assert FRAME / 0.030 < alone.capacity < 8 * FRAME / 0.030
    assert alone.spare_requests([1.0]) >= 2, "a listener does not keep others out"


def test_capacity_follows_a_slower_engine() -> None:
    speed = measured(0.012, 0.001)
    for step in range(2000):
        rows = (1, 2, 4, 8)[step % 4]
        speed.add_step(rows, rows, 2 * (0.012 + 0.001 * rows))
    assert speed.capacity == pytest.approx(8 * FRAME / 0.040, rel=0.02)


def test_the_first_steps_of_a_process_set_no_limit() -> None:
    speed = measured(KNOWN_SECONDS / 2, 0.0, steps=1)
    assert math.isinf(speed.capacity) and speed.real_time
    assert speed.requests_per_second == 0.0
    assert speed.spare_requests([HEADROOM] * 5) == 8
    assert not math.isinf(measured(0.001, 0.0, steps=KNOWN_STEPS + 1).capacity), "many short steps are enough"


def test_a_decoder_call_has_several_frames_of_each_row() -> None:
    speed = EngineSpeed()
    speed.max_num_seqs = 8
    for frames in (2, 4, 8, 12) * 100:
        speed.add_step(1, frames, 0.002 + 0.005 * frames)
    assert speed.capacity == pytest.approx(FRAME / 0.005, rel=0.05)
    assert speed.seconds_per_frame == pytest.approx(0.002 / 6.5 + 0.005, rel=0.02)


def test_a_full_step_may_have_fewer_frames_than_all_rows() -> None:
    speed = measured(0.012, 0.005)
    speed.full_step_frames = 12
    assert speed.capacity == pytest.approx(12 * FRAME / (0.012 + 12 * 0.005), rel=0.02)


def test_the_request_rate_follows_the_length_of_requests() -> None:
    speed = measured(0.012, 0.001)
    assert speed.requests_per_second == pytest.approx(speed.capacity / TYPICAL_SECONDS)
    for _ in range(200):
        speed.add_request(frames=round(8.0 / FRAME))
    assert speed.requests_per_second == pytest.approx(speed.capacity / 8.0, rel=0.01)


def test_streams_are_admitted_while_each_can_build_up_a_lead() -> None:
    speed = measured(0.01555, 0.001)  # 27 seconds of audio per second, of which streams may need 25.
    assert speed.spare_requests([]) == pytest.approx(12.5, abs=0.1)
    assert speed.spare_requests([HEADROOM] * 10) == pytest.approx(2.5, abs=0.1)
    assert speed.spare_requests([HEADROOM] * 12) == pytest.approx(0.5, abs=0.1), "soon there is room for one more"
    assert speed.spare_requests([HEADROOM] * 14) == pytest.approx(-1.5, abs=0.1), "as many must first end"
    assert speed.spare_requests([1.0] * 20) == pytest.approx(2.5, abs=0.1), "a comfortable lead: only real time"


def test_one_stream_is_always_possible() -> None:
    busy = measured(0.0, 0.07)
    assert busy.real_time
    assert busy.spare_requests([]) == 1
    assert busy.spare_requests([HEADROOM]) < 1


def test_streams_share_the_batch_if_one_alone_is_slower_than_real_time() -> None:
    slow = measured(0.1, 0.001)
    assert not slow.real_time
    assert [slow.spare_requests([HEADROOM] * count) for count in (0, 4, 8)] == [8, 4, 0]


def test_demand_depends_on_the_lead() -> None:
    assert live_demand(-1.0) == live_demand(1.0) == HEADROOM
    assert live_demand(2.0) == 1.0
