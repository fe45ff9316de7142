"""The talker engine for GPUs: CUDA graphs over paged memory. Only `prepare` and `read` wait for the device.

A step is two graphs, enqueued together: the first samples the frame's codes, which can be read as soon as it is done;
the second feeds them to the talker, and gives the host time to enqueue the next step. `ModelRunner` enqueues the work,
`Allocator` assigns the device memory, and the engine keeps each request's state.
"""

import logging
import math
from collections.abc import Mapping, Sequence

import torch
from msgspec import Struct
from torch import Tensor

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import End, EndReason, SpeechRequest
from syrinx_stages.kernels.recorder import GraphRecorder, Work
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.config import TalkerConfig
from syrinx_stages.runtime.engine import Limits
from syrinx_stages.runtime.gpu_memory import refuse_out_of_memory
from syrinx_stages.talker.allocation import PAGE_SIZE, Allocation, Allocator
from syrinx_stages.talker.engine import EngineFull, frame_results, with_marks
from syrinx_stages.talker.model_runner import MAX_PAGES, RESIDENT_SECONDS, ModelRunner, NewRequest
from syrinx_stages.talker.packed import pack
from syrinx_stages.talker.prompt import Prepared, Prompter

log = logging.getLogger(__name__)


def max_useful_rows(step_seconds: Mapping[int, float]) -> int:
    """Returns the rows from which on a step lasts longer than the audio that it generates, or the most measured ones.

    step_seconds: measured, by rows. If even one row takes longer, streams share a step of any size.
    """
    useful = [rows for rows, seconds in step_seconds.items() if seconds <= FAMILY.frame_seconds]
    return max(useful or step_seconds)


class _Row(Struct, kw_only=True):
    """One resident request."""

    allocation: Allocation
    max_frames: int
    stopped: bool = False
    """It has sampled EOS, or no code."""
    full: bool = False
    """It had `max_frames` frames when a step was launched with it."""


class Step(Struct):
    """A launched step."""

    ids: Sequence[str]
    rows: Sequence[_Row]
    frames: Sequence[int]
    """How many frames each row had before."""
    full: Sequence[str]
    """Requests that had all their frames before this step."""
    ring: int
    """The entry of `DeviceState.host_codes` with this step's codes."""
    wait: Work | None
    """Waits for the codes; None if the step has no rows."""


class CudaTalkerEngine:
    """A `TalkerEngine` on a CUDA device. `prepare` may run on any thread."""

    depth = 2
    isolates_rows = False
    ahead_frames = math.inf
    prompt_rows = 16.0
    # A burst needs few admissions; a graph holds fewer prompts, and `burst_size` limits their positions.
    prefill_rows = 32

    def __init__(self, checkpoint: Checkpoint, max_resident: int, memory_fraction: float = 1.0) -> None:
        """Computes in the dtype of `checkpoint`, with at most a fraction of the device's memory.

        Raises `CheckpointError` if its weights do not match its config, `StartError` if the memory does not suffice.
        """
        self._device = checkpoint.device
        self._recorder, self._prepare_recorder = GraphRecorder(self._device), GraphRecorder(self._device)
        with self._recorder.on_stream():
            talker = checkpoint.load_talker()
            self._talker = talker
            self._config: TalkerConfig = talker.config
            # Reference voices are encoded in float32: it happens once per request and improves quality.
            self._prompter = Prompter(checkpoint.as_float32(), talker, MAX_PAGES * PAGE_SIZE)
            self.runner = ModelRunner(pack(talker), talker.config, self._recorder, max_resident, memory_fraction)
            state = self.runner.state
            with torch.inference_mode():
                state.text_rows[0] = self._prompter.pad_row
        self.allocator = Allocator(
            slots=self.runner.max_resident,
            pages=state.cache.shape[1] - 1,
            text_pages=state.text_rows.shape[0] // PAGE_SIZE - 1,
            max_pages=MAX_PAGES,
        )
        self._rows: dict[str, _Row] = {}
        self.limits = Limits()
        self._recorder.record_event()()

    @torch.inference_mode()
    def warm_up(self) -> None:
        with refuse_out_of_memory(self._device, "the talker's steps"):
            self.runner.warm_up()
        if self._device.type == "cuda":
            self.limits = self._measured_limits()

    def _measured_limits(self) -> Limits:
        seconds = self.runner.step_seconds()
        steps = ", ".join(f"{rows}: {1000 * each:.2f} ms" for rows, each in seconds.items())
        max_resident = self.runner.max_resident
        log.info("memory for %d requests of %d s; steps by rows: %s", max_resident, RESIDENT_SECONDS, steps)
        return Limits(max_num_seqs=max_useful_rows(seconds), max_resident=max_resident)

    @torch.inference_mode()
    def prepare(self, request: SpeechRequest, codes: bytes, reference: bytes | None) -> Prepared:
        with self._prepare_recorder.on_stream():
            prepared = self._prompter.prepare(request, codes, reference)
        self._prepare_recorder.record_event()()
        return prepared

    @torch.inference_mode()
    def admit(self, prepared: Sequence[Prepared]) -> None:
        with self._recorder.on_stream():
            try:
                requests = [self._allocate(each) for each in prepared]
            except EngineFull:
                for each in prepared:
                    self.release(each.request.id)
                raise
            self.runner.prefill(requests)

    def release(self, request_id: str) -> None:
        row = self._rows.pop(request_id, None)
        if row is not None:
            # Enqueued work may still use the memory: whatever follows runs after that.
            self.allocator.free(row.allocation)

    @torch.inference_mode()
    def launch(self, ids: Sequence[str]) -> Step:
        chosen: list[str] = []
        full: list[str] = []
        for request_id in ids:
            row = self._rows[request_id]
            if row.stopped or row.full:
                continue
            if row.allocation.frames >= row.max_frames:
                full.append(request_id)
                row.full = True
            elif self.allocator.grow(row.allocation):
                chosen.append(request_id)
        if not chosen:
            return Step([], [], [], full, 0, None)
        rows = [self._rows[request_id] for request_id in chosen]
        frames = [row.allocation.frames for row in rows]
        ring, wait = self.runner.decode([row.allocation for row in rows])
        return Step(chosen, rows, frames, full, ring, wait)

    def read(self, step: Step) -> dict[str, bytes | End]:
        results: dict[str, bytes | End] = {}
        for request_id in step.full:
            full = self._rows.get(request_id)
            # A step that was read since may have sampled EOS as its last frame.
            if full is not None and full.full and not full.stopped:
                results[request_id] = End(EndReason.LENGTH)
        if step.wait is None:
            return results
        step.wait()
        state = self.runner.state
        frames = state.host_codes[step.ring].numpy()[: len(step.ids)]
        marks = state.read_marks([row.allocation.slot for row in step.rows], step.frames)
        sampled = with_marks(frame_results(frames, self._config.codec_eos_token_id), marks)
        for request_id, row, result in zip(step.ids, step.rows, sampled, strict=True):
            if not row.stopped and self._rows.get(request_id) is row:
                row.stopped = isinstance(result, End)
                results[request_id] = result
        return results

    def _allocate(self, prepared: Prepared) -> NewRequest:
        """Allocates a request's memory and writes its inputs. Raises `EngineFull`."""
        request, prompt, embeds = prepared.request, prepared.prompt, prepared.prompt.embeds
        self.release(request.id)
        if prepared.frames:
            rows: Tensor = torch.stack([prompt.text_row(frame) for frame in range(prepared.frames)])
            embeds = torch.cat((embeds, self._talker.embed_frame(prepared.codes) + rows))
        allocation = self.allocator.allocate(len(embeds), len(prompt.text_rows), prepared.frames)
        if allocation is None:
            raise EngineFull
        self.runner.write_request(allocation, prompt, prepared.codes, request.sampling, request.seed)
        self._recorder.record_stream(embeds)
        self._rows[request.id] = _Row(allocation=allocation, max_frames=prepared.max_frames)
        return NewRequest(allocation, embeds)
