"""The decoder's forward pass for one call shape (rows, frames), as a list of kernel launches over fixed memory.

Every buffer that a convolution reads starts with the tail of the previous call. The first launch loads the tails from
the streams' slots and the last one stores the new ones, so the launches in between do not depend on the streams.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from syrinx_stages.codec.cuda.memory import ROW_COLUMNS, StreamStates, Workspace, workspace_size
from syrinx_stages.codec.cuda.tiles import conv_tile, residual_unit_tile
from syrinx_stages.codec.cuda.weights import CodecWeights, Conv, ResidualUnit, TransformerLayer, UpsampleStage
from syrinx_stages.kernels import codec_conv, codec_frames
from syrinx_stages.kernels.gpu import gpu_of
from syrinx_stages.kernels.launch import INTERPRETED, launch, supports_pdl

COPY_BLOCK = 2048

WAVEFORM_BLOCK = 32


@dataclass(frozen=True)
class Launch:
    """One kernel launch with its arguments by name; those in upper case are compile-time constants."""

    name: str
    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    options: dict[str, Any]

    def __call__(self) -> None:
        """Enqueues the kernel on the current stream."""
        launch(self.kernel, self.grid, **self.arguments, **self.options)

    def compile_key(self) -> object:
        """Returns a value that is equal for launches of the same compiled kernel."""
        constants = tuple((name, value if name.isupper() else value is None) for name, value in self.arguments.items())
        return self.kernel, constants, tuple(self.options.items())


class ForwardPass:
    """Decodes `frames` frames of `rows` rows from `upload` to `pcm`. Buffer names: see `memory.buffer_layout`."""

    def __init__(
        self, weights: CodecWeights, states: StreamStates, workspace: Workspace, rows: int, frames: int
    ) -> None:
        self.workspace = workspace
        self.size = workspace_size(weights, states.layout, rows, frames)
        self.upload = workspace.upload[: self.size.upload]
        """Input: the row table, then the codes."""
        self.pcm = workspace.pcm[: self.size.pcm]
        """Output [rows, frames * samples per frame], flat."""
        self._weights, self._states, self._layout = weights, states, states.layout
        self._rows, self._frames = rows, frames
        self._gpu = gpu_of(weights.device)
        self._offsets: dict[str, int] = {}
        offset = 0
        for name, buffer in self._layout.items():
            self._offsets[name] = offset
            offset += rows * buffer.elements(frames)
        table_size = rows * ROW_COLUMNS
        self._row_table = workspace.upload[:table_size]
        self._codes = workspace.upload[table_size:].view(torch.int16)
        self._precision = "ieee" if weights.dtype == torch.float32 else "tf32"
        self._segments = self._state_segments()
        self.launches: list[Launch] = []
        self._build()

    def __call__(self) -> None:
        """Enqueues all launches on the current stream."""
        for each in self.launches:
            each()

    # Buffers --------------------------------------------------------------------------------------------------

    def _buffer(self, name: str | None) -> Tensor | None:
        return None if name is None else self.workspace.activations[self._offsets[name] :]

    def _tail(self, name: str | None) -> int:
        return 0 if name is None else self._layout[name].tail

    def _positions(self, name: str) -> int:
        return self._rows * self._frames * self._layout[name].rate

    def _state_segments(self) -> Tensor:
        """Returns the segment table that `codec_frames.copy_state` reads."""
        segments = []
        for name, buffer in self._layout.items():
            size = buffer.tail * buffer.channels
            row_stride, frame_stride = buffer.elements(self._frames), buffer.rate * buffer.channels
            for start in range(0, size, COPY_BLOCK):
                length = min(COPY_BLOCK, size - start)
                source, target = buffer.state_offset + start, self._offsets[name] + start
                segments.append((source, length, target, row_stride, frame_stride))
        return torch.tensor(segments, dtype=torch.int64).to(self._weights.device)

    # Launches -------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        weights = self._weights
        self._copy_state("load_state", store=False)
        self._embed_codes()
        self._conv("pre_conv", weights.pre_conv, "codes", out="latent")
        self._conv("input", weights.input, "latent", out="hidden")
        for i, layer in enumerate(weights.layers):
            self._layer(i, layer)
        outputs = [f"up{i}" for i in range(len(weights.upsample))] + ["first"]
        self._conv("output", weights.output, "hidden", out=outputs[0])
        for i, stage in enumerate(weights.upsample):
            self._upsample_stage(i, stage, outputs[i + 1])
        self._conv("first", weights.first, "first", snake_out="block0")
        outputs = [f"block{i}" for i in range(1, len(weights.blocks))] + ["waveform"]
        for i, block in enumerate(weights.blocks):
            residual = f"residual{i}"
            units = [f"unit{i}.{j}" for j in range(len(block.units))]
            self._conv(f"block{i}", block.up, f"block{i}", out=residual, snake_out=units[0])
            for unit, name, snake_out in zip(block.units, units, [*units[1:], outputs[i]], strict=True):
                # Nothing reads the residual after the last unit.
                self._residual_unit(
                    name, unit, residual, f"inner{i}", None if name == units[-1] else residual, snake_out
                )
        self._waveform()
        self._copy_state("store_state", store=True)

    def _add(
        self,
        name: str,
        kernel: Any,
        grid: tuple[int, ...],
        *,
        num_warps: int = 4,
        num_stages: int = 3,
        **arguments: Any,
    ) -> None:
        # With more blocks than fit at once, early blocks of the next kernel would only take up multiprocessors.
        pdl = supports_pdl(self._weights.device) and math.prod(grid) <= 2 * self._gpu.multiprocessors
        options = {"num_warps": num_warps, "num_stages": num_stages, "launch_pdl": pdl}
        self.launches.append(Launch(name, kernel, grid, {**arguments, "PDL": pdl}, {} if INTERPRETED else options))

    def _copy_state(self, name: str, *, store: bool) -> None:
        self._add(
            name, codec_frames.copy_state, (len(self._segments), self._rows), num_warps=2,
            state=self._states.tails, buffers=self.workspace.activations, segments=self._segments,
            row_table=self._row_table, STATE_WIDTH=self._states.tails.shape[1], BLOCK=COPY_BLOCK, STORE=store,
        )  # fmt: skip

    def _embed_codes(self) -> None:
        config, codebooks = self._weights.config, self._weights.codebooks
        channels = codebooks.shape[1]
        block = min(512, triton.next_power_of_2(channels))
        self._add(
            "embed_codes", codec_frames.embed_codes, (self._rows * self._frames, triton.cdiv(channels, block)),
            num_warps=8, codes=self._codes, tables=codebooks, out=self._buffer("codes"), frames=self._frames,
            CODEBOOKS=config.num_quantizers, CODEBOOK_SIZE=config.codebook_size, D=channels,
            OUT_TAIL=self._tail("codes"), BLOCK_D=block,
        )  # fmt: skip

    def _conv(
        self,
        name: str,
        conv: Conv,
        x: str,
        *,
        out: str | None = None,
        snake_out: str | None = None,
        residual: str | None = None,
    ) -> None:
        """Adds `out` = conv(x) + residual and `snake_out` = SnakeBeta of the same."""
        frequency, magnitude = conv.snake or (None, None)
        positions = self._positions(x)
        tile = conv_tile(conv, positions, self._gpu)
        split_k = self.workspace.split_k
        self._add(
            name, codec_conv.causal_conv, (tile.count(positions, conv.outputs), tile.split_k),
            num_warps=tile.num_warps, num_stages=tile.num_stages,
            x=self._buffer(x), weight=conv.weight, bias=conv.bias, residual=self._buffer(residual),
            out=self._buffer(out), snake_out=self._buffer(snake_out), frequency=frequency, magnitude=magnitude,
            partial_sums=split_k.partial_sums, counters=split_k.counters,
            row_table=self._row_table, num_positions=positions, positions_per_row=positions // self._rows,
            frames=self._frames, eps=self._weights.config.rms_norm_eps,
            dilation=conv.dilation, in_tail=self._tail(x), residual_tail=self._tail(residual),
            out_tail=self._tail(out), snake_tail=self._tail(snake_out),
            IN_CHANNELS=conv.in_channels, N=conv.outputs, OUT_CHANNELS=conv.out_channels, TAPS=conv.taps,
            NORM=conv.norm, GATED=conv.gated, GELU=conv.gelu, PRECISION=self._precision,
            BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, BLOCK_K=tile.block_k, SPLIT_K=tile.split_k,
        )  # fmt: skip

    def _layer(self, index: int, layer: TransformerLayer) -> None:
        config = self._weights.config
        self._conv(f"layer{index}.qkv", layer.qkv, "hidden", out="qkv")
        self._add(
            f"layer{index}.attention", codec_frames.sliding_window_attention, (self._rows, config.num_key_value_heads),
            qkv=self._buffer("qkv"), kv_cache=self._states.kv_caches[index], row_table=self._row_table,
            inverse_frequencies=self._weights.inverse_frequencies, out=self._buffer("attended"),
            frames=self._frames, scale=config.head_size**-0.5,
            HEADS=config.num_attention_heads, KV_HEADS=config.num_key_value_heads, HEAD_DIM=config.head_size,
            BLOCK_HALF=max(16, triton.next_power_of_2(config.head_size // 2)),
            BLOCK_DIM=max(16, triton.next_power_of_2(config.head_size)),
            WINDOW=config.sliding_window, CACHE_LENGTH=self._states.kv_caches.shape[3],
            BLOCK_F=max(16, triton.next_power_of_2(self._frames)),
            BLOCK_PAST=max(16, triton.next_power_of_2(config.sliding_window - 1)), PRECISION=self._precision,
        )  # fmt: skip
        self._conv(f"layer{index}.out", layer.out, "attended", out="hidden", residual="hidden")
        self._conv(f"layer{index}.gate_up", layer.gate_up, "hidden", out="gated")
        self._conv(f"layer{index}.down", layer.down, "gated", out="hidden", residual="hidden")

    def _upsample_stage(self, index: int, stage: UpsampleStage, out: str) -> None:
        depthwise, normed, expanded = f"depthwise{index}", f"normed{index}", f"expanded{index}"
        channels = stage.up.out_channels
        self._conv(f"up{index}", stage.up, f"up{index}", out=depthwise)
        positions = self._positions(depthwise)
        self._add(
            depthwise, codec_frames.depthwise_conv_norm, (positions,), num_warps=8,
            x=self._buffer(depthwise), weight=stage.depthwise, bias=stage.depthwise_bias, out=self._buffer(normed),
            positions_per_row=positions // self._rows, eps=stage.eps,
            C=channels, REAL_CHANNELS=self._weights.config.latent_dim, TAPS=stage.depthwise.shape[0],
            BLOCK_C=triton.next_power_of_2(channels),
        )  # fmt: skip
        self._conv(expanded, stage.expand, normed, out=expanded)
        self._conv(f"project{index}", stage.project, expanded, out=out, residual=depthwise)

    def _residual_unit(
        self, name: str, unit: ResidualUnit, residual: str, inner: str, out: str | None, snake_out: str
    ) -> None:
        """Adds a unit that reads its buffer `name`: one fused kernel, or two convolutions through `inner`."""
        positions, conv = self._positions(residual), unit.conv
        tile = residual_unit_tile(conv, positions, self._gpu)
        if tile is None:
            self._conv(f"{name}.conv", conv, name, snake_out=inner)
            self._conv(f"{name}.point", unit.point, inner, out=out, snake_out=snake_out, residual=residual)
            return
        assert conv.snake and unit.point.snake
        channels = conv.outputs
        low = 1 << (channels.bit_length() - 1)
        self._add(
            name, codec_conv.residual_unit, (tile.count(positions, channels),),
            num_warps=tile.num_warps, num_stages=tile.num_stages,
            x=self._buffer(name), weight=conv.weight, bias=conv.bias, frequency=conv.snake[0],
            magnitude=conv.snake[1], point_weight=unit.point.weight, point_bias=unit.point.bias,
            residual=self._buffer(residual), out=self._buffer(out), snake_out=self._buffer(snake_out),
            out_frequency=unit.point.snake[0], out_magnitude=unit.point.snake[1],
            row_table=self._row_table, num_positions=positions, positions_per_row=positions // self._rows,
            frames=self._frames, dilation=conv.dilation, in_tail=self._tail(name), snake_tail=self._tail(snake_out),
            C=channels, C_LOW=low, C_HIGH=channels - low, TAPS=conv.taps, PRECISION=self._precision,
            BLOCK_M=tile.block_m, BLOCK_K=tile.block_k,
        )  # fmt: skip

    def _waveform(self) -> None:
        weights = self._weights
        taps, channels = weights.waveform.shape
        positions = self._positions("waveform")
        self._add(
            "waveform", codec_frames.waveform_conv, (triton.cdiv(positions, WAVEFORM_BLOCK),),
            x=self._buffer("waveform"), weight=weights.waveform, bias=weights.waveform_bias, pcm=self.pcm,
            row_table=self._row_table, num_positions=positions, positions_per_row=positions // self._rows,
            frames=self._frames,
            C=channels, TAPS=taps, BLOCK_M=WAVEFORM_BLOCK, BLOCK_C=triton.next_power_of_2(channels),
        )  # fmt: skip
