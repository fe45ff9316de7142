"""How many requests a talker claims."""

import math

import pytest

from syrinx_stages.scheduling.admission import COLD_REQUESTS, spare_requests
from syrinx_stages.scheduling.speed import EngineSpeed


def measured(max_num_seqs: int = 8, step_seconds: float = 0.01) -> EngineSpeed:
    """A speed at which the engine generates in real time."""
    speed = EngineSpeed()
    speed.max_num_seqs = max_num_seqs
    for _ in range(100):
        speed.add_step(max_num_seqs, max_num_seqs, step_seconds)
    return speed


def test_a_talker_claims_what_it_can_generate_in_time() -> None:
    assert spare_requests(measured(), [1.0], claimed=1, is_late=False) >= 1


def test_a_talker_claims_nothing_while_a_stream_is_late() -> None:
    assert spare_requests(measured(), [1.0], claimed=1, is_late=True) == 0


def test_a_late_stream_does_not_turn_a_lack_into_room() -> None:
    demands = [1.0] * 1000
    spare = spare_requests(measured(), demands, claimed=1000, is_late=False)
    assert spare_requests(measured(), demands, claimed=1000, is_late=True) == spare < 0


@pytest.mark.parametrize("claimed", range(COLD_REQUESTS + 2))
def test_a_talker_of_unknown_speed_claims_few(claimed: int) -> None:
    speed = EngineSpeed()
    speed.max_num_seqs = 8
    assert math.isinf(speed.capacity)
    expected = max(COLD_REQUESTS - claimed, 0)
    assert spare_requests(speed, [1.0] * claimed, claimed, is_late=False) == expected
