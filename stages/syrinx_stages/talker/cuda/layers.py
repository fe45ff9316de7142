"""Decoder layers over the rows of a step, with their buffers."""

from collections.abc import Callable
from copy import copy
from typing import Protocol

import torch
from torch import Tensor

from syrinx_stages.kernels.attention import AttentionParams
from syrinx_stages.kernels.linear import linear
from syrinx_stages.kernels.rows import gate_rows, norm_rows
from syrinx_stages.kernels.sampling import copy_rows
from syrinx_stages.kernels.split_k import SplitKWorkspace
from syrinx_stages.model.config import TalkerConfig
from syrinx_stages.talker.cuda.packed import PackedLayer
from syrinx_stages.talker.cuda.tiles import MAX_SPLIT_K, choose_tile

FUSED_ELEMENTS = 128 << 10
"""Of the residual stream: with more, cuBLAS is faster. On an H200 that begins between 65 and 96 rows of 2,048, and
between 129 and 192 rows of 1,024."""

Attend = Callable[[int, AttentionParams, Tensor, Tensor], None]
"""Computes a layer's attention: called with the layer's number, its parameters, qkv [rows, ...] and the output."""


class LayerStack(Protocol):
    """Decoder layers over a number of rows."""

    x: Tensor
    """[rows, H]: the input and the residual stream."""
    sum_of_squares: Tensor
    """float32 [rows, parts]: those of `x`."""

    def run(self, attend: Attend) -> None:
        """Runs all layers on `x`, in place."""


def new_stack(
    layers: list[PackedLayer], eps: float, rows: int, workspace: SplitKWorkspace, shared: "LibraryLayers | None" = None
) -> LayerStack:
    """Returns the stack that is the fastest for this number of rows.

    workspace: see `new_split_k_workspace`. shared: the stack of another step, with as many rows at least, whose buffers
    may be used: no two steps run at the same time.
    """
    if rows * layers[0].qkv.shape[1] > FUSED_ELEMENTS:
        return LibraryLayers(layers, eps, rows) if shared is None else shared.narrow(rows)
    return FusedLayers(layers, eps, rows, workspace)


class FusedLayers:
    """Products by the kernels of `kernels.linear`, which do what surrounds them, too: the best with few rows."""

    def __init__(self, layers: list[PackedLayer], eps: float, rows: int, workspace: SplitKWorkspace) -> None:
        """workspace: see `new_split_k_workspace`."""
        first = layers[0]
        width, inner = first.qkv.shape[1], first.down.shape[1]
        self.rows, self.eps, self._layers, self._workspace = rows, eps, layers, workspace
        self.tiles = {
            "qkv": choose_tile(rows, first.qkv),
            "output": choose_tile(rows, first.output, residual=True),
            "gate_up": choose_tile(rows, first.gate_up, gated=True),
            "down": choose_tile(rows, first.down, residual=True),
        }
        parts = width // self.tiles["down"].columns
        new = first.qkv.new_zeros
        self.x = new(rows, width)
        self.sum_of_squares = new(rows, parts, dtype=torch.float32)
        self._qkv = new(rows, first.qkv.shape[0])
        self._attended = new(rows, first.output.shape[1])
        self._gated = new(rows, inner)

    def run(self, attend: Attend) -> None:
        """Runs all layers on `x`, in place."""
        for index, layer in enumerate(self._layers):
            self._product("qkv", self.x, layer.qkv, self._qkv)
            attend(index, layer.attention, self._qkv, self._attended)
            self._product("output", self._attended, layer.output, self.x)
            self._product("gate_up", self.x, layer.gate_up, self._gated)
            self._product("down", self._gated, layer.down, self.x)

    def _product(self, name: str, x: Tensor, weight: Tensor, out: Tensor) -> None:
        adds = out is self.x
        linear(
            x, weight, out, self.tiles[name], rows=self.rows, workspace=self._workspace,
            sum_of_squares=None if adds else self.sum_of_squares, eps=self.eps, gated=name == "gate_up",
            launch_early=name == "qkv", residual=self.x if adds else None,
            out_sum_of_squares=self.sum_of_squares if adds else None,
        )  # fmt: skip


class LibraryLayers:
    """Products by cuBLAS: with many rows it shares what one multiprocessor has read, which saves more than fusion."""

    def __init__(self, layers: list[PackedLayer], eps: float, rows: int) -> None:
        # Of the process: parts of a sum are added in float32.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        first = layers[0]
        width, inner = first.qkv.shape[1], first.down.shape[1]
        self.eps, self._layers = eps, layers
        new = first.qkv.new_zeros
        self.x = new(rows, width)
        self.sum_of_squares = new(rows, 1, dtype=torch.float32)
        self._normed = new(rows, width)
        self._qkv = new(rows, first.qkv.shape[0])
        self._attended = new(rows, first.output.shape[1])
        self._pairs = new(rows, 2 * inner)
        self._gated = new(rows, inner)

    def narrow(self, rows: int) -> "LibraryLayers":
        """Returns a stack of fewer rows in the same memory."""
        narrow = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(narrow, name, value[:rows])
        return narrow

    def run(self, attend: Attend) -> None:
        """Runs all layers on `x`, in place."""
        for index, layer in enumerate(self._layers):
            norm_rows(self.x, self._normed, self.eps)
            multiply(self._normed, layer.qkv, self._qkv)
            attend(index, layer.attention, self._qkv, self._attended)
            multiply(self._attended, layer.output, self.x, add=True)
            norm_rows(self.x, self._normed, self.eps)
            multiply(self._normed, layer.gate_up, self._pairs)
            gate_rows(self._pairs, self._gated)
            multiply(self._gated, layer.down, self.x, add=True)
        copy_rows(self.x, self.x, self.sum_of_squares)


def multiply(x: Tensor, weight: Tensor, out: Tensor, *, add: bool = False) -> None:
    """Writes `x @ weight.T` to `out`, or adds it."""
    if add:
        out.addmm_(x, weight.T)
    else:
        torch.mm(x, weight.T, out=out)


def new_split_k_workspace(config: TalkerConfig, like: Tensor, max_rows: int) -> SplitKWorkspace:
    """Returns a workspace for the products of one step at a time, each with up to `max_rows` rows."""
    width = max(config.hidden_size, config.code_predictor_config.hidden_size)
    rows = -(-max_rows // 64) * 64
    return SplitKWorkspace(
        partial_sums=like.new_zeros(MAX_SPLIT_K * rows * width, dtype=torch.float32),
        counters=like.new_zeros(rows // 64 * width, dtype=torch.int32),
    )
