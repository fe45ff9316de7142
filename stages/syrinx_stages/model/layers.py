"""Building blocks of the talker and the code predictor: packed linear layers, norms, rotary tables, a decoder layer.

Modules that read the same input are packed into one matrix; `slots` says which part of it each official checkpoint
tensor is. Activations are [rows, width]. Widths should be multiples of 32: elementwise kernels round a shorter tail
differently, and a row would then depend on its place in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import TransformerConfig
from .linear import column_major, linear


class Slot(NamedTuple):
    """Where a checkpoint tensor goes: `target` takes it by (broadcasting) copy."""

    shape: tuple[int, ...]
    target: Tensor


class Packed(nn.Module):
    """A module whose memory holds several official tensors; they are named as its parent's children."""

    def slots(self) -> Iterator[tuple[str, Slot]]:
        """The official names below the parent, and their places."""
        raise NotImplementedError


def slots(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, Slot]]:
    """Every tensor a checkpoint must have for `module`: official name and place."""
    if isinstance(module, Packed):
        parent = prefix.rpartition(".")[0]
        yield from ((f"{parent}.{name}" if parent else name, slot) for name, slot in module.slots())
        return
    start = f"{prefix}." if prefix else ""
    for name, tensor in module.state_dict().items():
        if "." not in name:
            yield start + name, Slot(tuple(tensor.shape), tensor)
    for name, child in module.named_children():
        yield from slots(child, start + name)


class Linear(nn.Module):
    """`x @ weight.T + bias`; x: [rows, inner], weight: [outer, inner], result: [rows, outer]."""

    def __init__(self, inner: int, outer: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(column_major(outer, inner))
        self.bias = nn.Parameter(torch.empty(outer)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[rows, inner] to [rows, outer]."""
        return linear(x, self.weight, self.bias)


class PackedLinear(Packed):
    """Several matrices that read the same input, as one product."""

    def __init__(self, inner: int, **outers: int) -> None:
        super().__init__()
        self.outers = outers
        self.weight = nn.Parameter(column_major(sum(outers.values()), inner))

    def slots(self) -> Iterator[tuple[str, Slot]]:
        """One `NAME.weight` per packed matrix."""
        for name, part in zip(self.outers, torch.split(self.weight.detach(), list(self.outers.values())), strict=True):
            yield f"{name}.weight", Slot(tuple(part.shape), part)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, inner] to [rows, sum of the outer widths]."""
        return linear(x, self.weight)


class RMSNorm(nn.Module):
    """`x / rms(x) * weight` over the last axis, in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[rows, width] to the same."""
        return rms_normalise(x, self.eps) * self.weight


class PackedHeadNorm(Packed):
    """The query and the key norm in one: every head is normalised, then weighted by its kind's weight."""

    def __init__(self, heads: int, kv_heads: int, head_size: int, eps: float) -> None:
        super().__init__()
        self.heads = heads
        self.weight = nn.Parameter(torch.empty(heads + kv_heads, head_size))
        self.eps = eps

    def slots(self) -> Iterator[tuple[str, Slot]]:
        """`q_norm.weight` and `k_norm.weight`."""
        shape = (self.weight.shape[-1],)
        yield "q_norm.weight", Slot(shape, self.weight.detach()[: self.heads])
        yield "k_norm.weight", Slot(shape, self.weight.detach()[self.heads :])

    def forward(self, x: Tensor) -> Tensor:
        """[rows, heads + kv_heads, head_size] to the same."""
        return rms_normalise(x, self.eps) * self.weight


def rms_normalise(x: Tensor, eps: float) -> Tensor:
    """`x / sqrt(mean(x^2) + eps)` over the last axis, in float32, returned in x's type."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(eps))).to(x.dtype)


class Rotary(nn.Module):
    """Tables of rotary position embeddings (Su et al. 2021, halves rotated as in GPT-NeoX).

    The talker's three "multimodal" position axes are always equal for speech, so its sections make no difference.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, head_size: int, theta: float, positions: int) -> None:
        super().__init__()
        rates = 1.0 / theta ** (torch.arange(0, head_size, 2, dtype=torch.float32) / head_size)
        angles = torch.outer(torch.arange(positions, dtype=torch.float32), rates)
        cos, sin = angles.cos(), angles.sin()
        # The sign of the rotated half is in the table, so that rotating is a plain roll.
        self.register_buffer("cos", torch.cat((cos, cos), -1)[:, None].to(torch.get_default_dtype()), persistent=False)
        self.register_buffer("sin", torch.cat((-sin, sin), -1)[:, None].to(torch.get_default_dtype()), persistent=False)

    def at(self, positions: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines [rows, 1, head_size] of positions [rows]."""
        return self.cos[positions], self.sin[positions]


def rotate(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    """Turns heads x [rows, heads, head_size] to their positions; writes to `out`."""
    torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin, out=out)


class Attention(nn.Module):
    """The projections around attention; the attending itself is its caller's, who owns the cache."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_size = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_size,
        )
        kv_width = self.kv_heads * self.head_size
        self.qkv = PackedLinear(
            config.hidden_size, q_proj=self.heads * self.head_size, k_proj=kv_width, v_proj=kv_width
        )
        self.qk_norm = PackedHeadNorm(self.heads, self.kv_heads, self.head_size, config.rms_norm_eps)
        self.o_proj = Linear(self.heads * self.head_size, config.hidden_size)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[rows, hidden] to heads [rows, heads + 2 * kv_heads, head_size]: queries, keys (both rotated), values."""
        qkv: Tensor = self.qkv(x).view(x.shape[0], -1, self.head_size)
        qk = qkv[:, : self.heads + self.kv_heads]
        rotate(self.qk_norm(qk), cos, sin, out=qk)
        return qkv


class MLP(nn.Module):
    """The gated feed-forward layer (SwiGLU, Shazeer 2020)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        width = config.intermediate_size
        self.gate_up = PackedLinear(config.hidden_size, gate_proj=width, up_proj=width)
        self.down_proj = Linear(width, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, hidden] to the same."""
        gate, up = self.gate_up(x).chunk(2, -1)
        result: Tensor = self.down_proj(F.silu(gate).mul_(up))
        return result


Attend = Callable[[int, Tensor], Tensor]
"""(layer, heads of `Attention.project`) to attended values [rows, heads * head_size]; stores keys and values."""


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each on a normalised input and added to the residual stream."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)


def run_layers(layers: Sequence[DecoderLayer], x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
    """Residual stream x [rows, hidden] through the layers; `cos`, `sin`: [rows or 1, 1, head_size]."""
    for index, layer in enumerate(layers):
        heads = layer.self_attn.project(layer.input_layernorm(x), cos, sin)
        x = x + layer.self_attn.o_proj(attend(index, heads))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return x
