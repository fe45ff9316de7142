"""Runs the talker on one device: owns its memory, captures its steps as CUDA graphs, and uploads their metadata."""

import time
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.kernels.metadata import NUM_COLUMNS, NUM_POSITIONS
from syrinx_stages.kernels.metadata import RING as RING_COLUMN
from syrinx_stages.kernels.recorder import GraphRecorder, Work
from syrinx_stages.model.config import TalkerConfig
from syrinx_stages.runtime.gpu_memory import free_share
from syrinx_stages.talker.cuda.allocation import PAGE_SIZE, Allocation, batch_sizes, bucket_for, num_pages
from syrinx_stages.talker.cuda.frame import INPUT_COLUMNS, DeviceState, FrameStep, MixedStep, PrefillStep
from syrinx_stages.talker.cuda.layers import LibraryLayers
from syrinx_stages.talker.cuda.next_frames import NextFrames, Slots
from syrinx_stages.talker.cuda.packed import PackedTalker
from syrinx_stages.talker.cuda.prefill import (
    MAX_PREFILL_POSITIONS,
    MIXED_FRAMES,
    MIXED_SHAPES,
    PREFILL_ROWS,
    Chunk,
    mixed_shape,
    plan_prefills,
    prefill_shapes,
)

MAX_PAGES = 64
"""Cache pages of one request: 4,096 positions, five minutes."""
RESIDENT_SECONDS = 16
"""Cache for each resident request, on average: most utterances have about five seconds, a few have a minute."""
RESIDENT_PAGES = num_pages(int(RESIDENT_SECONDS * FAMILY.frames_per_second))
RESIDENT_STEP_BYTES = 7 << 18
"""Buffers of all captured steps for each resident request. A step has at most as many rows."""
MAX_SHARED_ROWS = max(MAX_PREFILL_POSITIONS, max(MIXED_FRAMES) + max(rows * length for rows, length in MIXED_SHAPES))
RING = 4
"""Host buffers for codes: one more than steps may be unread, since entry 0 is scratch memory for padded rows."""


class NewRequest(NamedTuple):
    """A request to prefill."""

    allocation: Allocation
    inputs: NDArray[np.int32]
    """[positions, 3]: see `embed_prompts`."""
    added: Sequence[tuple[int, Tensor]] = ()
    """Positions, and the rows [count, H] that are added from there on."""


class ModelRunner:
    """Enqueues frames and prefills on the recorder's stream; never waits for the device."""

    def __init__(
        self,
        weights: PackedTalker,
        config: TalkerConfig,
        recorder: GraphRecorder,
        max_resident: int,
        memory_fraction: float = 1.0,
    ) -> None:
        """Allocates memory for `max_resident` requests, or as many as a fraction of the device's memory holds.

        Must be called on the recorder's stream. Raises `StartError` if it does not suffice for one long request.
        """
        self.weights, self.config, self.recorder = weights, config, recorder
        self.max_resident = max_resident = self._residents(max_resident, memory_fraction)
        self.batch_sizes = batch_sizes(max_resident)
        self.state = self._new_state(max_resident)
        self.next_frames = NextFrames(max_resident + 1, MAX_PAGES)
        self._shared = LibraryLayers(weights.layers, weights.eps, MAX_SHARED_ROWS)
        """For the steps with prompts, of which there are many."""
        self.frames: dict[int, tuple[FrameStep, Work, Work]] = {}
        """By number of rows: a step, and the graphs of its `sample_codes` and `decode`."""
        self.prefills: dict[tuple[int, int], tuple[PrefillStep, Work]] = {}
        """By number of rows and padded length: a step and its graph."""
        self.mixed: dict[tuple[int, tuple[int, int]], Work] = {}
        """By number of a frame's rows, and rows and padded length of a prefill: the graph of both."""
        elements = (
            max(max_resident, PREFILL_ROWS[-1]) * (NUM_COLUMNS + MAX_PAGES) + MAX_PREFILL_POSITIONS * INPUT_COLUMNS
        )
        self.staging = recorder.pinned_zeros(4 * RING, elements, dtype=torch.int32)
        """Host buffers that steps' inputs are copied from, used in turn."""
        self.staging_free = [recorder.record_event()] * len(self.staging)
        """Wait until the copy from each buffer is done."""
        self.next_staging = 0
        self._ring = 0

    def warm_up(self) -> None:
        """Compiles all kernels and captures every graph."""
        with self.recorder.on_stream():
            frames = [self.new_frame(rows) for rows in self.batch_sizes]
            prefills = [self.new_prefill(rows, length) for rows, length in prefill_shapes()]
            works = [work for frame in frames for work in (frame.sample_codes, frame.decode)]
            self.recorder.compile([*works, *(prefill.run for prefill in prefills)])
            for frame in frames:
                self.capture_frame(frame)
            for prefill in prefills:
                self.capture_prefill(prefill)
            for rows, shape in product(
                set(MIXED_FRAMES) & self.frames.keys(), set(MIXED_SHAPES) & self.prefills.keys()
            ):
                self.capture_mixed(rows, shape)
        self.recorder.record_event()()

    def step_seconds(self) -> dict[int, float]:
        """Returns the time of a frame of padding rows, by rows: the shortest of a few, in seconds."""
        return {
            rows: min(self._timed(sample, decode) for _ in range(3))
            for rows, (_, sample, decode) in self.frames.items()
        }

    def _timed(self, *works: Work) -> float:
        started = time.perf_counter()
        with self.recorder.on_stream():
            for work in works:
                work()
        self.recorder.record_event()()
        return time.perf_counter() - started

    def new_frame(self, rows: int) -> FrameStep:
        """Returns a frame step of `rows` rows, not captured."""
        return FrameStep(self.weights, self.config, self.state, rows, MAX_PAGES)

    def new_prefill(self, rows: int, length: int) -> PrefillStep:
        """Returns a prefill step of `rows` rows of `length` positions, not captured."""
        return PrefillStep(self.weights, self.state, rows, length, MAX_PAGES, self._shared)

    def capture_frame(self, step: FrameStep) -> None:
        """Captures a frame step, which `decode` then uses."""
        capture = self.recorder.capture_graph
        self.frames[step.rows] = step, capture(step.sample_codes), capture(step.decode)

    def capture_prefill(self, step: PrefillStep) -> None:
        """Captures a prefill step, which `prefill` then uses."""
        self.prefills[step.rows, step.length] = step, self.recorder.capture_graph(step.run)

    def capture_mixed(self, rows: int, shape: tuple[int, int]) -> None:
        """Captures a frame of `rows` rows with a prefill beside it, both captured before, which `decode` then uses."""
        step = MixedStep(self.weights, self.state, self.frames[rows][0], self.prefills[shape][0], self._shared)
        self.mixed[rows, shape] = self.recorder.capture_graph(step.run)

    def prefill(self, requests: Sequence[NewRequest]) -> None:
        """Enqueues the prefills of requests' prompts."""
        for plan in plan_prefills([len(request.inputs) for request in requests]):
            step, run = self.prefills[plan.rows, plan.length]
            self._write_prompts(step, requests, plan.chunks)
            run()

    def mixes(self, rows: int, requests: Sequence[NewRequest]) -> bool:
        """Returns whether `decode` of a number of rows can compute the prompts of these requests, too."""
        return bool(requests) and rows <= self.batch_sizes[-1] and self._mixed_key(rows, requests) in self.mixed

    def decode(self, slots: Slots, prompts: Sequence[NewRequest] = ()) -> tuple[int, Work]:
        """Enqueues one frame of each slot and, if `mixes`, the prefills of `prompts` beside its second part.

        Returns the entry of `state.host_codes` that receives the codes, and a function that waits for them. The codes
        are complete before the step is: its second graph only computes the next hidden states.
        """
        ring = self._ring = self._ring % (RING - 1) + 1
        step, sample_codes, decode = self.frames[bucket_for(self.batch_sizes, len(slots))]
        metadata = self.next_frames.rows(slots)
        metadata[:, RING_COLUMN.value] = ring
        with self.recorder.on_stream():
            self._upload(step.metadata, metadata)
            sample_codes()
            wait = self.recorder.record_event()
            if prompts:
                rows, shape = self._mixed_key(len(slots), prompts)
                chunks = [Chunk(index, 0, len(request.inputs)) for index, request in enumerate(prompts)]
                self._write_prompts(self.prefills[shape][0], prompts, chunks)
                decode = self.mixed[rows, shape]
            decode()
        self.next_frames.advance(slots)
        return ring, wait

    def _mixed_key(self, rows: int, requests: Sequence[NewRequest]) -> tuple[int, tuple[int, int]]:
        shape = mixed_shape([len(request.inputs) for request in requests])
        return bucket_for(self.batch_sizes, rows), shape or (0, 0)

    def _write_prompts(self, step: PrefillStep, requests: Sequence[NewRequest], chunks: Sequence[Chunk]) -> None:
        """Enqueues the copies of chunks of requests' prompts, and of their metadata."""
        slots = [requests[chunk.prompt].allocation.slot for chunk in chunks]
        counts = [chunk.end - chunk.start for chunk in chunks]
        metadata = self.next_frames.rows(np.array(slots))
        metadata[:, NUM_POSITIONS.value] = counts
        inputs = np.zeros((step.rows, step.length, INPUT_COLUMNS), np.int32)
        for row, (chunk, count) in enumerate(zip(chunks, counts, strict=True)):
            inputs[row, :count] = requests[chunk.prompt].inputs[chunk.start : chunk.end]
            self.next_frames.fill(slots[row], count)
            for start, rows in requests[chunk.prompt].added:
                first, last = max(start, chunk.start), min(start + len(rows), chunk.end)
                if first < last:
                    to = row * step.length - chunk.start
                    step.added[to + first : to + last] = rows[first - start : last - start]
        self._upload(step.upload, inputs, metadata)

    def _upload(self, target: Tensor, *parts: NDArray[np.int32]) -> None:
        """Enqueues the copy of arrays, one after the other, to `target`, int32. The rest of it becomes 0."""
        self.next_staging = (self.next_staging + 1) % len(self.staging)
        self.staging_free[self.next_staging]()
        staged = self.staging[self.next_staging][: target.numel()]
        numbers, end = staged.numpy(), 0
        for part in parts:
            numbers[end : end + part.size] = part.reshape(-1)
            end += part.size
        numbers[end:] = 0
        target.view(-1).copy_(staged, non_blocking=True)
        self.staging_free[self.next_staging] = self.recorder.record_event()

    def _residents(self, max_resident: int, memory_fraction: float) -> int:
        """Returns how many requests, up to `max_resident`, a fraction of the device's memory holds."""
        like = self.weights.norm
        if not like.is_cuda:
            return max_resident
        pages = MAX_PAGES * _page_bytes(self.config, like)
        left = free_share(like.device, memory_fraction, pages, "the talker's KV cache")
        return max(1, min(max_resident, left // resident_bytes(self.config, like)))

    def _new_state(self, max_resident: int) -> DeviceState:
        return DeviceState(
            self.config,
            self.weights.norm,
            slots=max_resident + 1,
            pages=1 + max(max_resident * RESIDENT_PAGES, MAX_PAGES),
            page_size=PAGE_SIZE,
            ring=RING,
            max_rows=max_resident,
            max_prefill=MAX_PREFILL_POSITIONS,
        )


def resident_bytes(config: TalkerConfig, like: Tensor) -> int:
    """Returns the memory of one resident request: KV cache, and its share of the steps' buffers."""
    return RESIDENT_PAGES * _page_bytes(config, like) + RESIDENT_STEP_BYTES


def _page_bytes(config: TalkerConfig, like: Tensor) -> int:
    """Returns the size of a page of the KV cache."""
    position = config.num_hidden_layers * 2 * config.num_key_value_heads * config.head_size
    return PAGE_SIZE * position * like.element_size()
