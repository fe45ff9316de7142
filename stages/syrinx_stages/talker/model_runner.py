"""Runs the talker on one device: owns its memory, captures its steps as CUDA graphs, and uploads their metadata."""

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import Sampling
from syrinx_stages.kernels.metadata import NUM_COLUMNS
from syrinx_stages.kernels.recorder import GraphRecorder, Work
from syrinx_stages.model.config import TalkerConfig
from syrinx_stages.runtime.gpu_memory import free_share
from syrinx_stages.talker.allocation import PAGE_SIZE, Allocation, batch_sizes, bucket_for, num_pages
from syrinx_stages.talker.frame import DeviceState, FrameStep, PrefillStep
from syrinx_stages.talker.packed import PackedTalker
from syrinx_stages.talker.prefill import MAX_PREFILL_POSITIONS, PREFILL_ROWS, plan_prefills, prefill_shapes
from syrinx_stages.talker.prompt import Prompt

MAX_PAGES = 64
"""Cache pages of one request: 4,096 positions, five minutes."""
RESIDENT_SECONDS = 16
"""Cache for each resident request, on average: most utterances have about five seconds, a few have a minute."""
RESIDENT_PAGES = num_pages(int(RESIDENT_SECONDS * FAMILY.frames_per_second))
RESIDENT_TEXT_ROWS = 256
"""Text rows for each resident request, on average."""
RESIDENT_STEP_BYTES = 3 << 19
"""Buffers of all captured steps for each resident request. A step has at most as many rows."""
RING = 4
"""Host buffers for codes: one more than steps may be unread, since entry 0 is scratch memory for padded rows."""


class NewRequest(NamedTuple):
    """A request to prefill."""

    allocation: Allocation
    embeds: Tensor
    """[positions, H]."""


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
        self.frames: dict[int, tuple[FrameStep, Work, Work]] = {}
        """By number of rows: a step, and the graphs of its `sample_codes` and `decode`."""
        self.prefills: dict[tuple[int, int], tuple[PrefillStep, Work]] = {}
        """By number of rows and padded length: a step and its graph."""
        elements = max(max_resident, PREFILL_ROWS[-1]) * (NUM_COLUMNS + MAX_PAGES)
        self.staging = recorder.pinned_zeros(4 * RING, elements, dtype=torch.int32)
        """Host buffers that metadata is copied from, used in turn."""
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
        return PrefillStep(self.weights, self.state, rows, length, MAX_PAGES)

    def capture_frame(self, step: FrameStep) -> None:
        """Captures a frame step, which `decode` then uses."""
        capture = self.recorder.capture_graph
        self.frames[step.rows] = step, capture(step.sample_codes), capture(step.decode)

    def capture_prefill(self, step: PrefillStep) -> None:
        """Captures a prefill step, which `prefill` then uses."""
        self.prefills[step.rows, step.length] = step, self.recorder.capture_graph(step.run)

    def write_request(
        self, allocation: Allocation, prompt: Prompt, codes: Tensor, sampling: Sampling, seed: int
    ) -> None:
        """Writes a request's text rows and sampling state. codes: int64 [frames, 16], generated already."""
        state = self.state
        for index, page in enumerate(allocation.text_pages):
            rows = prompt.text_rows[index * PAGE_SIZE : (index + 1) * PAGE_SIZE]
            state.text_rows[page * PAGE_SIZE : page * PAGE_SIZE + len(rows)] = rows
        state.write(allocation.slot, sampling, seed, codes)
        self.recorder.record_stream(*prompt, codes)

    def prefill(self, requests: Sequence[NewRequest]) -> None:
        """Enqueues the prefills of requests' prompts."""
        for plan in plan_prefills([len(request.embeds) for request in requests]):
            step, run = self.prefills[plan.rows, plan.length]
            metadata: list[list[int]] = []
            for row, (index, start, end) in enumerate(plan.chunks):
                allocation, embeds = requests[index]
                count = end - start
                step.embeds[row * plan.length : row * plan.length + count] = embeds[start:end]
                metadata.append([allocation.slot, allocation.position, count, 0, 0, *allocation.pages])
                allocation.position += count
            self._upload(step.metadata, metadata)
            run()

    def decode(self, allocations: Sequence[Allocation]) -> tuple[int, Work]:
        """Enqueues one frame of each request.

        Returns the entry of `state.host_codes` that receives the codes, and a function that waits for them. The codes
        are complete before the step is: its second graph only computes the next hidden states.
        """
        ring = self._ring = self._ring % (RING - 1) + 1
        step, sample_codes, decode = self.frames[bucket_for(self.batch_sizes, len(allocations))]
        with self.recorder.on_stream():
            self._upload(
                step.metadata,
                [[row.slot, row.position, row.frames, row.text_row(), ring, *row.pages] for row in allocations],
            )
            sample_codes()
            wait = self.recorder.record_event()
            decode()
        for row in allocations:
            row.frames += 1
            row.position += 1
        return ring, wait

    def _upload(self, metadata: Tensor, rows: Sequence[Sequence[int]]) -> None:
        """Enqueues the copy of a step's metadata; remaining rows become padding."""
        self.next_staging = (self.next_staging + 1) % len(self.staging)
        self.staging_free[self.next_staging]()
        staged = self.staging[self.next_staging][: metadata.numel()].view(metadata.shape)
        numbers = staged.numpy()
        numbers.fill(0)
        for index, row in enumerate(rows):
            numbers[index, : len(row)] = row
        metadata.copy_(staged, non_blocking=True)
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
            text_rows=PAGE_SIZE * (1 + num_pages(max_resident * RESIDENT_TEXT_ROWS)),
            ring=RING,
            max_rows=max_resident,
            max_prefill=MAX_PREFILL_POSITIONS,
        )


def resident_bytes(config: TalkerConfig, like: Tensor) -> int:
    """Returns the memory of one resident request: KV cache, text rows and its share of the steps' buffers."""
    text = RESIDENT_TEXT_ROWS * config.hidden_size * like.element_size()
    return RESIDENT_PAGES * _page_bytes(config, like) + text + RESIDENT_STEP_BYTES


def _page_bytes(config: TalkerConfig, like: Tensor) -> int:
    """Returns the size of a page of the KV cache."""
    position = config.num_hidden_layers * 2 * config.num_key_value_heads * config.head_size
    return PAGE_SIZE * position * like.element_size()
