"""Whose a row of vLLM's batch is, by its position alone."""

import pytest

from syrinx_stages.contract.settings import Rows
from syrinx_stages.talker.on_vllm.where import (
    GENERATIONS,
    HEADER,
    MOST_PLACES,
    MOST_SLOTS,
    Handle,
    Handles,
    Run,
    handle_of,
    prompt_tokens,
    runs,
)

CORNERS = [Handle(slot, generation) for slot in (0, 1, 63, 64, MOST_SLOTS) for generation in (0, 1, GENERATIONS - 1)]


@pytest.mark.parametrize("handle", CORNERS, ids=str)
def test_a_prompt_says_its_handle(handle: Handle) -> None:
    tokens = prompt_tokens(handle, 9)
    assert len(tokens) == 9 and max(tokens) < 64
    assert handle_of(tokens) == handle


def test_a_prompt_that_is_too_short_for_its_handle_is_refused() -> None:
    with pytest.raises(ValueError, match="a prompt of 2 positions, 3 are the fewest"):
        prompt_tokens(Handle(1, 0), HEADER - 1)


@pytest.mark.parametrize("tokens", [[], [1, 2], [64, 0, 0], [5, 900, 3]], ids=str)
def test_a_prompt_of_vllms_own_is_nobodys(tokens: list[int]) -> None:
    assert handle_of(tokens) == Handle(0, 0)


def test_every_position_fits_32_bits() -> None:
    assert Handle(MOST_SLOTS, GENERATIONS - 1).base + MOST_PLACES - 1 == (1 << 31) - 1


@pytest.mark.parametrize("handle", CORNERS, ids=str)
def test_positions_say_whose_they_are(handle: Handle) -> None:
    base = handle.base
    assert runs([base, base + 1, base + 2]) == [Run(handle, 0, 3)]
    assert runs([base + MOST_PLACES - 1]) == [Run(handle, MOST_PLACES - 1, 1)]


def test_neighbours_of_a_batch_are_told_apart() -> None:
    one, other = Handle(1, 0), Handle(2, 5)
    positions = [other.base + 7, one.base + 3, one.base + 4, one.base + 9, 0, 0]
    assert runs(positions) == [
        Run(other, 7, 1), Run(one, 3, 2), Run(one, 9, 1), Run(Handle(0, 0), 0, 1), Run(Handle(0, 0), 0, 1)
    ]  # fmt: skip


def test_a_slot_comes_back_under_another_generation_and_last() -> None:
    handles = Handles(2)
    first, second = handles.take(), handles.take()
    assert (first, second, len(handles)) == (Handle(1, 0), Handle(2, 0), 0)
    handles.give_back(second)
    handles.give_back(first)
    assert [handles.take(), handles.take()] == [Handle(2, 1), Handle(1, 1)]
    with pytest.raises(IndexError):
        handles.take()


def test_there_are_handles_for_as_many_requests_as_a_talker_may_hold() -> None:
    most = next(meta.le for meta in Rows.__metadata__ if meta.le)
    assert len(Handles(most)) == most


@pytest.mark.parametrize("count", [0, MOST_SLOTS + 1])
def test_more_requests_than_there_are_handles_for_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"{count} requests at once, {MOST_SLOTS} are the most"):
        Handles(count)
