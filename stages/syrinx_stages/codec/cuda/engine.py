"""The GPU codec engine: a call is two copies and one CUDA graph, enqueued without waiting for the device.

Read `memory` (slots, buffers), `weights` and `forward` (the kernels of a call) first.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from syrinx_stages.codec.cuda.forward import ForwardPass
from syrinx_stages.codec.cuda.memory import (
    ROW_COLUMNS,
    StreamStates,
    Workspace,
    WorkspaceSize,
    buffer_layout,
    split_k_workspace,
    stream_elements,
    workspace_size,
)
from syrinx_stages.codec.cuda.weights import CodecWeights
from syrinx_stages.codec.engine import CaptureCost
from syrinx_stages.contract.settings import MAX_ROWS, CapturePair
from syrinx_stages.kernels.codec_frames import ROW_NEW_FRAMES, ROW_PAST_FRAMES, ROW_SLOT
from syrinx_stages.kernels.recorder import GraphRecorder, Work
from syrinx_stages.model.codec.decoder import CodecDecoder
from syrinx_stages.runtime.gpu_memory import free_share, refuse_out_of_memory
from syrinx_stages.runtime.requests.engine import Limits
from syrinx_stages.scheduling.traits import GPU

MAX_FRAMES = 64
"""Maximum frames of one row in a call, as in the settings."""

WARM_UP_FRAMES = (1, 2, 4, 6, 8, 12, 25)
"""Together with `_warm_up_rows` these cover nearly all kernels of any shape."""

MAX_UNCAPTURED = 64
"""Forward passes of uncaptured shapes kept for reuse."""


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
    buffers: _HostBuffers


class CudaCodecEngine:
    """A `CodecEngine` for up to `max_resident` streams.

    Calls of all shapes share one workspace, that of the largest shape. When a larger one replaces it, existing graphs
    keep the workspace whose addresses they contain.
    """

    depth = GPU.depth
    isolates_rows = False
    prefill = None
    overhead_frames = GPU.overhead_frames
    """On an H200 a call takes 0.45 ms, plus 0.0125 ms per frame."""

    def __init__(
        self,
        decoder: CodecDecoder,
        max_resident: int,
        device: torch.device,
        dtype: torch.dtype = torch.float16,
        memory_fraction: float = 1.0,
    ) -> None:
        """Copies the decoder's weights to `device` in `dtype`. Raises `StartError` if its memory does not suffice.

        Holds fewer than `max_resident` streams if half of a fraction of the device's memory has no room for them.
        """
        # Higher priority than a talker in the same process: calls are short, and a listener waits for the audio.
        self._recorder = GraphRecorder(device, priority=-1)
        with self._recorder.on_stream():
            self._weights = CodecWeights(decoder, device, dtype)
            max_resident = min(max_resident, _streams_in(memory_fraction, self._weights))
            self.states = StreamStates(self._weights, max_resident, MAX_FRAMES)
            self.split_k = split_k_workspace(device)
        self.workspace: Workspace | None = None
        self._graphs: dict[CapturePair, tuple[Work, ForwardPass]] = {}
        self._uncaptured: OrderedDict[CapturePair, ForwardPass] = OrderedDict()
        self._max_resident = max_resident
        self.limits = Limits(max_resident=max_resident)
        self._codebooks, self.codebook_size = decoder.config.num_quantizers, decoder.config.codebook_size
        self._samples = decoder.config.samples_per_frame
        self._idle_buffers: deque[_HostBuffers] = deque()
        self.capture_costs: dict[CapturePair, CaptureCost] = {}

    @property
    def captured(self) -> frozenset[CapturePair]:
        return frozenset(self._graphs)

    def warm_up(self) -> None:
        """Compiles the kernels of calls of any size, measures the cost of a capture and runs a call."""
        self._compile()
        with refuse_out_of_memory(self._weights.device, "the buffers of a codec call"):
            self.capture((1, 1))
        self.free_shapes([(1, 1)])
        self.open("")
        self.read(self.launch([""], [[bytes(2 * self._codebooks)]], (1, 1)))
        self.release("")

    def _compile(self) -> None:
        with self._recorder.on_stream():
            # Compilation needs no memory, only the types of the arguments.
            workspace = self._new_workspace(WorkspaceSize(1, 1, 1))
            passes = [
                ForwardPass(self._weights, self.states, workspace, rows, frames)
                for rows in _warm_up_rows(self._max_resident)
                for frames in WARM_UP_FRAMES
            ]
        launches = {launch.compile_key(): launch for forward in passes for launch in forward.launches}
        self._recorder.compile(list(launches.values()))

    def capture(self, shape: CapturePair) -> None:
        started = time.monotonic()
        with self._recorder.on_stream():
            forward = self._forward_pass(shape)
            # Capturing runs the forward pass once. Padding rows only, so that no stream's state changes.
            forward.upload.zero_()
        self._graphs[shape] = (self._recorder.capture_graph(forward), forward)
        self._uncaptured.pop(shape, None)
        # Pinning memory waits for the device, so it must not happen in a launch.
        self._idle_buffers.extend([self._host_buffers(forward.size) for _ in range(self.depth)])
        self.capture_costs[shape] = CaptureCost(time.monotonic() - started, forward.size.bytes(self._weights.dtype))

    def free_shapes(self, shapes: Iterable[CapturePair]) -> None:
        for shape in shapes:
            self._graphs.pop(shape, None)
        workspaces = [forward.workspace for _, forward in self._graphs.values()]
        if all(workspace is not self.workspace for workspace in workspaces):
            self._uncaptured.clear()
            self.workspace = max(workspaces, key=lambda workspace: workspace.size.activations, default=None)

    def open(self, request_id: str) -> None:
        self.states.allocate(request_id)

    def release(self, request_id: str) -> None:
        self.states.free(request_id)

    def launch(self, ids: Sequence[str], codes: Sequence[Sequence[bytes]], shape: CapturePair) -> Call:
        rows, frames = shape
        run, forward = self.get(shape)
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

    def get(self, shape: CapturePair) -> tuple[Work, ForwardPass]:
        """Returns the function that runs a call of this shape, and its forward pass."""
        if shape in self._graphs:
            return self._graphs[shape]
        with self._recorder.on_stream():
            forward = self._forward_pass(shape)
        return forward, forward

    def _forward_pass(self, shape: CapturePair) -> ForwardPass:
        """Returns an uncaptured forward pass in the shared workspace."""
        forward = self._uncaptured.pop(shape, None)
        if forward is None:
            size = workspace_size(self._weights, self.states.layout, *shape)
            forward = ForwardPass(self._weights, self.states, self._fitting_workspace(size), *shape)
        self._uncaptured[shape] = forward
        while len(self._uncaptured) > MAX_UNCAPTURED:
            self._uncaptured.popitem(last=False)
        return forward

    def _fitting_workspace(self, size: WorkspaceSize) -> Workspace:
        """Returns the shared workspace, replaced by a larger one if `size` does not fit."""
        if self.workspace is None or not size.fits_in(self.workspace.size):
            if self.workspace is not None:
                size = WorkspaceSize(*map(max, size, self.workspace.size))
            # Freed before the allocation, to limit the peak.
            self._uncaptured.clear()
            self.workspace = None
            self.workspace = self._new_workspace(size)
        return self.workspace

    def _new_workspace(self, size: WorkspaceSize) -> Workspace:
        return Workspace(size, self.split_k, self._weights.dtype, self._weights.device)

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


def _streams_in(memory_fraction: float, weights: CodecWeights) -> int:
    """Returns how many streams half of an engine's share of the memory holds; calls need the other half.

    Raises `StartError` if the share is too small for any call.
    """
    if weights.device.type != "cuda":
        return MAX_ROWS
    stream = stream_elements(weights, MAX_FRAMES) * weights.dtype.itemsize
    call = workspace_size(weights, buffer_layout(weights), 1, MAX_FRAMES).bytes(weights.dtype)
    return free_share(weights.device, memory_fraction, 2 * max(stream, call), "the codec's streams") // 2 // stream


def _warm_up_rows(max_rows: int) -> list[int]:
    """Returns the powers of two, and three times the powers of two, up to `max_rows`."""
    return sorted(n << power for n in (1, 3) for power in range(max_rows.bit_length()) if n << power <= max_rows)
