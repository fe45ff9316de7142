"""An engine's speed is measured in full steps and in steps of one row, and decides how many streams it can serve."""

import math

import pytest

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.runtime.speed import HEADROOM, TYPICAL_SECONDS, EngineSpeed, live_demand

FRAME = FAMILY.frame_seconds


def measured(rows: int, step: float, steps: int = 1000, full: bool = True) -> EngineSpeed:
    """Returns the speed of an engine whose steps took `step` seconds for a frame of each row."""
    speed = EngineSpeed()
    for _ in range(steps):
        speed.add_step(rows, rows, step, full)
    return speed


def test_capacity_is_the_audio_of_full_steps_per_busy_second() -> None:
    speed = measured(8, 0.02)
    assert speed.capacity == pytest.approx(8 * FRAME / 0.02)
    for _ in range(1000):
        speed.add_step(2, 2, 0.01, full=False)
    assert speed.capacity == pytest.approx(8 * FRAME / 0.02), "steps that are not full do not show it"


def test_capacity_follows_a_slower_engine() -> None:
    speed = measured(8, 0.02)
    for _ in range(1000):
        speed.add_step(8, 8, 0.04, full=True)
    assert speed.capacity == pytest.approx(8 * FRAME / 0.04, rel=0.01)


def test_an_engine_that_was_never_full_has_no_known_limit() -> None:
    speed = measured(2, 0.01, full=False)
    assert math.isinf(speed.capacity)
    assert speed.requests_per_second == 0.0
    assert speed.spare_requests([HEADROOM] * 5, 8) == 8


def test_the_request_rate_follows_the_length_of_requests() -> None:
    speed = measured(8, 0.02)
    assert speed.requests_per_second == pytest.approx(speed.capacity / TYPICAL_SECONDS)
    for _ in range(200):
        speed.add_request(frames=round(8.0 / FRAME))
    assert speed.requests_per_second == pytest.approx(speed.capacity / 8.0, rel=0.01)


def test_streams_are_admitted_while_each_can_build_up_a_lead() -> None:
    speed = measured(8, 0.0256)  # 25 seconds of audio per second.
    assert speed.spare_requests([], 8) == 12
    assert speed.spare_requests([HEADROOM] * 10, 8) == 2
    assert speed.spare_requests([HEADROOM] * 12, 8) == 0
    assert speed.spare_requests([1.0] * 20, 8) == 2, "streams with a comfortable lead need only real time"


def test_one_stream_is_always_possible() -> None:
    assert measured(1, 0.07).spare_requests([], 8) == 1
    assert measured(1, 0.07).spare_requests([HEADROOM], 8) == 0


def test_streams_share_the_batch_if_one_alone_is_slower_than_real_time() -> None:
    slow = measured(1, 0.1)
    assert not slow.real_time
    assert [slow.spare_requests([HEADROOM] * count, 8) for count in (0, 4, 8)] == [8, 4, 0]


def test_only_steps_of_one_row_show_that_an_engine_is_slower_than_real_time() -> None:
    assert measured(8, 0.1).real_time


def test_demand_depends_on_the_lead() -> None:
    assert live_demand(-1.0) == live_demand(1.0) == HEADROOM
    assert live_demand(2.0) == 1.0
