"""The GPU codec engine: a call is two copies and one CUDA graph, enqueued without waiting for the device.

Read in this order: `memory` (slots, buffers), `weights`, `forward` (the kernels of a call), `graphs` (their capture).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from syrinx_stages.codec.engine import CaptureCost, split_frames
from syrinx_stages.codec.graphs import GraphCache
from syrinx_stages.codec.memory import ROW_COLUMNS, StreamStates, WorkspaceSize
from syrinx_stages.codec.weights import CodecWeights
from syrinx_stages.contract.settings import CapturePair
from syrinx_stages.kernels.codec_frames import ROW_NEW_FRAMES, ROW_PAST_FRAMES, ROW_SLOT
from syrinx_stages.kernels.recorder import GraphRecorder, Work
from syrinx_stages.model.codec_decoder import CodecDecoder

MAX_FRAMES = 64
"""Maximum frames of one row in a call, as in the settings."""

WARM_UP_FRAMES = (1, 2, 4, 6, 8, 12, 25)
"""Together with `_warm_up_rows` these cover nearly all kernels of any shape."""


class _HostBuffers(NamedTuple):
    """Pinned memory of one call."""

    upload: Tensor
    pcm: Tensor


class Call(NamedTuple):
    """A launched call."""

    wait: Work
    pcm: Tensor
    """[rows, frames * samples per frame] int16, valid after `wait`."""
    new_frames: tuple[int, ...]
    """Frames of each request."""
    buffers: _HostBuffers


class CudaCodecEngine:
    """A `CodecEngine` for up to `max_resident` streams."""

    depth = 2
    isolates_rows = False
    overhead_frames = 36
    """On an H200 a call takes 0.45 ms, plus 0.0125 ms per frame."""

    def __init__(
        self, decoder: CodecDecoder, max_resident: int, device: torch.device, dtype: torch.dtype = torch.float16
    ) -> None:
        """Copies the decoder's weights to `device` in `dtype`."""
        # Higher priority than a talker in the same process: calls are short, and a listener waits for the audio.
        self._recorder = GraphRecorder(device, priority=-1)
        with self._recorder.on_stream():
            weights = CodecWeights(decoder, device, dtype)
            self.states = StreamStates(weights, max_resident, MAX_FRAMES)
            self.graphs = GraphCache(weights, self.states, self._recorder)
        self._dtype = dtype
        self._max_resident = max_resident
        self._codebooks, self._codebook_size = decoder.config.num_quantizers, decoder.config.codebook_size
        self._samples = decoder.config.samples_per_frame
        self._idle_buffers: deque[_HostBuffers] = deque()
        self.capture_costs: dict[CapturePair, CaptureCost] = {}

    @property
    def captured(self) -> frozenset[CapturePair]:
        return self.graphs.captured

    def warm_up(self) -> None:
        """Compiles the kernels of calls of any size, measures the cost of a capture and runs a call."""
        self.graphs.compile((rows, frames) for rows in _warm_up_rows(self._max_resident) for frames in WARM_UP_FRAMES)
        self.capture((1, 1))
        self.free_shapes([(1, 1)])
        self.open("")
        self.read(self.launch([""], [[bytes(2 * self._codebooks)]], (1, 1)))
        self.release("")

    def capture(self, shape: CapturePair) -> None:
        """Captures a CUDA graph of calls of this shape. Must not be called while a call is in flight."""
        started = time.monotonic()
        forward = self.graphs.capture(shape)
        # Pinning memory waits for the device, so it must not happen in a launch.
        self._idle_buffers.extend([self._host_buffers(forward.size) for _ in range(self.depth)])
        self.capture_costs[shape] = CaptureCost(time.monotonic() - started, forward.size.bytes(self._dtype))

    def free_shapes(self, shapes: Iterable[CapturePair]) -> None:
        self.graphs.free(shapes)

    def split(self, codes: bytes) -> list[bytes]:
        return split_frames(codes, self._codebooks, self._codebook_size)

    def open(self, request_id: str) -> None:
        self.states.allocate(request_id)

    def release(self, request_id: str) -> None:
        self.states.free(request_id)

    def launch(self, ids: Sequence[str], codes: Sequence[Sequence[bytes]], shape: CapturePair) -> Call:
        rows, frames = shape
        run, forward = self.graphs.get(shape)
        buffers = self._host_buffers(forward.size)
        upload, pcm = buffers.upload[: forward.size.upload], buffers.pcm[: forward.size.pcm]
        self._write_upload(upload.numpy(), ids, codes, rows, frames)
        with self._recorder.on_stream():
            forward.upload.copy_(upload, non_blocking=True)
            run()
            pcm.copy_(forward.pcm, non_blocking=True)
            wait = self._recorder.record_event()
        return Call(wait, pcm.view(rows, -1), tuple(len(items) for items in codes), buffers)

    def read(self, call: Call) -> list[bytes]:
        call.wait()
        samples = call.pcm.numpy()
        pcm = [samples[row, : count * self._samples].tobytes() for row, count in enumerate(call.new_frames)]
        self._idle_buffers.append(call.buffers)
        return pcm

    def _write_upload(
        self, upload: np.ndarray, ids: Sequence[str], codes: Sequence[Sequence[bytes]], rows: int, frames: int
    ) -> None:
        """Writes the row table and the codes. Padding rows decode no frame; padding frames have codes 0."""
        table_size = rows * ROW_COLUMNS
        table = upload[:table_size].reshape(rows, -1)
        batch = upload[table_size:].view(np.int16)[: rows * frames * self._codebooks]
        batch = batch.reshape(rows, frames, self._codebooks)
        upload[:] = 0
        for row, (request_id, items) in enumerate(zip(ids, codes, strict=True)):
            slot, past_frames = self.states.advance(request_id, len(items))
            table[row, ROW_SLOT.value] = slot
            table[row, ROW_PAST_FRAMES.value] = past_frames
            table[row, ROW_NEW_FRAMES.value] = len(items)
            batch[row, : len(items)] = np.frombuffer(b"".join(items), "<i2").reshape(-1, self._codebooks)

    def _host_buffers(self, size: WorkspaceSize) -> _HostBuffers:
        """Returns pinned memory for a call: the buffers of a previous call if they are large enough."""
        buffers = self._idle_buffers.popleft() if self._idle_buffers else None
        upload, pcm = (len(buffers.upload), len(buffers.pcm)) if buffers else (0, 0)
        if buffers and size.upload <= upload and size.pcm <= pcm:
            return buffers
        zeros = self._recorder.pinned_zeros
        return _HostBuffers(
            zeros(max(upload, size.upload), dtype=torch.int32), zeros(max(pcm, size.pcm), dtype=torch.int16)
        )


def _warm_up_rows(max_rows: int) -> list[int]:
    """Returns the powers of two, and three times the powers of two, up to `max_rows`."""
    return sorted(n << power for n in (1, 3) for power in range(max_rows.bit_length()) if n << power <= max_rows)
