"""Device memory of the codec on a GPU: activation buffers, the state of all streams, the workspace of a call."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from syrinx_stages.codec.cuda.tiles import SPLIT_K_TILE_ELEMENTS, max_split_k_programs
from syrinx_stages.codec.cuda.weights import CodecWeights
from syrinx_stages.kernels import codec_frames
from syrinx_stages.kernels.gpu import gpu_of
from syrinx_stages.kernels.split_k import SplitKWorkspace

ROW_COLUMNS: int = codec_frames.ROW_COLUMNS.value
"""int32 elements of the row table per row of a call."""


@dataclass(frozen=True)
class Buffer:
    """An activation buffer [rows, tail + frames * rate, channels]; it starts with the tail of the previous call."""

    rate: int
    channels: int
    tail: int = 0
    state_offset: int = 0
    """Where the tail is stored in a stream's state, in elements."""

    def elements(self, frames: int) -> int:
        """Returns the elements of one row."""
        return (self.tail + frames * self.rate) * self.channels


def buffer_layout(weights: CodecWeights) -> dict[str, Buffer]:
    """Returns all activation buffers by name."""
    layout: dict[str, Buffer] = {}
    state_offset = 0

    def add(name: str, rate: int, channels: int, tail: int = 0) -> None:
        nonlocal state_offset
        layout[name] = Buffer(rate, channels, tail, state_offset)
        state_offset += tail * channels

    layer = weights.layers[0]
    add("codes", 1, weights.pre_conv.in_channels, weights.pre_conv.tail)
    add("latent", 1, weights.pre_conv.outputs)
    add("hidden", 1, weights.input.outputs)
    add("qkv", 1, layer.qkv.outputs)
    add("attended", 1, layer.out.in_channels)
    add("gated", 1, layer.gate_up.outputs)
    rate = 1
    for i, stage in enumerate(weights.upsample):
        add(f"up{i}", rate, stage.up.in_channels, stage.up.tail)
        rate *= stage.up.upsampling
        add(f"depthwise{i}", rate, stage.up.out_channels, stage.depthwise.shape[0] - 1)
        add(f"normed{i}", rate, stage.up.out_channels)
        add(f"expanded{i}", rate, stage.expand.outputs)
    add("first", rate, weights.first.in_channels, weights.first.tail)
    for i, block in enumerate(weights.blocks):
        add(f"block{i}", rate, block.up.in_channels, block.up.tail)
        rate *= block.up.upsampling
        add(f"residual{i}", rate, block.up.out_channels)
        add(f"inner{i}", rate, block.up.out_channels)
        for j, unit in enumerate(block.units):
            add(f"unit{i}.{j}", rate, block.up.out_channels, unit.conv.tail)
    add("waveform", rate, weights.waveform.shape[1], weights.waveform.shape[0] - 1)
    return layout


def stream_elements(weights: CodecWeights, max_frames: int) -> int:
    """Returns the size of a stream's state, in elements. max_frames: of one row in a call."""
    tails = sum(buffer.tail * buffer.channels for buffer in buffer_layout(weights).values())
    _, _, *cache = _cache_shape(weights, 1, max_frames)
    return tails + weights.config.num_hidden_layers * math.prod(cache)


def _cache_shape(weights: CodecWeights, max_streams: int, max_frames: int) -> tuple[int, ...]:
    """Returns [layers, slots, key or value, ring buffer length, key heads * head size]."""
    config = weights.config
    length = config.sliding_window - 1 + max_frames
    return config.num_hidden_layers, max_streams, 2, length, config.num_key_value_heads * config.head_size


class StreamStates:
    """Allocates a slot to each stream and holds all slots' state. Slots are never cleared: see ROW_PAST_FRAMES."""

    def __init__(self, weights: CodecWeights, max_streams: int, max_frames: int) -> None:
        """max_frames: of one row in a call."""
        self.layout = buffer_layout(weights)
        width = sum(buffer.tail * buffer.channels for buffer in self.layout.values())
        self.tails = torch.empty(max_streams, width, dtype=weights.dtype, device=weights.device)
        """[slots, width]: the tails of all buffers."""
        shape = _cache_shape(weights, max_streams, max_frames)
        self.kv_caches = torch.empty(shape, dtype=weights.dtype, device=weights.device)
        """[layers, slots, key or value, ring buffer length, key heads * head size]."""
        self._free = list(range(max_streams))
        self._slots: dict[str, int] = {}
        self._frames: dict[str, int] = {}

    def allocate(self, request_id: str) -> None:
        """Starts a new stream, in the request's previous slot if it has one."""
        if request_id not in self._slots:
            self._slots[request_id] = self._free.pop()
        self._frames[request_id] = 0

    def free(self, request_id: str) -> None:
        """Frees a request's slot; ignores unknown ids."""
        if request_id in self._slots:
            self._free.append(self._slots.pop(request_id))
            del self._frames[request_id]

    def advance(self, request_id: str, frames: int) -> tuple[int, int]:
        """Returns the slot and the frames launched before, and counts `frames` more as launched."""
        past_frames = self._frames[request_id]
        self._frames[request_id] = past_frames + frames
        return self._slots[request_id], past_frames


class WorkspaceSize(NamedTuple):
    """The size of each tensor of a `Workspace`, in elements."""

    activations: int
    upload: int
    """int32: the row table, then the codes, two per element."""
    pcm: int

    def bytes(self, dtype: torch.dtype) -> int:
        """Returns the total size in bytes; dtype: of the activations."""
        return self.activations * dtype.itemsize + 4 * self.upload + 2 * self.pcm

    def fits_in(self, other: WorkspaceSize) -> bool:
        """Returns whether no tensor is larger than the other's."""
        return all(need <= size for need, size in zip(self, other, strict=True))


def workspace_size(weights: CodecWeights, layout: dict[str, Buffer], rows: int, frames: int) -> WorkspaceSize:
    """Returns what a call of this shape needs."""
    return WorkspaceSize(
        activations=rows * sum(buffer.elements(frames) for buffer in layout.values()),
        upload=rows * ROW_COLUMNS + -(-rows * frames * weights.config.num_quantizers // 2),
        pcm=rows * frames * weights.config.samples_per_frame,
    )


def split_k_workspace(device: torch.device) -> SplitKWorkspace:
    """Returns scratch memory that is large enough for any product with split_k > 1."""
    programs = max_split_k_programs(gpu_of(device))
    return SplitKWorkspace(
        torch.empty(programs * SPLIT_K_TILE_ELEMENTS, dtype=torch.float32, device=device),
        torch.zeros(programs, dtype=torch.int32, device=device),
    )


class Workspace:
    """Memory of one call. Calls of all shapes share a workspace, because only one runs at a time."""

    def __init__(self, size: WorkspaceSize, split_k: SplitKWorkspace, dtype: torch.dtype, device: torch.device) -> None:
        self.size = size
        self.split_k = split_k
        self.activations = torch.empty(size.activations, dtype=dtype, device=device)
        """All activation buffers, one after the other."""
        self.upload = torch.zeros(size.upload, dtype=torch.int32, device=device)
        """[row table, codes] of the call; see `WorkspaceSize`."""
        self.pcm = torch.empty(size.pcm, dtype=torch.int16, device=device)
        """[rows, frames * samples per frame]."""
