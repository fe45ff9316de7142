"""The talker engine for GPUs: CUDA graphs over paged memory. Only `prepare` and `read` wait for the device.

A step is two graphs, enqueued together: the first samples the frame's codes, which can be read as soon as it is done;
the second feeds them to the talker, and gives the host time to enqueue the next step. `ModelRunner` enqueues the work,
`Allocator` assigns the device memory, and the engine keeps each request's state.
"""

import logging
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray
from torch import Tensor

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import End, EndReason, SpeechRequest
from syrinx_stages.kernels.recorder import GraphRecorder, Work
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.config import TalkerConfig
from syrinx_stages.model.streamed_text import StreamedText
from syrinx_stages.runtime.gpu_memory import refuse_out_of_memory
from syrinx_stages.runtime.requests.engine import Limits
from syrinx_stages.scheduling.traits import GPU
from syrinx_stages.talker.cuda.allocation import PAGE_SIZE, Allocation, Allocator
from syrinx_stages.talker.cuda.frame import INPUT_COLUMNS
from syrinx_stages.talker.cuda.model_runner import MAX_PAGES, RESIDENT_SECONDS, ModelRunner, NewRequest
from syrinx_stages.talker.cuda.next_frames import Slots
from syrinx_stages.talker.cuda.packed import pack
from syrinx_stages.talker.engine import EngineFull, frame_results
from syrinx_stages.talker.inputs import NO_CODE, voice_rows
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
    full: Sequence[str]
    """Requests that had all their frames before this step."""
    ring: int
    """The entry of `DeviceState.host_codes` with this step's codes."""
    wait: Work | None
    """Waits for the codes; None if the step has no rows."""


class CudaTalkerEngine:
    """A `TalkerEngine` on a CUDA device. `prepare` may run on any thread."""

    depth = GPU.depth
    isolates_rows = False
    ahead_frames = GPU.ahead_frames
    prompt_rows = GPU.prompt_rows
    text_lookahead = 1
    """A step ends with the input of the next one, which includes the token after the frame."""
    # A burst needs few admissions; a graph holds fewer prompts, and `burst_size` limits their positions.
    prefill_rows = GPU.prefill_rows

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
        self.allocator = Allocator(
            slots=self.runner.max_resident,
            pages=self.runner.state.cache.shape[1] - 1,
            max_pages=MAX_PAGES,
        )
        self._rows: dict[str, _Row] = {}
        self._unfilled: dict[str, NewRequest] = {}
        """Requests whose prompts the next step prefills."""
        self._last_rows = 0
        """Of the last step."""
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
    def prepare(
        self, request: SpeechRequest, codes: bytes, reference: bytes | None, text: StreamedText | None = None
    ) -> Prepared:
        with self._prepare_recorder.on_stream():
            prepared = self._prompter.prepare(request, codes, reference, text=text)
        if codes or reference is not None:
            self._prepare_recorder.record_event()()
        return prepared

    @torch.inference_mode()
    def admit(self, prepared: Sequence[Prepared]) -> None:
        with self._recorder.on_stream():
            try:
                requests = {each.request.id: self._allocate(each) for each in prepared}
            except EngineFull:
                for each in prepared:
                    self.release(each.request.id)
                raise
            self.runner.state.upload()
            self._unfilled |= requests
            if not self.runner.mixes(self._last_rows, list(self._unfilled.values())):
                self._prefill()

    def open_text(self, request: SpeechRequest) -> StreamedText:
        return self._prompter.open_text(request)

    def extend(self, request_id: str, tokens: Sequence[int], ended: bool) -> None:
        # No enqueued step reads these tokens: a frame is launched once the text after it is known.
        slot = self._rows[request_id].allocation.slot
        self.runner.next_frames.add_texts(slot, self._prompter.text_tokens(tokens, ended))

    def release(self, request_id: str) -> None:
        self._unfilled.pop(request_id, None)
        row = self._rows.pop(request_id, None)
        if row is not None:
            # Enqueued work may still use the memory: whatever follows runs after that.
            self.allocator.free(row.allocation)

    @torch.inference_mode()
    def launch(self, ids: Sequence[str]) -> Step:
        next_frames, full = self.runner.next_frames, list[str]()
        rows, slots = self._gather(ids)
        skipped = {index for index in next_frames.due(slots) if not self._renew(ids[index], rows[index], full)}
        if len(skipped) == len(ids):
            return Step([], [], full, 0, None)
        prompts = list(self._unfilled.values())
        if prompts:
            joining = {index for index, request_id in enumerate(ids) if request_id in self._unfilled}
            if self.runner.mixes(len(ids) - len(skipped | joining), prompts):
                skipped |= joining
                self._unfilled.clear()
            else:
                self._prefill()
                prompts = []
        if skipped:
            ids = [request_id for index, request_id in enumerate(ids) if index not in skipped]
            rows, slots = self._gather(ids)
        self._last_rows = len(ids)
        ring, wait = self.runner.decode(slots, prompts)
        return Step(ids, rows, full, ring, wait)

    def _gather(self, ids: Sequence[str]) -> tuple[list[_Row], Slots]:
        rows = [self._rows[request_id] for request_id in ids]
        return rows, np.array([row.allocation.slot for row in rows], np.intp)

    def _renew(self, request_id: str, row: _Row, full: list[str]) -> bool:
        """Prepares a row for its next frame, and most of those after it. Returns False if it gets none now.

        Adds to `full` a request that has all its frames.
        """
        if row.stopped or row.full:
            return False
        next_frames, allocation = self.runner.next_frames, row.allocation
        if next_frames.frame(allocation.slot) >= row.max_frames:
            full.append(request_id)
            row.full = True
            return False
        if not self.allocator.grow(allocation, next_frames.position(allocation.slot) + 1):
            return False
        next_frames.write(allocation, row.max_frames)
        return True

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
        frames = self.runner.state.host_codes[step.ring].numpy()[: len(step.ids)]
        sampled = frame_results(frames, self._config.codec_eos_token_id)
        for request_id, row, result in zip(step.ids, step.rows, sampled, strict=True):
            if not row.stopped and self._rows.get(request_id) is row:
                if isinstance(result, End):
                    row.stopped = True
                    self.runner.next_frames.close(row.allocation.slot)
                results[request_id] = result
        return results

    def _prefill(self) -> None:
        """Prefills what was admitted and not prefilled yet."""
        with self._recorder.on_stream():
            self.runner.prefill(list(self._unfilled.values()))
        self._unfilled.clear()

    def _allocate(self, prepared: Prepared) -> NewRequest:
        """Allocates a request's memory and writes its inputs. Raises `EngineFull`."""
        request, prompt = prepared.request, prepared.prompt
        self.release(request.id)
        allocation = self.allocator.allocate(prepared.positions)
        if allocation is None:
            raise EngineFull
        self.runner.next_frames.open(allocation, prepared.frames, prompt.texts, prompt.pad)
        self.runner.state.write(allocation.slot, request.sampling, request.seed, prepared.codes)
        added = list(voice_rows(self._talker, prompt))
        if prepared.frames:
            added.append((prompt.positions, self._talker.embed_frame(prepared.codes)))
        self._recorder.record_stream(prepared.codes, *(part[1] for part in (prompt.voice, prompt.reference) if part))
        self._rows[request.id] = _Row(allocation=allocation, max_frames=prepared.max_frames)
        return NewRequest(allocation, _inputs(prepared, added), added)


def _inputs(prepared: Prepared, added: Sequence[tuple[int, Tensor]]) -> NDArray[np.int32]:
    """Returns the inputs of a prompt and of the frames after it: [positions, 3], see `embed_prompts`."""
    prompt = prepared.prompt
    inputs = np.zeros((prepared.positions, INPUT_COLUMNS), np.int32)
    inputs[: prompt.positions, :2] = prompt.inputs
    inputs[prompt.positions :, 0] = [prompt.text(frame) for frame in range(prepared.frames)]
    inputs[prompt.positions :, 1] = NO_CODE
    for start, rows in added:
        inputs[start : start + len(rows), 2] = 1
    return inputs
