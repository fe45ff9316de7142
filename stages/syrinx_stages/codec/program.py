"""The decoder as a list of kernel launches over fixed memory, for one shape of call (rows, frames).

Every buffer that a convolution reads begins with the tail of the call before. The first launch brings these from the
rows' slots in the arena and the last one takes the new ones back, so between them nothing knows of requests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from syrinx_stages.codec.packed import PackedBlock, PackedDecoder, PackedLayer, PackedUpsample, Product, Snake
from syrinx_stages.codec.tiles import FILL, Tile, product_tile, unit_tile
from syrinx_stages.kernels import codec_conv, codec_frames
from syrinx_stages.kernels.launch import INTERPRETED, PDL_SUPPORTED, launch

ROW: int = codec_frames.ROW.value
"""Numbers that a call's upload begins with, for each row."""

COPY = 2048
"""Elements of a state row that one block copies."""


@dataclass(frozen=True)
class Buffer:
    """Activations [rows, tail + frames x rate, channels]."""

    name: str
    rate: int
    channels: int
    tail: int = 0
    state: int = 0
    """Where the tail lies in a state row."""

    def elements(self, frames: int) -> int:
        """Of one row."""
        return (self.tail + frames * self.rate) * self.channels


class Buffers:
    """All buffers of a decoder, whatever the shape."""

    def __init__(self, packed: PackedDecoder) -> None:
        self.all: dict[str, Buffer] = {}
        self.width = 0
        for buffer in _buffers(packed):
            tail = buffer.tail * buffer.channels
            self.all[buffer.name] = Buffer(buffer.name, buffer.rate, buffer.channels, buffer.tail, self.width)
            self.width += tail

    def elements(self, rows: int, frames: int) -> int:
        """That all of them take together."""
        return sum(rows * buffer.elements(frames) for buffer in self.all.values())


def _buffers(packed: PackedDecoder) -> Iterator[Buffer]:
    yield Buffer("codes", 1, packed.pre_conv.inner, packed.pre_conv.tail)
    yield Buffer("latent", 1, packed.pre_conv.outer)
    yield Buffer("hidden", 1, packed.input.outer)
    layer = packed.layers[0]
    yield Buffer("qkv", 1, layer.qkv.outer)
    yield Buffer("heard", 1, layer.out.inner)
    yield Buffer("gated", 1, layer.gate_up.outer)
    rate = 1
    for level, stage in enumerate(packed.upsample):
        yield Buffer(f"up{level}", rate, stage.up.inner, stage.up.tail)
        rate *= stage.up.up
        yield Buffer(f"depthwise{level}", rate, stage.up.channels, stage.depthwise.shape[0] - 1)
        yield Buffer(f"normed{level}", rate, stage.up.channels)
        yield Buffer(f"wide{level}", rate, stage.wide.outer)
    yield Buffer("first", rate, packed.first.inner, packed.first.tail)
    for level, block in enumerate(packed.blocks):
        yield Buffer(f"block{level}", rate, block.up.inner, block.up.tail)
        rate *= block.up.up
        yield Buffer(f"sum{level}", rate, block.up.channels)
        yield Buffer(f"inner{level}", rate, block.up.channels)
        for at, unit in enumerate(block.units):
            yield Buffer(f"unit{level}.{at}", rate, block.up.channels, unit.conv.tail)
    yield Buffer("wave", rate, packed.wave.shape[1], packed.wave.shape[0] - 1)


@dataclass(frozen=True)
class Arena:
    """What is remembered of each slot's request."""

    tails: Tensor
    """[slots, width]."""
    rings: Tensor
    """[layers, slots, key or value, ring, key heads x head size]."""

    @staticmethod
    def allocate(packed: PackedDecoder, slots: int, most_frames: int) -> Arena:
        """Room for `slots` requests in calls of up to `most_frames`; left uninitialised."""
        config = packed.config
        like = packed.tables
        ring = config.sliding_window - 1 + most_frames
        heads = config.num_key_value_heads * config.head_size
        return Arena(
            like.new_empty(slots, Buffers(packed).width),
            like.new_empty(config.num_hidden_layers, slots, 2, ring, heads),
        )


@dataclass(frozen=True)
class Memory:
    """What the programs of all shapes share: only one runs at a time."""

    buffers: Tensor
    """[elements] of the decoder's type."""
    partial: Tensor
    """[elements] float32, for products whose sums are split."""
    arrived: Tensor
    """[blocks] int32, zero between launches."""
    upload: Tensor
    """[elements] int32: per row `ROW` numbers, then the codes, two in each."""
    pcm: Tensor
    """[samples] int16."""

    def holds(self, needs: Needs) -> bool:
        """Whether a program with such needs fits."""
        return all(getattr(self, name).numel() >= size for name, size in needs.sizes().items())


@dataclass
class Needs:
    """Elements of each part of `Memory`."""

    buffers: int = 0
    partial: int = 0
    arrived: int = 0
    upload: int = 0
    pcm: int = 0

    def sizes(self) -> dict[str, int]:
        """By name."""
        return vars(self)

    def bytes(self, kind: torch.dtype) -> int:
        """All together."""
        return self.buffers * kind.itemsize + 4 * (self.partial + self.arrived + self.upload) + 2 * self.pcm

    def and_what_fits(self, memory: Memory) -> Needs:
        """The needs of all that fits into `memory`, too."""
        return Needs(**{name: max(size, getattr(memory, name).numel()) for name, size in self.sizes().items()})

    def allocate(self, kind: torch.dtype, device: torch.device) -> Memory:
        """Memory that holds them."""
        return Memory(
            torch.empty(self.buffers, dtype=kind, device=device),
            torch.empty(self.partial, dtype=torch.float32, device=device),
            torch.zeros(self.arrived, dtype=torch.int32, device=device),
            torch.zeros(self.upload, dtype=torch.int32, device=device),
            torch.empty(self.pcm, dtype=torch.int16, device=device),
        )


@dataclass(frozen=True)
class Launch:
    """One kernel launch."""

    name: str
    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    warps: int = 4
    stages: int = 3

    @property
    def dependent(self) -> bool:
        """Whether it starts while the launch before it ends: blocks that would wait for room only take it away."""
        return PDL_SUPPORTED and not INTERPRETED and math.prod(self.grid) <= 2 * FILL

    def __call__(self) -> None:
        """Runs, or enqueues, it."""
        launch(self.kernel, self.grid, *self.arguments, **self._options())

    def compiles(self) -> object:
        """What launches have in common that one compiled kernel does for."""
        absent = tuple(argument is None for argument in self.arguments)
        return self.kernel, tuple(self.constants.items()), self.warps, self.stages, self.dependent, absent

    def _options(self) -> dict[str, Any]:
        constants = {**self.constants, "PDL": self.dependent}
        if INTERPRETED:
            return constants
        return {**constants, "num_warps": self.warps, "num_stages": self.stages, "launch_pdl": self.dependent}


def needs(packed: PackedDecoder, rows: int, frames: int) -> Needs:
    """What a program of this shape takes."""
    need = Needs(
        buffers=Buffers(packed).elements(rows, frames),
        upload=upload_elements(packed, rows, frames),
        pcm=rows * frames * packed.config.samples_per_frame,
        partial=1,
        arrived=1,
    )
    for product, rate in _products(packed):
        count = rows * frames * rate
        tile = _tile(product, count)
        blocks = -(-count // tile.rows) * -(-product.outer // tile.columns)
        if tile.splits > 1:
            need.partial = max(need.partial, blocks * tile.splits * tile.rows * tile.columns)
            need.arrived = max(need.arrived, blocks)
    return need


def upload_elements(packed: PackedDecoder, rows: int, frames: int) -> int:
    """Of a call's upload, in int32."""
    return rows * ROW + -(-rows * frames * packed.config.num_quantizers // 2)


def _products(packed: PackedDecoder) -> Iterator[tuple[Product, int]]:
    """All products, with the positions of a frame that each begins from."""
    yield from ((product, 1) for product in (packed.pre_conv, packed.input, packed.output))
    for layer in packed.layers:
        yield from ((product, 1) for product in (layer.qkv, layer.out, layer.gate_up, layer.down))
    rate = 1
    for stage in packed.upsample:
        yield stage.up, rate
        rate *= stage.up.up
        yield from ((product, rate) for product in (stage.wide, stage.narrow))
    yield packed.first, rate
    for block in packed.blocks:
        yield block.up, rate
        rate *= block.up.up
        for unit in block.units:
            yield from ((product, rate) for product in (unit.conv, unit.point))


def _tile(product: Product, count: int) -> Tile:
    return product_tile(
        count,
        product.inner,
        product.outer,
        product.taps,
        gated=product.gated,
        splittable=not product.norm and not product.gated,
    )


class Program:
    """The launches of one shape, in order; calling it runs them."""

    def __init__(self, packed: PackedDecoder, arena: Arena, memory: Memory, rows: int, frames: int) -> None:
        self._packed, self._arena, self.memory = packed, arena, memory
        self.rows, self.frames = rows, frames
        self._buffers = Buffers(packed)
        self._starts: dict[str, int] = {}
        at = 0
        for buffer in self._buffers.all.values():
            self._starts[buffer.name] = at
            at += rows * buffer.elements(frames)
        self._row_table = memory.upload[: rows * ROW]
        self._codes = memory.upload[rows * ROW :].view(torch.int16)
        self._precision = "ieee" if memory.buffers.dtype == torch.float32 else "tf32"
        self._segments = self._segment_table()
        self.launches: list[Launch] = []
        self._build()

    def __call__(self) -> None:
        """All launches; a call's rows and codes are in `memory.upload`, its samples come to be in `memory.pcm`."""
        for each in self.launches:
            each()

    # What there is ------------------------------------------------------------------------------------------------

    def _view(self, name: str) -> Tensor:
        return self.memory.buffers[self._starts[name] :]

    def _tail(self, name: str) -> int:
        return self._buffers.all[name].tail

    def _count(self, name: str) -> int:
        return self.rows * self.frames * self._buffers.all[name].rate

    def _segment_table(self) -> Tensor:
        """As `codec_frames.gather` and `scatter` read it."""
        lines = []
        for buffer in self._buffers.all.values():
            size = buffer.tail * buffer.channels
            stride = buffer.elements(self.frames)
            for at in range(0, size, COPY):
                start = self._starts[buffer.name] + at
                lines.append((buffer.state + at, min(COPY, size - at), start, stride, buffer.rate * buffer.channels))
        return torch.tensor(lines, dtype=torch.int64).to(self.memory.buffers.device)

    # What happens -------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        packed = self._packed
        self._copy("gather", codec_frames.gather)
        self._look_up()
        self._product("pre_conv", packed.pre_conv, "codes", raw="latent")
        self._product("input", packed.input, "latent", raw="hidden")
        for index, layer in enumerate(packed.layers):
            self._layer(index, layer)
        following = [f"up{level}" for level in range(len(packed.upsample))] + ["first"]
        self._product("output", packed.output, "hidden", raw=following[0])
        for level, stage in enumerate(packed.upsample):
            self._upsample(level, stage, following[level + 1])
        self._product("first", packed.first, "first", active="block0", snake=packed.first_snake)
        following = [f"block{level}" for level in range(1, len(packed.blocks))] + ["wave"]
        for level, (block, after) in enumerate(zip(packed.blocks, following, strict=True)):
            self._block(level, block, after)
        self._wave()
        self._copy("scatter", codec_frames.scatter)

    def _add(
        self,
        name: str,
        kernel: Any,
        grid: tuple[int, ...],
        *arguments: Any,
        warps: int = 4,
        stages: int = 3,
        **constants: Any,
    ) -> None:
        self.launches.append(Launch(name, kernel, grid, arguments, constants, warps, stages))

    def _copy(self, name: str, kernel: Any) -> None:
        self._add(
            name, kernel, (len(self._segments), self.rows),
            self._arena.tails, self.memory.buffers, self._segments, self._row_table,
            WIDTH=self._buffers.width, BLOCK=COPY, warps=2,
        )  # fmt: skip

    def _look_up(self) -> None:
        config, channels = self._packed.config, self._packed.tables.shape[1]
        block = min(512, triton.next_power_of_2(channels))
        self._add(
            "look_up", codec_frames.look_up, (self.rows * self.frames, -(-channels // block)),
            self._codes, self._packed.tables, self._view("codes"), self.frames,
            BOOKS=config.num_quantizers, SIZE=config.codebook_size, D=channels, OUT_TAIL=self._tail("codes"), BD=block,
            warps=8,
        )  # fmt: skip

    def _product(
        self,
        name: str,
        product: Product,
        x: str,
        *,
        raw: str | None = None,
        active: str | None = None,
        residual: str | None = None,
        snake: Snake | None = None,
    ) -> None:
        count = self._count(x)
        tile = _tile(product, count)
        blocks = -(-count // tile.rows) * -(-product.outer // tile.columns)
        self._add(
            name, codec_conv.conv, (blocks, tile.splits),
            self._view(x), product.weight, product.bias,
            None if residual is None else self._view(residual),
            None if raw is None else self._view(raw),
            None if active is None else self._view(active),
            None if snake is None else snake.frequency, None if snake is None else snake.magnitude,
            self.memory.partial, self.memory.arrived, count, count // self.rows,
            self._packed.config.rms_norm_eps, product.dilation, self._tail(x),
            self._tail(residual) if residual else 0, self._tail(raw) if raw else 0,
            self._tail(active) if active else 0,
            IN=product.inner, N=product.outer, OUT=product.channels, TAPS=product.taps,
            NORM=product.norm, GATED=product.gated, GELU=product.gelu,
            PRECISION=self._precision, BM=tile.rows, BN=tile.columns, BK=tile.inner, SPLITS=tile.splits,
            warps=tile.warps, stages=tile.stages,
        )  # fmt: skip

    def _layer(self, index: int, layer: PackedLayer) -> None:
        config = self._packed.config
        half = config.head_size // 2
        self._product(f"layer{index}.qkv", layer.qkv, "hidden", raw="qkv")
        self._add(
            f"layer{index}.attend", codec_frames.attend, (self.rows, config.num_key_value_heads),
            self._view("qkv"), self._arena.rings[index], self._row_table, self._packed.rotary, self._view("heard"),
            self.frames, config.head_size**-0.5,
            HEADS=config.num_attention_heads, GROUPS=config.num_key_value_heads, DIM=config.head_size,
            HALF=max(16, triton.next_power_of_2(half)), FULL=max(16, triton.next_power_of_2(config.head_size)),
            WINDOW=config.sliding_window, RING=self._arena.rings.shape[3],
            BF=max(16, triton.next_power_of_2(self.frames)),
            BP=max(16, triton.next_power_of_2(config.sliding_window - 1)), PRECISION=self._precision,
        )  # fmt: skip
        self._product(f"layer{index}.out", layer.out, "heard", raw="hidden", residual="hidden")
        self._product(f"layer{index}.gate_up", layer.gate_up, "hidden", raw="gated")
        self._product(f"layer{index}.down", layer.down, "gated", raw="hidden", residual="hidden")

    def _upsample(self, level: int, stage: PackedUpsample, following: str) -> None:
        channels = stage.up.channels
        real = self._packed.config.latent_dim
        self._product(f"up{level}", stage.up, f"up{level}", raw=f"depthwise{level}")
        count = self._count(f"depthwise{level}")
        self._add(
            f"depthwise{level}", codec_frames.depthwise_norm, (count,),
            self._view(f"depthwise{level}"), stage.depthwise, stage.depthwise_bias, self._view(f"normed{level}"),
            count // self.rows, stage.eps,
            C=channels, CHANNELS=real, TAPS=stage.depthwise.shape[0], BC=triton.next_power_of_2(channels),
            warps=8,
        )  # fmt: skip
        self._product(f"wide{level}", stage.wide, f"normed{level}", raw=f"wide{level}")
        self._product(f"narrow{level}", stage.narrow, f"wide{level}", raw=following, residual=f"depthwise{level}")

    def _block(self, level: int, block: PackedBlock, following: str) -> None:
        units = [f"unit{level}.{at}" for at in range(len(block.units))]
        total, inner = f"sum{level}", f"inner{level}"
        self._product(f"block{level}", block.up, f"block{level}", raw=total, active=units[0], snake=block.after)
        for at, unit in enumerate(block.units):
            last = at == len(units) - 1
            active = following if last else units[at + 1]
            raw = None if last else total
            tile = unit_tile(self._count(total), unit.conv.outer)
            if tile is None:
                self._product(f"{units[at]}.conv", unit.conv, units[at], active=inner, snake=unit.inner)
                self._product(
                    f"{units[at]}.point", unit.point, inner, raw=raw, active=active, residual=total, snake=unit.after
                )
                continue
            channels = unit.conv.outer
            large = 1 << (channels.bit_length() - 1)
            count = self._count(total)
            self._add(
                units[at], codec_conv.residual_unit, (-(-count // tile.rows),),
                self._view(units[at]), unit.conv.weight, unit.conv.bias, unit.inner.frequency, unit.inner.magnitude,
                unit.point.weight, unit.point.bias, self._view(total), None if raw is None else self._view(raw),
                self._view(active), unit.after.frequency, unit.after.magnitude, count, count // self.rows,
                unit.conv.dilation, self._tail(units[at]), self._tail(active),
                C=channels, A=large, B=channels - large, TAPS=unit.conv.taps,
                PRECISION=self._precision, BM=tile.rows, BK=tile.inner, warps=tile.warps, stages=tile.stages,
            )  # fmt: skip

    def _wave(self) -> None:
        packed = self._packed
        taps, channels = packed.wave.shape
        count = self._count("wave")
        self._add(
            "wave", codec_frames.wave, (-(-count // 32),),
            self._view("wave"), packed.wave, packed.wave_bias, self.memory.pcm, count, count // self.rows,
            C=channels, TAPS=taps, BM=32, BC=triton.next_power_of_2(channels),
        )  # fmt: skip
