"""The codec decoder's transformer: causal, each frame attends to itself and the `sliding_window - 1` before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .codec_layers import Derived
from .codec_state import Carry, StateLayout
from .linear import linear

if TYPE_CHECKING:
    from .config import DecoderConfig


class RMSNorm(nn.Module):
    """weight x / sqrt(mean(x^2) + eps), in float32."""

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., channels]."""
        wide = x.float()
        # A root and a division round alike wherever a number lies; the CPU's rsqrt does not.
        return self.weight * (wide / (wide.square().mean(-1, keepdim=True) + self.eps).sqrt()).to(x.dtype)


class LayerScale(nn.Module):
    """The factors of a residual branch."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor, branch: Tensor) -> Tensor:
        """x + scale * branch."""
        return torch.addcmul(x, branch, self.scale)


class Rotary(Derived):
    """Angles of rotary position embedding (https://arxiv.org/abs/2104.09864), in float32 from the absolute position."""

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        self.head_dim, self.theta = head_dim, theta

    def derive(self) -> tuple[Tensor, ...]:
        """Radians per position [head_dim / 2]."""
        return (1.0 / self.theta ** (torch.arange(0, self.head_dim, 2).float() / self.head_dim),)

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines [B, F, 1, head_dim / 2] of positions [B, F]."""
        if self.derived()[0].device != positions.device:
            self._values = (self.derived()[0].to(positions.device),)
        angles = positions[:, :, None, None].float() * self.derived()[0]
        return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates the pairs (i, i + head_dim / 2) of x [B, F, heads, head_dim]."""
    cos, sin = rotation
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Attention(nn.Module):
    """Each frame over exactly its own window, so that no sum depends on how the frames were cut into calls."""

    def __init__(self, layout: StateLayout, config: DecoderConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.window = config.sliding_window
        hidden, bias = config.hidden_size, config.attention_bias
        self.q_proj = nn.Linear(hidden, self.heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, hidden, bias=bias)
        self.slot = layout.reserve(self.window - 1, 2 * self.kv_heads * self.head_dim)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], missing: Tensor, carry: Carry) -> Tensor:
        """x: [B, F, hidden]; missing: [B, F, 1, 1, window], true where a frame's window reaches before frame 0."""
        batch, frames, _ = x.shape
        query = linear(x, self.q_proj.weight, self.q_proj.bias).view(batch, frames, self.heads, self.head_dim)
        key = linear(x, self.k_proj.weight, self.k_proj.bias).view(batch, frames, self.kv_heads, self.head_dim)
        value = linear(x, self.v_proj.weight, self.v_proj.bias)
        cache = carry.open(self.slot, frames)
        cache[:, self.window - 1 :] = torch.cat((rotate(key, rotation).flatten(2), value), -1)
        carry.close(self.slot, cache)
        # [B, F, kv and heads and dim, window] -> [key or value, B, F, heads, window, dim]
        windows = cache.unfold(1, self.window, 1).unflatten(2, (2, self.kv_heads, self.head_dim))
        keys, values = windows.permute(2, 0, 1, 3, 5, 4).contiguous()
        query = rotate(query, rotation).view(batch, frames, self.kv_heads, -1, self.head_dim)
        scores = (query @ keys.mT) * self.head_dim**-0.5
        weights = scores.masked_fill(missing, float("-inf")).softmax(-1, dtype=torch.float32).to(x.dtype)
        return linear((weights @ values).flatten(2), self.o_proj.weight, self.o_proj.bias)


class MLP(nn.Module):
    """SwiGLU (https://arxiv.org/abs/2002.05202)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: [B, F, hidden]."""
        gated = F.silu(linear(x, self.gate_proj.weight)) * linear(x, self.up_proj.weight)
        return linear(gated, self.down_proj.weight)


class Layer(nn.Module):
    """Attention and MLP, each normed before, scaled after, and added."""

    def __init__(self, layout: StateLayout, config: DecoderConfig) -> None:
        super().__init__()
        self.self_attn = Attention(layout, config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn_layer_scale = LayerScale(config.hidden_size)
        self.mlp_layer_scale = LayerScale(config.hidden_size)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], missing: Tensor, carry: Carry) -> Tensor:
        """x: [B, F, hidden]."""
        attended = self.self_attn(self.input_layernorm(x), rotation, missing, carry)
        x = self.self_attn_layer_scale(x, attended)
        return self.mlp_layer_scale(x, self.mlp(self.post_attention_layernorm(x)))


class PreTransformer(nn.Module):
    """[B, F, latent_dim] to [B, F, latent_dim] at the frame rate."""

    def __init__(self, layout: StateLayout, config: DecoderConfig) -> None:
        super().__init__()
        self.window = config.sliding_window
        self.input_proj = nn.Linear(config.latent_dim, config.hidden_size)
        self.output_proj = nn.Linear(config.hidden_size, config.latent_dim)
        self.rotary = Rotary(config.head_dim, config.rope_theta)
        self.layers = nn.ModuleList([Layer(layout, config) for _ in range(config.num_hidden_layers)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        """x: [B, F, latent_dim]."""
        frames = torch.arange(x.shape[1], device=x.device)
        positions = carry.position[:, None] + frames
        rotation = self.rotary(positions, x.dtype)
        back = torch.arange(1 - self.window, 1, device=x.device)
        missing = (positions[:, :, None] + back < 0)[:, :, None, None, :]
        x = linear(x, self.input_proj.weight, self.input_proj.bias)
        for layer in self.layers:
            x = layer(x, rotation, missing, carry)
        return linear(self.norm(x), self.output_proj.weight, self.output_proj.bias)
