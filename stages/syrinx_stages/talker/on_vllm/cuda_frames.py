"""`frames` on a GPU: the same by the kernels of the torch engine.

Inputs are made within vLLM's CUDA graphs; draws replay graphs of their own. Nothing waits for the device: `read` is
called when vLLM has seen the end of a step, and by then its frames are on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from msgspec import Struct
from torch import Tensor

from syrinx_stages.kernels.linear import SplitKWorkspace
from syrinx_stages.kernels.metadata import NUM_COLUMNS
from syrinx_stages.kernels.recorder import Work, graph_recorder
from syrinx_stages.kernels.sampling import NUM_SAMPLING_PARAMS, SamplingInputs
from syrinx_stages.kernels.slots import SlotTable, embed_inputs, next_first_codes, select_rows, store_frames
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.config import CODE_GROUPS
from syrinx_stages.talker.allocation import PAGE_SIZE, IndexPool, batch_sizes, bucket_for, num_pages
from syrinx_stages.talker.engine import EngineFull
from syrinx_stages.talker.frame import CodeSampler, new_split_k_workspace
from syrinx_stages.talker.on_vllm.frames import ELSEWHERE, MOST_POSITIONS, Opened
from syrinx_stages.talker.on_vllm.where import Handle
from syrinx_stages.talker.packed import pack
from syrinx_stages.talker.sampling_params import sampling_params, signed_seed

MOST_PAGES = MOST_POSITIONS // PAGE_SIZE
"""Of one request, for its prompt, and as many for its text."""
PAGES_EACH = 6
"""For each request, on average: 384 rows of prompt and text."""


class _Pages(Struct):
    """What a request has of the pool."""

    prompt: list[int]
    text: list[int]


class _Step(Struct):
    """What draws frames of so many rows."""

    draws: CodeSampler
    meta: Tensor
    """Whose frames, and which: see `select_rows`. [rows, NUM_COLUMNS]."""
    states: Tensor
    """What they are drawn from: [rows, H]."""
    run: Work


class CudaFrames:
    """Frames with the kernels of `kernels/`."""

    def __init__(self, checkpoint: Checkpoint, slots: int, frames: int) -> None:
        """slots: requests at once; frames: the most of one. Raises `CheckpointError` if the checkpoint does not fit."""
        talker = checkpoint.load_talker(*ELSEWHERE)
        with torch.inference_mode():
            self._weights = pack(talker)
        self._config, self._device = talker.config, talker.device
        pages, device = slots * PAGES_EACH, self._device
        self._recorder = graph_recorder(device)

        def numbers(*shape: int) -> Tensor:
            return torch.zeros(slots + 1, *shape, dtype=torch.int32, device=device)

        # Where vLLM is a step ahead, it asks for one frame more than there may be.
        codes = slots + 1, frames + 2, CODE_GROUPS
        self._slots = SlotTable(
            generations=numbers() - 1,
            prompt_lengths=numbers(),
            text_lengths=numbers(),
            prompt_pages=numbers(MOST_PAGES),
            text_pages=numbers(MOST_PAGES),
            embeds=self._weights.norm.new_zeros((pages + 1) * PAGE_SIZE, len(self._weights.norm)),
            codes=torch.zeros(codes, dtype=torch.int16, device=device),
            host_codes=self._recorder.pinned_zeros(*codes, dtype=torch.int16),
            num_frames=numbers(),
        )
        self._sampling_params = torch.zeros(slots + 1, 2, NUM_SAMPLING_PARAMS, dtype=torch.float32, device=device)
        self._seeds = torch.zeros(slots + 1, dtype=torch.int64, device=device)
        self._seen = torch.zeros(slots + 1, talker.config.vocab_size, dtype=torch.int8, device=device)
        self._pool = IndexPool(pages)
        self._open: dict[Handle, _Pages] = {}
        self._sizes = batch_sizes(slots)
        self._steps = self._record(new_split_k_workspace(talker.config, self._weights.norm, 2 * slots))

    def _record(self, sharing: SplitKWorkspace) -> dict[int, _Step]:
        """A step of every size."""
        like = self._weights.norm
        if like.is_cuda:
            # What was loaded and made so far was queued elsewhere.
            torch.cuda.synchronize(like.device)
        steps = {}
        for size in self._sizes:
            draws = CodeSampler(self._weights, self._config, sharing, size)
            meta = torch.zeros(size, NUM_COLUMNS, dtype=torch.int32, device=like.device)
            states = like.new_zeros(size, len(like))
            steps[size] = _Step(draws, meta, states, partial(self._run, draws, meta, states))
        self._recorder.compile([step.run for step in steps.values()])
        for step in steps.values():
            step.run = self._recorder.capture_graph(step.run)
        self._recorder.record_event()()
        return steps

    def open(self, opened: Opened) -> None:
        """From now on rows may carry the handle. Raises `EngineFull` if there is none for its prompt and text."""
        prompt, slots, slot = opened.prompt, self._slots, opened.handle.slot
        wanted = num_pages(len(prompt.embeds)), num_pages(len(prompt.text_rows))
        if max(wanted) > MOST_PAGES or sum(wanted) > len(self._pool):
            raise EngineFull
        pages = self._open[opened.handle] = _Pages(*(self._pool.allocate(count) for count in wanted))
        slots.embeds[0] = prompt.pad_row
        self._write(slots.prompt_pages[slot], pages.prompt, prompt.embeds)
        self._write(slots.text_pages[slot], pages.text, prompt.text_rows)
        sampling, seed = opened.choice
        self._sampling_params[slot] = torch.tensor(sampling_params(sampling)).to(self._device, non_blocking=True)
        # An assignment of a number would wait for the device.
        self._seeds[slot].fill_(signed_seed(seed))
        codes = opened.codes.to(self._device, non_blocking=True)
        self._seen[slot].zero_()
        self._seen[slot].index_fill_(0, codes[:, 0], 1)
        slots.codes[slot, : len(codes)] = codes.short()
        slots.prompt_lengths[slot].fill_(len(prompt.embeds))
        slots.text_lengths[slot].fill_(len(prompt.text_rows))
        slots.num_frames[slot].fill_(len(codes))
        slots.generations[slot].fill_(opened.handle.generation)

    def close(self, handle: Handle) -> None:
        """Rows that still carry the handle are nobody's; unknown ones are fine."""
        pages = self._open.pop(handle, None)
        if pages is not None:
            self._slots.generations[handle.slot].fill_(-1)
            self._pool.free(pages.prompt)
            self._pool.free(pages.text)

    def read(self, wanted: Sequence[tuple[Handle, int, int]]) -> list[bytes]:
        """Frames of requests, from a number on so many (int16 little-endian)."""
        codes = self._slots.host_codes.numpy()
        return [codes[handle.slot, first : first + count].tobytes() for handle, first, count in wanted]

    def inputs(self, positions: Tensor, out: Tensor) -> Tensor:
        """What vLLM's layers are fed, in `out` [rows, hidden size]; zeros where a row is nobody's."""
        embed_inputs(self._slots, positions, self._weights.first, self._weights.rest, out, PAGE_SIZE)
        return out

    def draw(self, positions: Tensor, states: Tensor) -> Tensor:
        """See `Frames`."""
        most = self._sizes[-1]
        # When it warms up, vLLM may ask for more rows than it will ever have requests; they are nobody's.
        for rows, given in zip(torch.split(positions, most), torch.split(states, most), strict=True):
            step = self._steps[bucket_for(self._sizes, len(rows))]
            select_rows(self._slots, rows, step.meta)
            step.states[: len(rows)] = given
            step.run()
        codes = torch.empty_like(positions)
        next_first_codes(self._slots, positions, codes)
        return codes

    def _run(self, draws: CodeSampler, meta: Tensor, states: Tensor) -> None:
        draws.run(SamplingInputs(meta, self._sampling_params, self._seeds, self._seen), states)
        store_frames(self._slots, meta, draws.codes)

    def _write(self, table: Tensor, pages: Sequence[int], rows: Tensor) -> None:
        """Rows to their pages, and the pages' numbers to a slot's table."""
        table[: len(pages)] = torch.tensor(pages, dtype=torch.int32).to(self._device, non_blocking=True)
        for index, page in enumerate(pages):
            part = rows[index * PAGE_SIZE : (index + 1) * PAGE_SIZE]
            self._slots.embeds[page * PAGE_SIZE : page * PAGE_SIZE + len(part)] = part
