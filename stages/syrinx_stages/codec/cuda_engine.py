"""The codec engine of a GPU: a call is a few copies and one CUDA graph, queued without waiting for anything."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from syrinx_stages.codec.engine import CaptureCost, split_frames
from syrinx_stages.codec.packed import PackedDecoder
from syrinx_stages.codec.program import ROW, Arena, Launch, Memory, Needs, Program, needs, upload_elements
from syrinx_stages.contract.settings import CapturePair
from syrinx_stages.kernels.recorder import Work, graph_recorder
from syrinx_stages.model.codec_decoder import CodecDecoder

MOST_FRAMES = 64
"""Of one row in a call, as the settings allow."""

WARM_FRAMES = (1, 2, 4, 6, 8, 12, 25)
"""With them and the rows of `_warm_rows`, nearly all kernels of any shape are compiled before the first request."""

KEPT = 64
"""Programs of shapes that are not captured, kept to be run again."""


@dataclass
class _Slot:
    """A request's place in the arena."""

    index: int
    frames: int = 0
    """Launched so far. Kernels do not read the slot of a request that has none: nothing has to be cleared."""


@dataclass(frozen=True)
class _Buffers:
    """Host memory of one call in flight."""

    upload: Tensor
    pcm: Tensor


@dataclass(frozen=True)
class Call:
    """A launched call."""

    wait: Work
    pcm: Tensor
    """[rows, frames x samples] int16, once it was waited for."""
    fresh: tuple[int, ...]
    """Frames of each request."""
    buffers: _Buffers


class CudaCodecEngine:
    """A `CodecEngine` for up to `max_resident` streams."""

    depth = 2
    isolates_rows = False
    overhead_frames = 36
    """On an H200 a call takes 0.45 ms, and 0.0125 ms more for each frame."""

    def __init__(
        self, decoder: CodecDecoder, max_resident: int, device: torch.device, kind: torch.dtype = torch.float16
    ) -> None:
        """Takes a copy of the decoder's weights in `kind` to `device`."""
        # Ahead of a talker in the same process: a call is short, and somebody waits for its audio.
        self._recorder = graph_recorder(device, priority=-1)
        self._device, self._kind = device, kind
        with self._recorder.on_stream():
            self._packed = PackedDecoder(decoder, device, kind)
            self._arena = Arena.allocate(self._packed, max_resident, MOST_FRAMES)
        self._max_resident = max_resident
        self._groups = decoder.config.num_quantizers
        self._samples = decoder.config.samples_per_frame
        self._free = list(range(max_resident))
        self._slots: dict[str, _Slot] = {}
        self._memory: Memory | None = None
        self._eager: OrderedDict[CapturePair, Program] = OrderedDict()
        self._graphs: dict[CapturePair, tuple[Work, Program]] = {}
        self.capture_costs: dict[CapturePair, CaptureCost] = {}
        self._idle: deque[_Buffers] = deque()

    @property
    def captured(self) -> frozenset[CapturePair]:
        """The shapes that are ready as graphs."""
        return frozenset(self._graphs)

    def warm_up(self) -> None:
        """Compiles the kernels of calls of any size, learns what a capture costs, and makes a call."""
        shapes = [(count, frames) for count in _warm_rows(self._max_resident) for frames in WARM_FRAMES]
        launches: dict[object, Launch] = {}
        with self._recorder.on_stream():
            memory = Needs(1, 1, 1, 1, 1).allocate(self._kind, self._device)
            for shape in shapes:
                program = Program(self._packed, self._arena, memory, *shape)
                launches.update((launch.compiles(), launch) for launch in program.launches)
        self._recorder.compile(list(launches.values()))
        self.capture((1, 1))
        self.free_shapes([(1, 1)])
        self.open("")
        self.read(self.launch([""], [[bytes(2 * self._groups)]], (1, 1)))
        self.release("")

    def capture(self, shape: CapturePair) -> None:
        """Records a graph of calls of this shape; not while a call is unread."""
        started = time.monotonic()
        with self._recorder.on_stream():
            program = self._program(shape)
            # Padded rows alone: nothing is remembered of the run that comes before the recording.
            program.memory.upload[: upload_elements(self._packed, *shape)].zero_()
        self._graphs[shape] = (self._recorder.capture_graph(program), program)
        self._eager.pop(shape, None)
        # Pinning memory waits for the device: not in a launch.
        self._idle.extend([self._host(shape) for _ in range(self.depth)])
        need = needs(self._packed, *shape)
        self.capture_costs[shape] = CaptureCost(time.monotonic() - started, need.bytes(self._kind))

    def free_shapes(self, shapes: Iterable[CapturePair]) -> None:
        """Frees graphs; not while a call is unread."""
        for shape in shapes:
            self._graphs.pop(shape, None)
        kept = [program.memory for _, program in self._graphs.values()]
        if all(memory is not self._memory for memory in kept):
            self._eager.clear()
            self._memory = max(kept, key=lambda memory: memory.buffers.numel(), default=None)

    def split(self, codes: bytes) -> list[bytes]:
        """Cuts an entry into frames. Raises ValueError for a torn frame or a code the codebooks do not have."""
        return split_frames(codes, self._groups, self._packed.config.codebook_size)

    def open(self, request_id: str) -> None:
        """Gives a request a fresh state; one it had before is thrown away."""
        slot = self._slots.pop(request_id, None)
        self._slots[request_id] = _Slot(self._free.pop() if slot is None else slot.index)

    def release(self, request_id: str) -> None:
        """Frees a request's slot; unknown ids are fine."""
        slot = self._slots.pop(request_id, None)
        if slot is not None:
            self._free.append(slot.index)

    def launch(self, ids: Sequence[str], codes: Sequence[Sequence[bytes]], shape: CapturePair) -> Call:
        """Queues a call; waits for nothing."""
        rows, frames = shape
        work, program = self._graphs.get(shape) or self._eagerly(shape)
        buffers = self._host(shape)
        upload = buffers.upload[: upload_elements(self._packed, rows, frames)]
        self._fill(upload.numpy(), ids, codes, rows, frames)
        samples = rows * frames * self._samples
        memory = program.memory
        with self._recorder.on_stream():
            memory.upload[: len(upload)].copy_(upload, non_blocking=True)
            work()
            buffers.pcm[:samples].copy_(memory.pcm[:samples], non_blocking=True)
            wait = self._recorder.record_event()
        pcm = buffers.pcm[:samples].view(rows, -1)
        return Call(wait, pcm, tuple(len(items) for items in codes), buffers)

    def read(self, call: Call) -> list[bytes]:
        """Waits for a call. 16-bit PCM of each request's frames."""
        call.wait()
        lines = call.pcm.numpy()
        pcm = [lines[row, : fresh * self._samples].tobytes() for row, fresh in enumerate(call.fresh)]
        self._idle.append(call.buffers)
        return pcm

    def _fill(
        self, upload: np.ndarray, ids: Sequence[str], codes: Sequence[Sequence[bytes]], rows: int, frames: int
    ) -> None:
        """What the kernels read of a call. Rows of padding decode no frame; frames of padding have codes 0."""
        table = upload[: rows * ROW].reshape(rows, -1)
        batch = upload[rows * ROW :].view(np.int16)
        batch = batch[: rows * frames * self._groups].reshape(rows, frames, self._groups)
        upload[:] = 0
        for row, (request_id, items) in enumerate(zip(ids, codes, strict=True)):
            slot = self._slots[request_id]
            table[row, :3] = slot.index, slot.frames, len(items)
            batch[row, : len(items)] = np.frombuffer(b"".join(items), "<i2").reshape(-1, self._groups)
            slot.frames += len(items)

    def _eagerly(self, shape: CapturePair) -> tuple[Work, Program]:
        with self._recorder.on_stream():
            program = self._program(shape)
        return program, program

    def _program(self, shape: CapturePair) -> Program:
        """The program of a shape, in the memory of the largest so far."""
        program = self._eager.pop(shape, None)
        if program is None:
            program = Program(self._packed, self._arena, self._room(needs(self._packed, *shape)), *shape)
        self._eager[shape] = program
        while len(self._eager) > KEPT:
            self._eager.popitem(last=False)
        return program

    def _room(self, need: Needs) -> Memory:
        """Memory that holds a program. Where more is needed than before, captured shapes keep what they have."""
        if self._memory is None or not self._memory.holds(need):
            if self._memory is not None:
                need = need.and_what_fits(self._memory)
            self._eager.clear()
            self._memory = None
            self._memory = need.allocate(self._kind, self._device)
        return self._memory

    def _host(self, shape: CapturePair) -> _Buffers:
        """Host memory for a call: what one before has used, if it is large enough."""
        rows, frames = shape
        upload, pcm = upload_elements(self._packed, rows, frames), rows * frames * self._samples
        buffers = self._idle.popleft() if self._idle else None
        if buffers is None:
            return self._new_buffers(upload, pcm)
        if len(buffers.upload) < upload or len(buffers.pcm) < pcm:
            return self._new_buffers(max(upload, len(buffers.upload)), max(pcm, len(buffers.pcm)))
        return buffers

    def _new_buffers(self, upload: int, pcm: int) -> _Buffers:
        pinned = self._recorder.pinned_zeros
        return _Buffers(pinned(upload, dtype=torch.int32), pinned(pcm, dtype=torch.int16))


def _warm_rows(most: int) -> list[int]:
    """The powers of two, and three times these, up to `most`."""
    return sorted(rows << power for rows in (1, 3) for power in range(most.bit_length()) if rows << power <= most)
