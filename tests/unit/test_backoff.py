"""Delays between the restarts of a local process."""

from syrinx_operator.local.backoff import Backoff


def delays(*exits: tuple[int, float], alone: bool = False) -> list[float]:
    """The delay after each exit: (code, seconds ready)."""
    backoff = Backoff()
    return [backoff.delay(code, seconds, alone=alone) for code, seconds in exits]


def test_crashes_in_a_row_back_off():
    assert delays(*[(1, 0.5)] * 8) == [0, 1, 2, 4, 8, 16, 30, 30]
    assert delays(*[(-9, 0.0)] * 2000)[-1] == 30


def test_a_clean_exit_restarts_at_once_and_resets():
    assert delays((0, 0.5), (0, 0.0), (0, 0.5)) == [0, 0, 0]
    assert delays((1, 0.5), (1, 0.5), (0, 0.5), (1, 0.5), (1, 0.5)) == [0, 1, 0, 0, 1]


def test_a_process_that_was_ready_for_long_resets():
    assert delays((-9, 0.5), (-9, 0.5), (-9, 0.5), (-9, 10.0), (-9, 9.9)) == [0, 1, 2, 0, 1]


def test_the_only_replica_of_a_stage_does_not_wait_long():
    assert delays(*[(-9, 0.5)] * 8, alone=True) == [0, 1, 1, 1, 1, 1, 1, 1]
