"""Building blocks of the talker and the code predictor: packed linear layers, norms, rotary tables, decoder layers.

Matrices that read the same input are packed into one; `checkpoint_tensors` maps the official tensor names to their
parts. Activations are [rows, width]. Widths should be multiples of 32: elementwise kernels round a shorter tail
differently, which would make a row depend on its index in the batch.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from syrinx_stages.model.config import TransformerConfig
from syrinx_stages.model.linear import HalfWeight, Weight, column_major, half_weight, linear


class CheckpointTensor(NamedTuple):
    """The expected shape of a checkpoint tensor, and the memory it is copied to (with broadcasting)."""

    shape: tuple[int, ...]
    target: Tensor


class Packed(nn.Module):
    """A module whose memory holds several checkpoint tensors, which are named as children of its parent."""

    def checkpoint_tensors(self) -> Iterator[tuple[str, CheckpointTensor]]:
        """Yields the tensors' names, relative to the parent, and their targets."""
        raise NotImplementedError


def checkpoint_tensors(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, CheckpointTensor]]:
    """Yields the name and target of every tensor that a checkpoint must have for `module`."""
    if isinstance(module, Packed):
        parent = prefix.rpartition(".")[0]
        yield from ((f"{parent}.{name}" if parent else name, tensor) for name, tensor in module.checkpoint_tensors())
        return
    start = f"{prefix}." if prefix else ""
    for name, tensor in module.state_dict().items():
        if "." not in name:
            yield start + name, CheckpointTensor(tuple(tensor.shape), tensor)
    for name, child in module.named_children():
        yield from checkpoint_tensors(child, start + name)


class Product(nn.Module):
    """A module with the `weight` of a product."""

    weight: nn.Parameter
    _half: HalfWeight | None = None

    @property
    def matrix(self) -> Tensor:
        """The weight as a matrix [outer, inner]."""
        return self.weight

    @property
    def operand(self) -> Weight:
        """The weight as `linear` takes it."""
        return self.matrix if self._half is None else self._half

    def pack(self) -> None:
        """Holds the weight as a `HalfWeight`, if it can be one, and frees `weight`."""
        self._half = half_weight(self.matrix.detach())
        if self._half is not None:
            self.weight.data = self.weight.new_empty(0)


def pack_weights(module: nn.Module) -> None:
    """Packs the products of a module, whose weights can then no longer be loaded, saved or moved."""
    for child in module.modules():
        if isinstance(child, Product | DecoderStack):
            child.pack()


class Linear(Product):
    """`x @ weight.T + bias`; x: [rows, inner], weight: [outer, inner], result: [rows, outer]."""

    def __init__(self, inner: int, outer: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(column_major(outer, inner))
        self.bias = nn.Parameter(torch.empty(outer)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.operand, self.bias)


class PackedLinear(Packed, Product):
    """Several matrices that read the same input, as one weight [sum(outers), inner]."""

    def __init__(self, inner: int, **outers: int) -> None:
        super().__init__()
        self.outers = outers
        self.weight = nn.Parameter(column_major(sum(outers.values()), inner))

    def checkpoint_tensors(self) -> Iterator[tuple[str, CheckpointTensor]]:
        parts = torch.split(self.weight.detach(), list(self.outers.values()))
        for name, part in zip(self.outers, parts, strict=True):
            yield f"{name}.weight", CheckpointTensor(tuple(part.shape), part)


class PackedHeadNorm(Packed):
    """The weights of the query and key norms, one row per head, so that all heads are normalized at once."""

    def __init__(self, heads: int, kv_heads: int, head_size: int) -> None:
        super().__init__()
        self.heads = heads
        self.weight = nn.Parameter(torch.empty(heads + kv_heads, head_size))

    def checkpoint_tensors(self) -> Iterator[tuple[str, CheckpointTensor]]:
        shape = (self.weight.shape[-1],)
        yield "q_norm.weight", CheckpointTensor(shape, self.weight.detach()[: self.heads])
        yield "k_norm.weight", CheckpointTensor(shape, self.weight.detach()[self.heads :])


class NormWeight(nn.Module):
    """The weight of an RMS norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))


def rms_norm(x: Tensor, weight: Tensor, eps: Tensor) -> Tensor:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last axis, with the mean in float32 (Zhang and Sennrich, 2019).

    eps: [1] float32, on the device of x.
    """
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    scale = torch.addcmul(eps, norm, norm, value=1 / x.shape[-1]).rsqrt_()
    normed = x * scale
    # Even without effect, a conversion takes as long as a product.
    return (normed if normed.dtype == x.dtype else normed.to(x.dtype)) * weight


def cos_sin_table(head_size: int, theta: float, positions: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [positions, head_size / 2] float32 of the angles of a rotary position embedding."""
    rates = 1.0 / theta ** (torch.arange(0, head_size, 2, dtype=torch.float32) / head_size)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), rates)
    return angles.cos(), angles.sin()


class Attention(nn.Module):
    """The projections of attention, with the checkpoint's names."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        width, kv_width = config.num_attention_heads * config.head_size, config.num_key_value_heads * config.head_size
        self.qkv = PackedLinear(config.hidden_size, q_proj=width, k_proj=kv_width, v_proj=kv_width)
        self.qk_norm = PackedHeadNorm(config.num_attention_heads, config.num_key_value_heads, config.head_size)
        self.o_proj = Linear(width, config.hidden_size)


class MLP(nn.Module):
    """The projections of the gated feed-forward layer (SwiGLU; Shazeer, 2020), with the checkpoint's names."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        width = config.intermediate_size
        self.gate_up = PackedLinear(config.hidden_size, gate_proj=width, up_proj=width)
        self.down_proj = Linear(width, config.hidden_size)


class DecoderLayer(nn.Module):
    """The parameters of attention and feed-forward, each applied to a normalized input and added to the residual."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = NormWeight(config.hidden_size)
        self.post_attention_layernorm = NormWeight(config.hidden_size)


class _Weights(NamedTuple):
    """A layer's parameters as a tuple: looking them up through modules takes a tenth of a decode step."""

    input_norm: Tensor
    qkv: Weight
    qk_norm: Tensor
    output: Weight
    post_norm: Tensor
    gate_up: Weight
    down: Weight


Attend = Callable[[int, Tensor], Tensor]
"""Maps (layer, heads [rows, heads + 2 * kv_heads, head_size]) to attention outputs [rows, heads * head_size].

Queries and keys are rotated already. The function stores keys and values; the stack has no state.
"""


class DecoderStack(nn.Module):
    """Decoder layers and the final norm: `model` of the talker and of the code predictor."""

    cos: Tensor
    """Of rotary position embeddings (Su et al., 2021; halves rotated as in GPT-NeoX): [positions, 1, head_size]."""
    sin: Tensor
    eps: Tensor

    def __init__(self, config: TransformerConfig, positions: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = NormWeight(config.hidden_size)
        cos, sin = cos_sin_table(config.head_size, config.rope_theta, positions)
        # The table has the sign of the rotated half, so that rotating is a plain roll. The talker's three M-RoPE axes
        # are equal for speech, so its sections have no effect.
        dtype = torch.get_default_dtype()
        self.register_buffer("cos", torch.cat((cos, cos), -1)[:, None].to(dtype), persistent=False)
        self.register_buffer("sin", torch.cat((-sin, sin), -1)[:, None].to(dtype), persistent=False)
        self.register_buffer("eps", torch.tensor([config.rms_norm_eps], dtype=torch.float32), persistent=False)
        self._weights: list[_Weights] = []
        """Of the layers, from the first `run` on."""
        self._head_size = config.head_size
        self._rotated_heads = config.num_attention_heads + config.num_key_value_heads

    def pack(self) -> None:
        """Lets the next `run` use weights that were packed."""
        self._weights = []

    def drop_layer(self, index: int) -> None:
        """Frees the weights of a layer, for engines that hold them in another layout. `run` no longer works."""
        self.layers[index] = nn.Identity()
        self._weights = []

    def run(self, x: Tensor, positions: Tensor | slice, attend: Attend) -> Tensor:
        """Maps inputs [rows, hidden_size] at `positions` [rows] to normalized outputs of the same shape."""
        cos, sin = self.cos[positions], self.sin[positions]
        eps, half = self.eps, self._head_size // 2
        self._weights = self._weights or [_flat(layer) for layer in self.layers]
        for index, layer in enumerate(self._weights):
            heads = linear(rms_norm(x, layer.input_norm, eps), layer.qkv).view(x.shape[0], -1, self._head_size)
            rotated = heads.narrow(1, 0, self._rotated_heads)
            normed = rms_norm(rotated, layer.qk_norm, eps)
            torch.addcmul(normed * cos, normed.roll(half, -1), sin, out=rotated)
            x = x + linear(attend(index, heads), layer.output)
            gate, up = linear(rms_norm(x, layer.post_norm, eps), layer.gate_up).chunk(2, -1)
            x = x + linear(F.silu(gate).mul_(up), layer.down)
        return rms_norm(x, self.norm.weight, eps)


def _flat(layer: nn.Module) -> _Weights:
    assert isinstance(layer, DecoderLayer)
    return _Weights(
        layer.input_layernorm.weight,
        layer.self_attn.qkv.operand,
        layer.self_attn.qk_norm.weight,
        layer.self_attn.o_proj.operand,
        layer.post_attention_layernorm.weight,
        layer.mlp.gate_up.operand,
        layer.mlp.down_proj.operand,
    )
