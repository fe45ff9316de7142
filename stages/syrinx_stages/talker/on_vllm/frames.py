"""What a talker is beside its decoder layers, for every request that vLLM runs: inputs from codes, codes from states.

A row's position says whose it is and where (`where`). Its input is a row of the prompt or the frame before it with its
row of text; its state gives the next frame, all 16 codes at once, so that a frame is complete when vLLM is told its
code 0. What was drawn once stays: where vLLM feeds places again, after a preemption, nothing is drawn anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from msgspec import Struct
from torch import Tensor

from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.prompt import Prompt
from syrinx_stages.talker.frame_sampler import FrameSampler, SeededSampling
from syrinx_stages.talker.on_vllm.where import Handle, Run, runs

ELSEWHERE = ("model.layers", "model.text_embedding", "text_projection")
"""Parts of the talker that frames do not need: vLLM has the layers, and prompts are made before."""
MOST_POSITIONS = 4096
"""Of one request: five minutes."""


class Opened(Struct, frozen=True):
    """A request before its first place is fed."""

    handle: Handle
    prompt: Prompt
    codes: Tensor
    """Frames already made, by an earlier owner: [n, 16] long. They are fed behind the prompt."""
    choice: SeededSampling


class _Slot(Struct):
    """One request's state."""

    opened: Opened
    codes: list[Tensor]
    """Its frames, [16] each."""
    seen: Tensor
    """Codes 0 said so far: bool [vocabulary]."""

    @property
    def length(self) -> int:
        """Of the prompt."""
        return len(self.opened.prompt.embeds)

    def follows(self, place: int) -> int:
        """The code 0 behind a place; 0 within the prompt, and where nothing was drawn yet."""
        frame = place + 1 - self.length
        return int(self.codes[frame][0]) if 0 <= frame < len(self.codes) else 0


class Frames(Protocol):
    """State of all requests that vLLM runs. Everything is called on the thread that runs vLLM's steps."""

    def open(self, opened: Opened) -> None:
        """From now on rows may carry the handle. Raises `EngineFull` if there is no memory for it."""

    def close(self, handle: Handle) -> None:
        """Rows that still carry the handle are nobody's; unknown ones are fine."""

    def read(self, wanted: Sequence[tuple[Handle, int, int]]) -> list[bytes]:
        """Frames of requests, from a number on so many (int16 little-endian)."""

    def inputs(self, positions: Tensor, out: Tensor) -> Tensor:
        """What vLLM's layers are fed, in `out` [rows, hidden size]; zeros where a row is nobody's."""

    def draw(self, positions: Tensor, states: Tensor) -> Tensor:
        """Draws the frames that are next; returns the code 0 that follows each row, 0 where none does: [rows] int64.

        A request has one row at most. states: the layers' outputs, normalised [rows, hidden size].
        """


class EagerFrames:
    """Frames with the modules of `model/`, on a CPU. A request's codes do not depend on what else is in the batch."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raises `CheckpointError` if the checkpoint does not fit."""
        self._talker = checkpoint.load_talker(*ELSEWHERE)
        self._frame_sampler = FrameSampler(self._talker)
        self._slots: dict[Handle, _Slot] = {}

    def open(self, opened: Opened) -> None:
        """From now on rows may carry the handle."""
        seen = torch.zeros(self._talker.config.vocab_size, dtype=torch.bool)
        seen[opened.codes[:, 0]] = True
        self._slots[opened.handle] = _Slot(opened, list(opened.codes), seen)

    def close(self, handle: Handle) -> None:
        """Rows that still carry the handle are nobody's; unknown ones are fine."""
        self._slots.pop(handle, None)

    def read(self, wanted: Sequence[tuple[Handle, int, int]]) -> list[bytes]:
        """Frames of requests, from a number on so many (int16 little-endian)."""
        return [
            b"".join(codes.short().numpy().tobytes() for codes in self._slots[handle].codes[first : first + count])
            for handle, first, count in wanted
        ]

    def inputs(self, positions: Tensor, out: Tensor) -> Tensor:
        """What vLLM's layers are fed, in `out` [rows, hidden size]; zeros where a row is nobody's."""
        return torch.cat([self._inputs(run) for run in runs(positions.tolist())], out=out)

    def draw(self, positions: Tensor, states: Tensor) -> Tensor:
        """See `Frames`."""
        places = [
            (self._slots.get(run.handle), run.first + step)
            for run in runs(positions.tolist())
            for step in range(run.length)
        ]
        due = [
            (row, slot)
            for row, (slot, place) in enumerate(places)
            if slot is not None and place + 1 - slot.length == len(slot.codes)
        ]
        if due:
            self._draw([slot for _, slot in due], states[[row for row, _ in due]])
        return torch.tensor([0 if slot is None else slot.follows(place) for slot, place in places])

    def _inputs(self, run: Run) -> Tensor:
        slot = self._slots.get(run.handle)
        if slot is None:
            return torch.zeros(run.length, self._talker.config.hidden_size)
        prompt, last = slot.opened.prompt, run.first + run.length
        parts = [prompt.embeds[run.first : last]]
        first = max(0, run.first - slot.length)
        if codes := slot.codes[first : max(0, last - slot.length)]:
            texts = [prompt.text_row(first + step) for step in range(len(codes))]
            parts.append(self._talker.embed_frame(torch.stack(codes)) + torch.stack(texts))
        return torch.cat(parts)

    def _draw(self, slots: Sequence[_Slot], hidden: Tensor) -> None:
        choices, said = [slot.opened.choice for slot in slots], [len(slot.codes) for slot in slots]
        for slot, codes in zip(
            slots, self._frame_sampler.sample(choices, said, hidden, [slot.seen for slot in slots]), strict=True
        ):
            slot.codes.append(codes)
            slot.seen[codes[0]] = True
