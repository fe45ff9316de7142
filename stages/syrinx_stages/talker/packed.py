"""The talker's weights as the CUDA engine reads them: rows of a product contiguous, norms and projections folded in."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from syrinx_stages.kernels.attention import Heads
from syrinx_stages.model.code_predictor import CodePredictor
from syrinx_stages.model.config import CODE_GROUPS, TransformerConfig
from syrinx_stages.model.layers import DecoderLayer, DecoderStack, Linear, cos_sin_table
from syrinx_stages.model.talker import Embedding, Talker


@dataclass(frozen=True)
class PackedLayer:
    """A decoder layer. The norms' weights are in `qkv` and `gate_up`."""

    qkv: Tensor
    heads: Heads
    output: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True)
class PackedTalker:
    """Everything a frame reads. H: the talker's width, W: the predictor's, V: the talker's vocabulary, C: codes."""

    layers: list[PackedLayer]
    norm: Tensor
    eps: float
    head: Tensor
    """[V + W, H]: logits of code 0, and the state in the predictor's width, from the state."""
    head_bias: Tensor
    """[W]: of the second."""
    first: Tensor
    """Embeddings of code 0 [V, H]."""
    rest: Tensor
    """Embeddings of codes 1 to 15 [15, C, H]."""
    predictor: list[PackedLayer]
    predictor_eps: float
    first_input: Tensor
    """`first` in the predictor's width [V, W]."""
    rest_inputs: Tensor
    """`rest` in the predictor's width [15, C, W]."""
    code_heads: Tensor
    """[15, C, W]; the predictor's last norm is in them."""


def pack(talker: Talker) -> PackedTalker:
    """Packs a loaded talker and takes its decoder layers apart: it can only embed from then on. Of one that has no
    layers, or no text embeddings, the rest is packed.

    Use it under `torch.inference_mode()`.
    """
    predictor = talker.code_predictor
    first, rest = talker.model.codec_embedding.weight.detach(), predictor.model.embeddings.weight.detach()
    weight, bias = _projection(predictor, talker.config.hidden_size)
    heads = [head.weight for head in predictor.lm_head if isinstance(head, Linear)]
    if isinstance(talker.model.text_embedding, Embedding):
        _project_text(talker)
    return PackedTalker(
        layers=_layers(talker.model, talker.config, talker.config.max_position_embeddings),
        norm=talker.model.norm.weight.detach(),
        eps=talker.config.rms_norm_eps,
        head=torch.cat((talker.codec_head.weight.detach(), weight)).contiguous(),
        head_bias=bias,
        first=first,
        rest=rest,
        predictor=_layers(predictor.model, predictor.config, CODE_GROUPS),
        predictor_eps=predictor.config.rms_norm_eps,
        first_input=_projected(first, weight, bias),
        rest_inputs=torch.stack([_projected(table, weight, bias) for table in rest]),
        code_heads=torch.stack([_folded(head, predictor.model.norm.weight) for head in heads]),
    )


def _project_text(talker: Talker) -> None:
    """Text embeddings in the talker's width, once for all: a prompt is then looked up."""
    table = talker.model.text_embedding.weight
    projected = torch.cat([talker.text_projection(part) for part in torch.split(table, 8192)])
    talker.model.text_embedding.weight = nn.Parameter(projected, requires_grad=False)
    talker.text_projection = nn.Identity()


def _projection(predictor: CodePredictor, width: int) -> tuple[Tensor, Tensor]:
    """The predictor's input projection; where it has none, the identity, which is exact."""
    projection = predictor.small_to_mtp_projection
    like = predictor.model.norm.weight.detach()
    if isinstance(projection, nn.Identity):
        return torch.eye(width, dtype=like.dtype, device=like.device), torch.zeros_like(like)
    assert isinstance(projection, Linear) and projection.bias is not None
    return projection.weight.detach(), projection.bias.detach()


def _projected(table: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.addmm(bias.float(), table.float(), weight.float().T).to(table.dtype)


def _layers(stack: DecoderStack, config: TransformerConfig, positions: int) -> list[PackedLayer]:
    """Packs layer by layer and lets go of each, so that the weights are never there twice."""
    with stack.norm.weight.device:
        cosines, sines = cos_sin_table(config.head_size, config.rope_theta, positions)
    packed = []
    for index in range(config.num_hidden_layers):
        layer = stack.layers[index]
        assert isinstance(layer, DecoderLayer)
        norms = layer.self_attn.qk_norm.weight.detach()
        heads = Heads(
            kv=config.num_key_value_heads,
            group=config.num_attention_heads // config.num_key_value_heads,
            size=config.head_size,
            norms=norms[[0, -1]].contiguous(),
            cosines=cosines,
            sines=sines,
            eps=config.rms_norm_eps,
        )
        packed.append(
            PackedLayer(
                qkv=_folded(layer.self_attn.qkv.weight, layer.input_layernorm.weight),
                heads=heads,
                output=layer.self_attn.o_proj.weight.detach().contiguous(),
                gate_up=_folded(layer.mlp.gate_up.weight, layer.post_attention_layernorm.weight),
                down=layer.mlp.down_proj.weight.detach().contiguous(),
            )
        )
        stack.drop_layer(index)
    return packed


def _folded(weight: Tensor, norm: Tensor) -> Tensor:
    """A matrix whose inputs are multiplied by a norm's weight: rounded once more, as the product would have been."""
    return (weight.detach().float() * norm.detach().float()).to(weight.dtype).contiguous()
