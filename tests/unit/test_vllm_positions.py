"""The position of a row in vLLM's batch encodes its request."""

import pytest

from syrinx_stages.talker_vllm.positions import (
    GENERATIONS,
    MAX_OFFSETS,
    MAX_SLOTS,
    MIN_PROMPT_TOKENS,
    Handle,
    HandlePool,
    RowRange,
    handle_of,
    prompt_tokens,
    row_ranges,
)

CORNERS = [Handle(slot, generation) for slot in (0, 1, 63, 64, MAX_SLOTS) for generation in (0, 1, GENERATIONS - 1)]


@pytest.mark.parametrize("handle", CORNERS, ids=str)
def test_a_prompt_and_positions_encode_their_handle(handle: Handle) -> None:
    tokens = prompt_tokens(handle, 9)
    assert len(tokens) == 9 and max(tokens) < 64
    assert handle_of(tokens) == handle
    base = handle.base
    assert row_ranges([base, base + 1, base + 2]) == [RowRange(handle, 0, 3)]
    assert row_ranges([base + MAX_OFFSETS - 1]) == [RowRange(handle, MAX_OFFSETS - 1, 1)]
    with pytest.raises(ValueError, match="a prompt has at least 3 positions, not 2"):
        prompt_tokens(handle, MIN_PROMPT_TOKENS - 1)


@pytest.mark.parametrize("tokens", [[], [1, 2], [64, 0, 0], [5, 900, 3]], ids=str)
def test_vllms_own_prompts_are_unassigned(tokens: list[int]) -> None:
    assert handle_of(tokens) == Handle(0, 0)


def test_adjacent_requests_of_a_batch_are_separated() -> None:
    one, other = Handle(1, 0), Handle(2, 5)
    positions = [other.base + 7, one.base + 3, one.base + 4, one.base + 9, 0, 0]
    assert row_ranges(positions) == [
        RowRange(other, 7, 1), RowRange(one, 3, 2), RowRange(one, 9, 1),
        RowRange(Handle(0, 0), 0, 1), RowRange(Handle(0, 0), 0, 1),
    ]  # fmt: skip


def test_a_freed_slot_is_reused_last_with_another_generation() -> None:
    handles = HandlePool(2)
    first, second = handles.allocate(), handles.allocate()
    assert (first, second, len(handles)) == (Handle(1, 0), Handle(2, 0), 0)
    handles.free(second)
    handles.free(first)
    assert [handles.allocate(), handles.allocate()] == [Handle(2, 1), Handle(1, 1)]
    with pytest.raises(IndexError):
        handles.allocate()


@pytest.mark.parametrize("count", [0, MAX_SLOTS + 1])
def test_a_pool_of_invalid_size_is_rejected(count: int) -> None:
    with pytest.raises(ValueError, match=f"1 to {MAX_SLOTS} resident requests, not {count}"):
        HandlePool(count)
