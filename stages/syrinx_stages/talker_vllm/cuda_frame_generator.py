"""The frame generator for GPUs, with the kernels of Syrinx's own engine.

Inputs are embedded inside vLLM's CUDA graphs; sampling replays graphs of its own. Nothing waits for the device: `read`
is called after vLLM has completed a step, and by then the step's frames are in host memory.
"""

from collections.abc import Sequence
from functools import partial

import torch
from msgspec import Struct
from torch import Tensor

from syrinx_stages.kernels.metadata import NUM_COLUMNS
from syrinx_stages.kernels.recorder import GraphRecorder, Work
from syrinx_stages.kernels.slots import SlotTable, embed_inputs, next_first_codes, select_rows, store_frames
from syrinx_stages.kernels.split_k import SplitKWorkspace
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.config import CODE_GROUPS
from syrinx_stages.talker.cuda.allocation import PAGE_SIZE, IndexPool, batch_sizes, bucket_for, num_pages
from syrinx_stages.talker.cuda.frame import CodeSampler, SamplingState
from syrinx_stages.talker.cuda.layers import new_split_k_workspace
from syrinx_stages.talker.cuda.packed import pack
from syrinx_stages.talker.engine import EngineFull
from syrinx_stages.talker_vllm.frame_generator import MAX_POSITIONS, UNUSED_MODULES, VllmRequest
from syrinx_stages.talker_vllm.positions import Handle

MAX_PAGES = MAX_POSITIONS // PAGE_SIZE
"""Pages of one request's prompt, and also of its text."""
MEAN_PAGES = 6
"""Pages allocated for each slot on average: 384 rows of prompt and text."""


class _SamplingGraph(Struct):
    """Samples a fixed number of rows."""

    sampler: CodeSampler
    metadata: Tensor
    """Written by `select_rows`: [rows, NUM_COLUMNS] int32."""
    states: Tensor
    """Input: [rows, hidden]."""
    run: Work


class CudaFrameGenerator:
    """Runs the kernels of `kernels/`."""

    def __init__(self, checkpoint: Checkpoint, slots: int, frames: int) -> None:
        """Allocates all device memory and captures the graphs.

        slots: maximum concurrent requests. frames: maximum frames of a request. Raises CheckpointError.
        """
        talker = checkpoint.load_talker(*UNUSED_MODULES)
        with torch.inference_mode():
            self._weights = pack(talker)
        self._config, self._device = talker.config, talker.device
        self._recorder = GraphRecorder(self._device)
        self._pool = IndexPool(slots * MEAN_PAGES)
        embeds = self._weights.norm.new_zeros((self._pool.capacity + 1) * PAGE_SIZE, len(self._weights.norm))
        # vLLM schedules one step ahead, so it may request one frame more than the limit.
        self._slots = SlotTable(slots + 1, MAX_PAGES, embeds, frames + 2, CODE_GROUPS)
        self._sampling = SamplingState(slots + 1, talker.config.vocab_size, self._device)
        self._pages: dict[Handle, list[int]] = {}
        self._sizes = batch_sizes(slots)
        self._graphs = self._capture(new_split_k_workspace(talker.config, self._weights.norm, 2 * slots))

    def _capture(self, workspace: SplitKWorkspace) -> dict[int, _SamplingGraph]:
        like = self._weights.norm
        if like.is_cuda:
            # The weights were loaded on another stream.
            torch.cuda.synchronize(like.device)
        graphs = {}
        for size in self._sizes:
            sampler = CodeSampler(self._weights, self._config, workspace, size)
            metadata = torch.zeros(size, NUM_COLUMNS, dtype=torch.int32, device=like.device)
            states = like.new_zeros(size, len(like))
            graphs[size] = _SamplingGraph(sampler, metadata, states, partial(self._run, sampler, metadata, states))
        self._recorder.compile([graph.run for graph in graphs.values()])
        for graph in graphs.values():
            graph.run = self._recorder.capture_graph(graph.run)
        self._recorder.record_event()()
        return graphs

    def open(self, request: VllmRequest) -> None:
        prompt, slots, slot = request.prompt, self._slots, request.handle.slot
        wanted = num_pages(len(prompt.embeds)), num_pages(len(prompt.text_rows))
        if max(wanted) > MAX_PAGES or sum(wanted) > self._pool.num_free:
            raise EngineFull
        prompt_pages, text_pages = (self._pool.allocate(count) for count in wanted)
        self._pages[request.handle] = prompt_pages + text_pages
        slots.embeds[0] = prompt.pad_row
        self._write(slots.prompt_pages[slot], prompt_pages, prompt.embeds)
        self._write(slots.text_pages[slot], text_pages, prompt.text_rows)
        codes = request.codes.to(self._device, non_blocking=True)
        self._sampling.write(slot, *request.sampling, codes)
        self._sampling.upload()
        slots.codes[slot, : len(codes)] = codes.short()
        slots.prompt_lengths[slot].fill_(len(prompt.embeds))
        slots.text_lengths[slot].fill_(len(prompt.text_rows))
        slots.num_frames[slot].fill_(len(codes))
        slots.generations[slot].fill_(request.handle.generation)

    def close(self, handle: Handle) -> None:
        pages = self._pages.pop(handle, None)
        if pages is not None:
            self._slots.generations[handle.slot].fill_(-1)
            self._pool.free(pages)

    def read(self, wanted: Sequence[tuple[Handle, int, int]]) -> list[bytes]:
        codes = self._slots.host_codes.numpy()
        return [codes[handle.slot, first : first + count].tobytes() for handle, first, count in wanted]

    def embed_inputs(self, positions: Tensor, out: Tensor) -> Tensor:
        embed_inputs(self._slots, positions, self._weights.first, self._weights.rest, out, PAGE_SIZE)
        return out

    def sample(self, positions: Tensor, states: Tensor) -> Tensor:
        max_rows = self._sizes[-1]
        # During warm-up vLLM may pass more rows than it will ever have requests. They are unassigned.
        for rows, hidden in zip(torch.split(positions, max_rows), torch.split(states, max_rows), strict=True):
            graph = self._graphs[bucket_for(self._sizes, len(rows))]
            select_rows(self._slots, rows, graph.metadata)
            graph.states[: len(rows)] = hidden
            graph.run()
        codes = torch.empty_like(positions)
        next_first_codes(self._slots, positions, codes, self._config.codec_eos_token_id)
        return codes

    def _run(self, sampler: CodeSampler, metadata: Tensor, states: Tensor) -> None:
        sampler.run(self._sampling.inputs(metadata), states)
        store_frames(self._slots, metadata, sampler.codes)

    def _write(self, table: Tensor, pages: Sequence[int], rows: Tensor) -> None:
        """Writes rows to their pages, and the page indices to a slot's page table."""
        table[: len(pages)] = torch.tensor(pages, dtype=torch.int32).to(self._device, non_blocking=True)
        for index, page in enumerate(pages):
            part = rows[index * PAGE_SIZE : (index + 1) * PAGE_SIZE]
            self._slots.embeds[page * PAGE_SIZE : page * PAGE_SIZE + len(part)] = part
