"""A talker's step on the device, as a fixed sequence of kernels over fixed buffers: what CUDA graphs are made of.

A frame has two parts. `draw_codes` draws the 16 codes of every row from its state; `advance` feeds their embeddings
and the next row of text through the talker, which gives the next state. `Prefill` gives the first one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor

from syrinx_stages.kernels import attention
from syrinx_stages.kernels.attention import Heads
from syrinx_stages.kernels.linear import SplitKWorkspace, linear
from syrinx_stages.kernels.metadata import NUM_COLUMNS
from syrinx_stages.kernels.sampling import (
    NUM_SAMPLING_PARAMS,
    SamplingInputs,
    copy_rows,
    embed_frame,
    norm_last_position,
    sample_first_code,
    sample_residual_code,
)
from syrinx_stages.model.config import CODE_GROUPS, SPECIAL_IDS, TalkerConfig
from syrinx_stages.talker.packed import PackedLayer, PackedTalker
from syrinx_stages.talker.tiles import MOST_SHARES, TileOf, tile_of


@dataclass(frozen=True)
class Arena:
    """What the device keeps from step to step. Slot and page 0 are scratch: padded rows work there.

    A request has a slot, pages of the cache, and rows of text.
    """

    state: Tensor
    """[slots, H]: the normalised output at each request's last position."""
    cache: Tensor
    """[layers, pages, 2, kv_heads, page, head_size]."""
    texts: Tensor
    """[rows, H]: rows of text of all requests; row 0 is the padding."""
    sampling_params: Tensor
    """[slots, 2, NUM_SAMPLING_PARAMS] float32."""
    seeds: Tensor
    """[slots] int64."""
    seen: Tensor
    """[slots, V] int8."""
    handed: Tensor
    """[ring, most rows, 16] int16, on the host: the frames of the last steps."""
    sharing: SplitKWorkspace


def new_arena(
    config: TalkerConfig,
    like: Tensor,
    *,
    slots: int,
    pages: int,
    page: int,
    texts: int,
    ring: int,
    most_rows: int,
    most_prefill: int,
) -> Arena:
    """An empty arena on `like`'s device and of its type."""
    device, dtype = like.device, like.dtype
    shape = (config.num_hidden_layers, pages, 2, config.num_key_value_heads, page, config.head_size)
    return Arena(
        state=torch.zeros(slots, config.hidden_size, dtype=dtype, device=device),
        cache=torch.zeros(shape, dtype=dtype, device=device),
        texts=torch.zeros(texts, config.hidden_size, dtype=dtype, device=device),
        sampling_params=torch.zeros(slots, 2, NUM_SAMPLING_PARAMS, dtype=torch.float32, device=device),
        seeds=torch.zeros(slots, dtype=torch.int64, device=device),
        seen=torch.zeros(slots, config.vocab_size, dtype=torch.int8, device=device),
        handed=torch.zeros(ring, most_rows, CODE_GROUPS, dtype=torch.int16, pin_memory=device.type == "cuda"),
        sharing=new_split_k_workspace(config, like, max(2 * most_rows, most_prefill)),
    )


def new_split_k_workspace(config: TalkerConfig, like: Tensor, most_rows: int) -> SplitKWorkspace:
    """What the products of one step at a time share, for steps of up to `most_rows` rows of a stack."""
    width = max(config.hidden_size, config.code_predictor_config.hidden_size)
    rows = -(-most_rows // 64) * 64
    return SplitKWorkspace(
        like.new_zeros(MOST_SHARES * rows * width, dtype=torch.float32),
        like.new_zeros(rows // 64 * width, dtype=torch.int32),
    )


class Stack:
    """Decoder layers over `rows` rows, with their buffers. `x` and `squares` are the input, and the residual stream."""

    def __init__(
        self, layers: list[PackedLayer], eps: float, rows: int, sharing: SplitKWorkspace, tile_of: TileOf = tile_of
    ) -> None:
        """sharing: see `new_split_k_workspace`."""
        first = layers[0]
        width, inner = first.qkv.shape[1], first.down.shape[1]
        self.rows, self.eps, self._layers, self._sharing = rows, eps, layers, sharing
        self._tiles = {
            "qkv": tile_of(rows, first.qkv),
            "output": tile_of(rows, first.output, residual=True),
            "gate_up": tile_of(rows, first.gate_up, gated=True),
            "down": tile_of(rows, first.down, residual=True),
        }
        parts = width // self._tiles["down"].columns
        new = first.qkv.new_zeros
        self.x = new(rows, width)
        self.squares = new(rows, parts, dtype=torch.float32)
        self._qkv = new(rows, first.qkv.shape[0])
        self._heard = new(rows, first.output.shape[1])
        self._gated = new(rows, inner)

    def run(self, attend: Attend) -> None:
        """All layers; `attend(layer, heads, qkv, out)` is given queries, keys and values, and writes what was heard."""
        for index, layer in enumerate(self._layers):
            self._product("qkv", self.x, layer.qkv, self._qkv)
            attend(index, layer.heads, self._qkv, self._heard)
            self._product("output", self._heard, layer.output, self.x)
            self._product("gate_up", self.x, layer.gate_up, self._gated)
            self._product("down", self._gated, layer.down, self.x)

    def _product(self, name: str, x: Tensor, weight: Tensor, out: Tensor) -> None:
        adds = out is self.x
        linear(
            x, weight, out, self._tiles[name], rows=self.rows, sharing=self._sharing,
            squares=None if adds else self.squares, eps=self.eps, gated=name == "gate_up", early=name == "qkv",
            residual=self.x if adds else None, out_squares=self.squares if adds else None,
        )  # fmt: skip


class _Common(TypedDict):
    rows: int
    sharing: SplitKWorkspace


Attend = Callable[[int, Heads, Tensor, Tensor], None]


class CodeSampler:
    """The 16 codes of `rows` rows, from the talker's states."""

    def __init__(
        self,
        weights: PackedTalker,
        config: TalkerConfig,
        sharing: SplitKWorkspace,
        rows: int,
        tile_of: TileOf = tile_of,
    ) -> None:
        """sharing: see `new_split_k_workspace`, for twice the rows."""
        self._weights, self._config = weights, config
        like = weights.norm
        self.rows = rows
        self.codes = torch.zeros(rows, CODE_GROUPS, dtype=torch.int32, device=like.device)
        """Of the last `run`."""
        predictor = weights.predictor
        self._pair = Stack(predictor, weights.predictor_eps, 2 * rows, sharing, tile_of)
        self._single = Stack(predictor, weights.predictor_eps, rows, sharing, tile_of)
        heads = predictor[0].heads
        shape = (len(predictor), rows, 2, heads.kv, CODE_GROUPS, heads.size)
        self._cache = like.new_zeros(shape)
        self._own = torch.arange(rows, dtype=torch.int32, device=like.device)[:, None]
        steps = torch.arange(CODE_GROUPS, dtype=torch.int32, device=like.device)
        self._positions = steps[:, None, None].expand(-1, rows, 1).contiguous()
        self._common: _Common = {"rows": rows, "sharing": sharing}
        self._head_tile = tile_of(rows, weights.head)
        self._code_tile = tile_of(rows, weights.code_heads[0])
        self._logits = torch.empty(rows, weights.head.shape[0], dtype=torch.float32, device=like.device)
        self._scores = torch.empty(rows, weights.code_heads.shape[1], dtype=torch.float32, device=like.device)

    def run(self, where: SamplingInputs, states: Tensor, index: Tensor | None = None) -> None:
        """states: [rows, H] or, of a larger one, the rows that column 0 of `index` names."""
        weights, pair, single = self._weights, self._pair, self._single
        linear(states, weights.head, self._logits, self._head_tile, index=index, **self._common)
        sample_first_code(
            where, self._logits, weights.head_bias, weights.first_input, self.codes, pair.x, pair.squares,
            eos=self._config.codec_eos_token_id, num_special=SPECIAL_IDS,
        )  # fmt: skip
        pair.run(self._attend(None))
        self._draw_residual(where, 1, pair.x[self.rows :], pair.squares[self.rows :])
        for group in range(2, CODE_GROUPS):
            single.run(self._attend(self._positions[group]))
            self._draw_residual(where, group, single.x, single.squares)

    def _draw_residual(self, where: SamplingInputs, group: int, x: Tensor, squares: Tensor) -> None:
        """A group's codes from the predictor's output; they are its next input."""
        weights, single = self._weights, self._single
        head, eps = weights.code_heads[group - 1], weights.predictor_eps
        linear(x, head, self._scores, self._code_tile, squares=squares, eps=eps, **self._common)
        table = weights.rest_inputs[group - 1] if group < CODE_GROUPS - 1 else None
        sample_residual_code(where, self._scores, group, table, self.codes, single.x, single.squares)

    def _attend(self, positions: Tensor | None) -> Attend:
        def attend(layer: int, heads: Heads, qkv: Tensor, out: Tensor) -> None:
            attention.step(heads, qkv, self._cache[layer], self._own, positions, out, len(qkv), small=True)

        return attend


class Frame:
    """A step of `rows` rows."""

    def __init__(
        self,
        weights: PackedTalker,
        config: TalkerConfig,
        arena: Arena,
        rows: int,
        pages: int,
        tile_of: TileOf = tile_of,
    ) -> None:
        """`pages`: the most that a row may have."""
        self._weights, self._arena = weights, arena
        self.rows = rows
        self.meta = torch.zeros(rows, NUM_COLUMNS + pages, dtype=torch.int32, device=weights.norm.device)
        """Filled in before the step; all zeros is a padded row."""
        self.draws = CodeSampler(weights, config, arena.sharing, rows, tile_of)
        self._talker = Stack(weights.layers, weights.eps, rows, arena.sharing, tile_of)

    def draw_codes(self) -> None:
        """The 16 codes of every row; they are handed over, and summed into the talker's next input."""
        weights, arena, talker = self._weights, self._arena, self._talker
        where = SamplingInputs(self.meta, arena.sampling_params, arena.seeds, arena.seen)
        self.draws.run(where, arena.state, self.meta)
        codes = self.draws.codes
        embed_frame(where, codes, weights.first, weights.rest, arena.texts, talker.x, talker.squares, arena.handed)

    def advance(self) -> None:
        """Feeds the frame to the talker: the next states."""
        weights, arena, talker = self._weights, self._arena, self._talker
        positions, table = self.meta[:, 1:], self.meta[:, NUM_COLUMNS:]

        def attend(layer: int, heads: Heads, qkv: Tensor, out: Tensor) -> None:
            attention.step(heads, qkv, arena.cache[layer], table, positions, out, self.rows)

        talker.run(attend)
        norm_last_position(talker.x, talker.squares, weights.norm, weights.eps, self.meta, arena.state)


class Prefill:
    """The prompts of `rows` requests, `length` positions for each."""

    def __init__(self, weights: PackedTalker, arena: Arena, rows: int, length: int, pages: int) -> None:
        self._weights, self._arena = weights, arena
        self.rows, self.length = rows, length
        like = weights.norm
        self.embeds = like.new_zeros(rows * length, like.shape[0])
        """What is fed: [rows x length, H]."""
        self.meta = torch.zeros(rows, NUM_COLUMNS + pages, dtype=torch.int32, device=like.device)
        """Slot, first position, number of positions; pages from column `NUM_COLUMNS` on. All zeros is a padded row."""
        self._stack = Stack(weights.layers, weights.eps, rows * length, arena.sharing)
        self._queries = like.new_zeros(rows * length, weights.layers[0].output.shape[1])

    def run(self) -> None:
        """Fills the cache, and leaves the state of each row's last position."""
        weights, arena, stack = self._weights, self._arena, self._stack
        copy_rows(self.embeds, stack.x, stack.squares)
        spans, table = self.meta[:, 1:3], self.meta[:, NUM_COLUMNS:]

        def attend(layer: int, heads: Heads, qkv: Tensor, out: Tensor) -> None:
            attention.prompt(heads, qkv, arena.cache[layer], table, spans, self._queries, out, self.length)

        stack.run(attend)
        norm_last_position(stack.x, stack.squares, weights.norm, weights.eps, self.meta, arena.state, self.length)
