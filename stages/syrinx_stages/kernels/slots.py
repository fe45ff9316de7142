"""What the talker is fed and what it says, by slot: for layers that run elsewhere and know a row by its position alone.

A row's position is `generation << 27 | slot << 16 | place` (`talker.on_vllm.where`); one whose generation is not its
slot's is nobody's.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from .launch import launch


@triton.jit
def _locate(positions, row, generations, lengths, SLOTS: tl.constexpr):
    """Slot (0 if the row is nobody's), place, and the frame that follows the place: below 0 within the prompt."""
    position = tl.load(positions + row)
    slot = ((position >> 16) & 2047).to(tl.int32)
    place = (position & 65535).to(tl.int32)
    known = (slot > 0) & (slot < SLOTS)
    generation = tl.load(generations + slot, mask=known, other=-1)
    slot = tl.where(known & (generation == (position >> 27).to(tl.int32)), slot, 0)
    return slot, place, place + 1 - tl.load(lengths + slot)


@triton.jit
def _feed(
    positions, generations, lengths, texts, prompt_pages, text_pages, rows, codes, first, rest, out,
    SLOTS: tl.constexpr, PAGES: tl.constexpr, PAGE: tl.constexpr, FRAMES: tl.constexpr, CODEBOOK: tl.constexpr,
    GROUPS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, i = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < WIDTH
    slot, place, following = _locate(positions, row, generations, lengths, SLOTS)
    frame = following - 1
    total = tl.zeros((BLOCK,), tl.float32)
    if slot > 0:
        if frame < 0:
            page = tl.load(prompt_pages + slot * PAGES + place // PAGE)
            source = page * PAGE + place % PAGE
        else:
            page = tl.load(text_pages + slot * PAGES + frame // PAGE)
            # Row 0 is the padding that follows a text.
            source = tl.where(frame < tl.load(texts + slot), page * PAGE + frame % PAGE, 0)
        total = tl.load(rows + source.to(tl.int64) * WIDTH + i, mask=inside, other=0.0).to(tl.float32)
        if frame >= 0:
            said = codes + (slot.to(tl.int64) * FRAMES + frame) * GROUPS
            code = tl.load(said).to(tl.int64)
            total += tl.load(first + code * WIDTH + i, mask=inside, other=0.0).to(tl.float32)
            for g in tl.static_range(1, GROUPS):
                code = tl.load(said + g).to(tl.int64) + (g - 1) * CODEBOOK
                total += tl.load(rest + code * WIDTH + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + i, total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["count"])
def _due(positions, count, generations, lengths, done, meta, META: tl.constexpr, SLOTS: tl.constexpr):
    row = tl.program_id(0)
    slot = 0
    frame = 0
    if row < count:
        slot, _, frame = _locate(positions, row, generations, lengths, SLOTS)
        slot = tl.where(frame == tl.load(done + slot), slot, 0)
    tl.store(meta + row * META, slot)
    tl.store(meta + row * META + 2, frame)


@triton.jit
def _keep(meta, drawn, done, codes, handed, META: tl.constexpr, FRAMES: tl.constexpr, GROUPS: tl.constexpr):
    row, group = tl.program_id(0), tl.arange(0, GROUPS)
    slot, frame = tl.load(meta + row * META), tl.load(meta + row * META + 2)
    if slot > 0:
        to = (slot.to(tl.int64) * FRAMES + frame) * GROUPS + group
        code = tl.load(drawn + row * GROUPS + group).to(codes.dtype.element_ty)
        tl.store(codes + to, code)
        tl.store(handed + to, code)
        tl.store(done + slot, frame + 1)


@triton.jit
def _follow(
    positions, generations, lengths, done, codes, out, SLOTS: tl.constexpr, FRAMES: tl.constexpr, GROUPS: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0)
    slot, _, frame = _locate(positions, row, generations, lengths, SLOTS)
    said = (slot > 0) & (frame >= 0) & (frame < tl.load(done + slot))
    code = tl.load(codes + (slot.to(tl.int64) * FRAMES + frame) * GROUPS, mask=said, other=0)
    tl.store(out + row, code.to(out.dtype.element_ty))


@dataclass(frozen=True)
class Slots:
    """State of all requests by slot; slot 0 is nobody's. Pages of 64 rows lie in `rows`, whose first is the padding."""

    generations: Tensor
    """[slots] int32; -1 where there is no request."""
    lengths: Tensor
    """[slots] int32: of the prompt."""
    texts: Tensor
    """[slots] int32: rows of text that come with the frames."""
    prompt_pages: Tensor
    """[slots, pages] int32."""
    text_pages: Tensor
    """The same."""
    rows: Tensor
    """[any, H]."""
    codes: Tensor
    """[slots, frames, groups] int16."""
    handed: Tensor
    """The same on the host, where they are read without a wait once their step is over."""
    done: Tensor
    """[slots] int32: frames that are drawn."""


def feed(slots: Slots, positions: Tensor, first: Tensor, rest: Tensor, out: Tensor, page: int) -> None:
    """What rows at positions [rows] (int64) are fed, to `out` [rows, H]; zeros where a row is nobody's.

    first: embeddings of code 0 [vocabulary, H]; rest: of the others [groups - 1, codebook, H].
    """
    width = out.shape[1]
    block = min(512, triton.next_power_of_2(width))
    launch(
        _feed, (len(positions), triton.cdiv(width, block)), positions, slots.generations, slots.lengths, slots.texts,
        slots.prompt_pages, slots.text_pages, slots.rows, slots.codes, first, rest, out,
        SLOTS=len(slots.generations), PAGES=slots.prompt_pages.shape[1], PAGE=page, FRAMES=slots.codes.shape[1],
        CODEBOOK=rest.shape[1], GROUPS=slots.codes.shape[2], WIDTH=width, BLOCK=block,
    )  # fmt: skip


def due(slots: Slots, positions: Tensor, meta: Tensor) -> None:
    """Says of each row of `meta` [at least rows, at least 3] (int32) in column 0 whose next frame is to be drawn from
    it, 0 for nobody's, and in column 2 which frame that is.
    """
    launch(
        _due, (len(meta),), positions, len(positions), slots.generations, slots.lengths, slots.done, meta,
        META=meta.stride(0), SLOTS=len(slots.generations),
    )  # fmt: skip


def keep(slots: Slots, meta: Tensor, drawn: Tensor) -> None:
    """Puts drawn codes [rows, groups] (int32) in their places; `meta`: see `due`."""
    frames, groups = slots.codes.shape[1:]
    launch(
        _keep, (len(drawn),), meta, drawn, slots.done, slots.codes, slots.handed,
        META=meta.stride(0), FRAMES=frames, GROUPS=groups,
    )  # fmt: skip


def follow(slots: Slots, positions: Tensor, out: Tensor) -> None:
    """The code 0 that follows each row, 0 where none does, to `out` [rows] (int64)."""
    frames, groups = slots.codes.shape[1:]
    launch(
        _follow, (len(positions),), positions, slots.generations, slots.lengths, slots.done, slots.codes, out,
        SLOTS=len(slots.generations), FRAMES=frames, GROUPS=groups,
    )  # fmt: skip
