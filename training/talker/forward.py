"""The talker's forward pass in training: the weights of `model.talker`, all positions at once, with gradients.

It computes what `Talker.prefill`, `decode` and `predict` compute position by position.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from syrinx_stages.model.config import CODE_GROUPS
from syrinx_stages.model.layers import DecoderLayer, DecoderStack, PackedHeadNorm
from syrinx_stages.model.talker import Talker
from training.data.layout import IGNORED, Batch


class TalkerLosses(NamedTuple):
    """Cross entropies in nats, and an accuracy."""

    code0: Tensor
    rest: Tensor
    """Mean over codes 1 to 15."""
    accuracy: Tensor
    """Of code 0."""

    def total(self) -> Tensor:
        """Returns the loss to minimize."""
        return self.code0 + self.rest


def initialize(talker: Talker, generator: torch.Generator) -> None:
    """Sets the weights to their initial values, smaller on the output of residual branches."""
    residual_outputs = {
        id(weight)
        for stack in (talker.model, talker.code_predictor.model)
        for layer in stack.layers
        if isinstance(layer, DecoderLayer)
        for weight in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight)
    }
    with torch.no_grad():
        for name, weight in talker.named_parameters():
            if "norm" in name:
                weight.fill_(1)
            elif name.endswith("bias"):
                weight.zero_()
            else:
                std = 0.02 if "embedding" in name else min(0.04, weight.shape[-1] ** -0.5)
                weight.normal_(0, std, generator=generator)
                weight.mul_(0.4 if id(weight) in residual_outputs else 1)


def share_norms(talker: Talker) -> None:
    """Copies the first head's norm weights to all heads: a layer trains one norm for queries and one for keys."""
    with torch.no_grad():
        for module in talker.modules():
            if isinstance(module, PackedHeadNorm):
                module.weight.copy_(_shared_head_norm(module))


def _shared_head_norm(norm: PackedHeadNorm) -> Tensor:
    """Returns [heads + key heads, head_size], the first query head's and the first key head's weights repeated."""
    queries, keys = norm.weight[:1], norm.weight[norm.heads : norm.heads + 1]
    return torch.cat((queries.expand(norm.heads, -1), keys.expand(len(norm.weight) - norm.heads, -1)))


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.float()
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def run_stack(stack: DecoderStack, x: Tensor, positions: Tensor, mask: Tensor | None, eps: float) -> Tensor:
    """Returns the normalized outputs of a decoder stack for inputs [B, S, width] at `positions` [B, S].

    mask: [B, 1, S, S] bool, the positions each position attends to; None for a causal mask.
    """
    cos, sin = (table[positions] for table in (stack.cos, stack.sin))
    for layer in stack.layers:
        assert isinstance(layer, DecoderLayer)
        attention = layer.self_attn
        qkv = F.linear(_rms_norm(x, layer.input_layernorm.weight, eps), attention.qkv.weight)
        x = x + F.linear(_attention(qkv, attention.qk_norm, (cos, sin), mask, eps), attention.o_proj.weight)
        normed = _rms_norm(x, layer.post_attention_layernorm.weight, eps)
        gate, up = F.linear(normed, layer.mlp.gate_up.weight).chunk(2, -1)
        x = x + F.linear(F.silu(gate) * up, layer.mlp.down_proj.weight)
    return _rms_norm(x, stack.norm.weight, eps)


def _attention(
    qkv: Tensor, norm: PackedHeadNorm, rotation: tuple[Tensor, Tensor], mask: Tensor | None, eps: float
) -> Tensor:
    """Returns attention outputs [B, S, heads x size] of packed queries, keys and values [B, S, all heads x size]."""
    size, count = norm.weight.shape[1], len(norm.weight)
    heads = qkv.view(*qkv.shape[:2], -1, size)
    normed = _rms_norm(heads[:, :, :count], _shared_head_norm(norm), eps)
    cos, sin = rotation
    rotated = (normed * cos + normed.roll(size // 2, -1) * sin).to(qkv.dtype)
    query, key, value = rotated[:, :, : norm.heads], rotated[:, :, norm.heads :], heads[:, :, count:]
    repeats = norm.heads // key.shape[2]
    key, value = (each.repeat_interleave(repeats, 2).transpose(1, 2) for each in (key, value))
    query = query.transpose(1, 2)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
    return out.transpose(1, 2).flatten(2)


def embed(talker: Talker, batch: Batch, dtype: torch.dtype) -> Tensor:
    """Returns the talker's inputs [rows, positions, width].

    Embedding sums are products with one-hot matrices: on a GPU the backward pass of embedding lookups is slow when
    most of them hit the same few rows.
    """
    codes = talker.code_predictor.model.embeddings.weight
    tables = torch.cat((talker.model.codec_embedding.weight, codes.flatten(0, 1)))
    first = len(talker.model.codec_embedding.weight)
    offsets = first - codes.shape[1] + torch.arange(CODE_GROUPS, device=tables.device) * codes.shape[1]
    offsets[0] = 0
    index = torch.cat((batch.codec.clamp(min=0)[..., None], batch.frames + offsets), -1)
    used = torch.cat(((batch.codec >= 0)[..., None], batch.is_frame[..., None].expand(batch.frames.shape)), -1)
    code_weights = torch.zeros(*batch.text.shape, len(tables), dtype=dtype, device=tables.device)
    code_weights.scatter_add_(-1, index, used.to(dtype))
    text_table = talker.text_projection(talker.model.text_embedding.weight)
    text_weights = torch.zeros(*batch.text.shape, len(text_table), dtype=dtype, device=tables.device)
    text_weights.scatter_(-1, batch.text[..., None], 1)
    inputs: Tensor = code_weights @ tables.to(dtype) + text_weights @ text_table.to(dtype)
    return inputs if batch.voices is None else inputs + batch.voices.to(dtype)


def talker_states(talker: Talker, inputs: Tensor, batch: Batch) -> Tensor:
    """Returns the talker's states [rows, positions, width]; attention is causal within each sentence."""
    mask = (batch.sentences[:, :, None] == batch.sentences[:, None, :]).tril()[:, None]
    return run_stack(talker.model, inputs.float(), batch.positions, mask, talker.config.rms_norm_eps)


def predictor_logits(talker: Talker, states: Tensor, codes: Tensor) -> Tensor:
    """Returns logits of codes 1 to 15 [15, n, codes] given talker states [n, width] and codes 0 to 14 [n, 15]."""
    predictor = talker.code_predictor
    rest = predictor.model.embeddings.weight
    size = rest.shape[1]
    tables = torch.cat((talker.model.codec_embedding.weight[None, :size], rest[:-1]))
    one_hot = F.one_hot(codes, size).to(states.dtype).transpose(0, 1)
    embedded = torch.bmm(one_hot, tables.to(one_hot.dtype)).transpose(0, 1)
    inputs = predictor.small_to_mtp_projection(torch.cat((states[:, None], embedded.to(states.dtype)), 1))
    positions = torch.arange(CODE_GROUPS, device=codes.device)[None]
    hidden = run_stack(predictor.model, inputs.float(), positions, None, predictor.config.rms_norm_eps)
    heads = torch.stack([head.get_parameter("weight") for head in predictor.lm_head])
    return torch.bmm(hidden[:, 1:].transpose(0, 1), heads.mT)


def losses(talker: Talker, inputs: Tensor, batch: Batch) -> TalkerLosses:
    """Returns the losses of a batch whose inputs were computed by `embed`."""
    states = talker_states(talker, inputs, batch)
    logits = F.linear(states, talker.codec_head.weight).float()
    labels = batch.labels
    code0 = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
    counted = labels != IGNORED
    accuracy = ((logits.argmax(-1) == labels) & counted).sum() / counted.sum()
    rest = predictor_logits(talker, states.flatten(0, 1)[batch.predicted], batch.predicted_inputs).float()
    each = F.cross_entropy(rest.permute(1, 2, 0), batch.predicted_codes[:, 1:], reduction="none")
    weight = batch.predicted_weight[:, None]
    return TalkerLosses(code0, (each * weight).sum() / (weight.sum() * (CODE_GROUPS - 1)), accuracy.detach())
