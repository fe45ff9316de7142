"""Inputs and sampled codes of the talker's requests by slot, for vLLM's layers, which know only a row's position.

A position encodes `generation << 27 | slot << 16 | offset` (see `talker_vllm.positions`), where `offset` is the
position within the request. A row is unassigned if its slot is 0 or its generation differs from the slot's.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import launch
from .metadata import FRAME, SLOT


@triton.jit
def _decode_position(positions, row, generations, prompt_lengths, SLOTS: tl.constexpr):
    """Returns a row's slot (0 if unassigned), its offset, and the frame after it: below 0 within the prompt."""
    position = tl.load(positions + row)
    slot = ((position >> 16) & 2047).to(tl.int32)
    offset = (position & 65535).to(tl.int32)
    valid = (slot > 0) & (slot < SLOTS)
    generation = tl.load(generations + slot, mask=valid, other=-1)
    slot = tl.where(valid & (generation == (position >> 27).to(tl.int32)), slot, 0)
    return slot, offset, offset + 1 - tl.load(prompt_lengths + slot)


@triton.jit
def _embed_inputs_kernel(
    positions, generations, prompt_lengths, text_lengths, prompt_pages, text_pages, embeds, codes, first, rest, out,
    SLOTS: tl.constexpr, PAGES: tl.constexpr, PAGE_SIZE: tl.constexpr, FRAMES: tl.constexpr, CODEBOOK: tl.constexpr,
    GROUPS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, i = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < WIDTH
    slot, offset, next_frame = _decode_position(positions, row, generations, prompt_lengths, SLOTS)
    frame = next_frame - 1
    total = tl.zeros((BLOCK,), tl.float32)
    if slot > 0:
        if frame < 0:
            page = tl.load(prompt_pages + slot * PAGES + offset // PAGE_SIZE)
            source = page * PAGE_SIZE + offset % PAGE_SIZE
        else:
            page = tl.load(text_pages + slot * PAGES + frame // PAGE_SIZE)
            # Row 0 is the padding after the last text row.
            source = tl.where(frame < tl.load(text_lengths + slot), page * PAGE_SIZE + frame % PAGE_SIZE, 0)
        total = tl.load(embeds + source.to(tl.int64) * WIDTH + i, mask=inside, other=0.0).to(tl.float32)
        if frame >= 0:
            frame_codes = codes + (slot.to(tl.int64) * FRAMES + frame) * GROUPS
            code = tl.maximum(tl.load(frame_codes), 0).to(tl.int64)
            total += tl.load(first + code * WIDTH + i, mask=inside, other=0.0).to(tl.float32)
            for g in tl.static_range(1, GROUPS):
                code = tl.maximum(tl.load(frame_codes + g), 0).to(tl.int64) + (g - 1) * CODEBOOK
                total += tl.load(rest + code * WIDTH + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + i, total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["count"])
def _select_rows_kernel(
    positions, count, generations, prompt_lengths, num_frames, metadata,
    METADATA_STRIDE: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot = 0
    frame = 0
    if row < count:
        slot, _, frame = _decode_position(positions, row, generations, prompt_lengths, SLOTS)
        slot = tl.where(frame == tl.load(num_frames + slot), slot, 0)
    tl.store(metadata + row * METADATA_STRIDE + SLOT, slot)
    tl.store(metadata + row * METADATA_STRIDE + FRAME, frame)


@triton.jit
def _store_frames_kernel(
    metadata, sampled, num_frames, codes, host_codes,
    METADATA_STRIDE: tl.constexpr, FRAMES: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    row, group = tl.program_id(0), tl.arange(0, GROUPS)
    slot = tl.load(metadata + row * METADATA_STRIDE + SLOT)
    frame = tl.load(metadata + row * METADATA_STRIDE + FRAME)
    if slot > 0:
        index = (slot.to(tl.int64) * FRAMES + frame) * GROUPS + group
        code = tl.load(sampled + row * GROUPS + group).to(codes.dtype.element_ty)
        tl.store(codes + index, code)
        tl.store(host_codes + index, code)
        tl.store(num_frames + slot, frame + 1)


@triton.jit
def _next_first_codes_kernel(
    positions, generations, prompt_lengths, num_frames, codes, out,
    EOS: tl.constexpr, SLOTS: tl.constexpr, FRAMES: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    row, group = tl.program_id(0), tl.arange(0, GROUPS)
    slot, _, frame = _decode_position(positions, row, generations, prompt_lengths, SLOTS)
    sampled = (slot > 0) & (frame >= 0) & (frame < tl.load(num_frames + slot))
    frame_codes = tl.load(codes + (slot.to(tl.int64) * FRAMES + frame) * GROUPS + group, mask=sampled, other=0)
    first = tl.sum(tl.where(group == 0, frame_codes.to(tl.int32), 0), 0)
    code = tl.where(tl.min(frame_codes.to(tl.int32), 0) < 0, EOS, first)
    tl.store(out + row, code.to(out.dtype.element_ty))


class SlotTable:
    """State of all requests by slot; slot 0 is unassigned. Row 0 of `embeds` is the padding after a text."""

    def __init__(self, slots: int, max_pages: int, embeds: Tensor, frames: int, groups: int) -> None:
        """max_pages: of a prompt or text. embeds: [rows, H], in pages of 64 rows. frames: of a request, at most."""

        def int32_per_slot(*shape: int) -> Tensor:
            return torch.zeros(slots, *shape, dtype=torch.int32, device=embeds.device)

        self.generations = int32_per_slot() - 1
        """-1 for free slots."""
        self.prompt_lengths = int32_per_slot()
        self.text_lengths = int32_per_slot()
        """Text rows that are added to the frames' embeddings."""
        self.prompt_pages, self.text_pages = int32_per_slot(max_pages), int32_per_slot(max_pages)
        """Pages of `embeds`."""
        self.embeds = embeds
        self.codes = torch.zeros(slots, frames, groups, dtype=torch.int16, device=embeds.device)
        self.host_codes = torch.zeros(self.codes.shape, dtype=torch.int16, device="cpu", pin_memory=embeds.is_cuda)
        """In pinned host memory; valid once the step that sampled them is complete."""
        self.num_frames = int32_per_slot()
        """Frames sampled."""


def embed_inputs(slots: SlotTable, positions: Tensor, first: Tensor, rest: Tensor, out: Tensor, page_size: int) -> None:
    """Writes the input embedding of each row to `out` [rows, H]; zeros for unassigned rows.

    positions: int64 [rows]. first: [vocabulary, H], embeddings of code 0. rest: [groups - 1, codebook, H], embeddings
    of the residual codes. page_size: rows of a page of `slots.embeds`.
    """
    width = out.shape[1]
    block = min(512, triton.next_power_of_2(width))
    launch(
        _embed_inputs_kernel, (len(positions), triton.cdiv(width, block)), positions, slots.generations,
        slots.prompt_lengths, slots.text_lengths, slots.prompt_pages, slots.text_pages, slots.embeds, slots.codes,
        first, rest, out, SLOTS=len(slots.generations), PAGES=slots.prompt_pages.shape[1], PAGE_SIZE=page_size,
        CODEBOOK=rest.shape[1], WIDTH=width, BLOCK=block, **_code_options(slots),
    )  # fmt: skip


def select_rows(slots: SlotTable, positions: Tensor, metadata: Tensor) -> None:
    """Writes columns SLOT and FRAME of `metadata`: the slot is 0 for rows whose next frame must not be sampled.

    positions: int64 [rows]. metadata: int32 [at least rows, NUM_COLUMNS]; rows beyond `positions` get slot 0.
    """
    launch(
        _select_rows_kernel, (len(metadata),), positions, len(positions), slots.generations, slots.prompt_lengths,
        slots.num_frames, metadata, METADATA_STRIDE=metadata.stride(0), SLOTS=len(slots.generations),
    )  # fmt: skip


def store_frames(slots: SlotTable, metadata: Tensor, sampled: Tensor) -> None:
    """Stores sampled codes, int32 [rows, groups], in the slots and frames that `select_rows` wrote to `metadata`."""
    launch(
        _store_frames_kernel, (len(sampled),), metadata, sampled, slots.num_frames, slots.codes, slots.host_codes,
        METADATA_STRIDE=metadata.stride(0), **_code_options(slots),
    )  # fmt: skip


def next_first_codes(slots: SlotTable, positions: Tensor, out: Tensor, eos: int) -> None:
    """Writes the code 0 that follows each of `positions` to `out`, int64 [rows]; 0 where none was sampled.

    It is `eos` for a frame with a negative code, which could not be sampled.
    """
    launch(
        _next_first_codes_kernel, (len(positions),), positions, slots.generations, slots.prompt_lengths,
        slots.num_frames, slots.codes, out, EOS=eos, SLOTS=len(slots.generations), **_code_options(slots),
    )  # fmt: skip


def _code_options(slots: SlotTable) -> dict[str, int]:
    return {"FRAMES": slots.codes.shape[1], "GROUPS": slots.codes.shape[2]}
