"""The talker's weights as the CUDA engine reads them: contiguous, with norms and projections folded into them."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from syrinx_stages.kernels.attention import AttentionParams
from syrinx_stages.model.code_predictor import CodePredictor
from syrinx_stages.model.config import CODE_GROUPS, TransformerConfig
from syrinx_stages.model.layers import DecoderLayer, DecoderStack, Linear, cos_sin_table
from syrinx_stages.model.talker import Embedding, Talker


@dataclass(frozen=True)
class PackedLayer:
    """A decoder layer. The weights of its norms are folded into `qkv` and `gate_up`."""

    qkv: Tensor
    attention: AttentionParams
    output: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True)
class PackedTalker:
    """The weights of a frame. H: talker width, W: predictor width, V: vocabulary of code 0, C: codebook size,
    T: text vocabulary."""

    layers: list[PackedLayer]
    norm: Tensor
    """[H], of the talker's last norm."""
    eps: float
    head: Tensor
    """[V + W, H]: computes the logits of code 0, and the hidden state in the predictor's width without its bias."""
    head_bias: Tensor
    """[W]: bias of the hidden state's projection."""
    texts: Tensor
    """[T, H]: embeddings of text tokens, in the width of the talker; none if it was loaded without them."""
    first: Tensor
    """[V, H]: embeddings of code 0."""
    rest: Tensor
    """[15, C, H]: embeddings of codes 1 to 15."""
    predictor: list[PackedLayer]
    predictor_eps: float
    first_input: Tensor
    """[V, W]: `first` in the predictor's width."""
    rest_inputs: Tensor
    """[15, C, W]: `rest` in the predictor's width."""
    code_heads: Tensor
    """[15, C, W]; the weight of the predictor's last norm is folded into them."""


def pack(talker: Talker) -> PackedTalker:
    """Packs a loaded talker. Frees its decoder layers, so that afterwards it can only embed.

    Also packs a talker that was loaded without layers or text embeddings. Call it under `torch.inference_mode()`.
    """
    predictor = talker.code_predictor
    first, rest = talker.model.codec_embedding.weight.detach(), predictor.model.embeddings.weight.detach()
    weight, bias = _projection(predictor, talker.config.hidden_size)
    heads = [head.weight for head in predictor.lm_head if isinstance(head, Linear)]
    norm = talker.model.norm.weight.detach()
    has_texts = isinstance(talker.model.text_embedding, Embedding)
    texts = _project_texts(talker) if has_texts else norm.new_empty(0, len(norm))
    return PackedTalker(
        layers=_pack_layers(talker.model, talker.config, talker.config.max_position_embeddings),
        norm=norm,
        eps=talker.config.rms_norm_eps,
        head=torch.cat((talker.codec_head.weight.detach(), weight)).contiguous(),
        head_bias=bias,
        texts=texts,
        first=first,
        rest=rest,
        predictor=_pack_layers(predictor.model, predictor.config, CODE_GROUPS),
        predictor_eps=predictor.config.rms_norm_eps,
        first_input=_project(first, weight, bias),
        rest_inputs=torch.stack([_project(table, weight, bias) for table in rest]),
        code_heads=torch.stack([_fold_norm(head, predictor.model.norm.weight) for head in heads]),
    )


def _project_texts(talker: Talker) -> Tensor:
    """Projects all text embeddings to the talker's width once, so that prompts only look them up."""
    table = talker.model.text_embedding.weight
    projected = torch.cat([talker.text_projection(part) for part in torch.split(table, 8192)])
    talker.model.text_embedding.weight = nn.Parameter(projected, requires_grad=False)
    talker.text_projection = nn.Identity()
    return projected.detach()


def _projection(predictor: CodePredictor, width: int) -> tuple[Tensor, Tensor]:
    """Returns weight [W, H] and bias [W] of the predictor's input projection; the identity if it has none."""
    projection = predictor.small_to_mtp_projection
    like = predictor.model.norm.weight.detach()
    if isinstance(projection, nn.Identity):
        return torch.eye(width, dtype=like.dtype, device=like.device), torch.zeros_like(like)
    assert isinstance(projection, Linear) and projection.bias is not None
    return projection.weight.detach(), projection.bias.detach()


def _project(table: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.addmm(bias.float(), table.float(), weight.float().T).to(table.dtype)


def _pack_layers(stack: DecoderStack, config: TransformerConfig, positions: int) -> list[PackedLayer]:
    """Packs layer by layer and frees each, so that the weights are never in memory twice."""
    with stack.norm.weight.device:
        cosines, sines = cos_sin_table(config.head_size, config.rope_theta, positions)
    packed = []
    for index in range(config.num_hidden_layers):
        layer = stack.layers[index]
        assert isinstance(layer, DecoderLayer)
        norms = layer.self_attn.qk_norm.weight.detach()
        attention = AttentionParams(
            num_kv_heads=config.num_key_value_heads,
            group_size=config.num_attention_heads // config.num_key_value_heads,
            head_size=config.head_size,
            norms=norms[[0, -1]].contiguous(),
            cosines=cosines,
            sines=sines,
            eps=config.rms_norm_eps,
        )
        packed.append(
            PackedLayer(
                qkv=_fold_norm(layer.self_attn.qkv.weight, layer.input_layernorm.weight),
                attention=attention,
                output=layer.self_attn.o_proj.weight.detach().contiguous(),
                gate_up=_fold_norm(layer.mlp.gate_up.weight, layer.post_attention_layernorm.weight),
                down=layer.mlp.down_proj.weight.detach().contiguous(),
            )
        )
        stack.drop_layer(index)
    return packed


def _fold_norm(weight: Tensor, norm: Tensor) -> Tensor:
    """Returns `weight` [columns, inner] with its inputs multiplied by `norm` [inner], in the dtype of `weight`."""
    return (weight.detach().float() * norm.detach().float()).to(weight.dtype).contiguous()
