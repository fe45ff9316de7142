"""The talker's forward pass for training: the weights of `model.talker`, all positions at once, gradients.

It computes what `Talker.prefill`, `decode` and `predict` compute one position after the other.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from syrinx_stages.model.config import CODE_GROUPS
from syrinx_stages.model.layers import DecoderLayer, DecoderStack, PackedHeadNorm, PackedLinear
from syrinx_stages.model.talker import Talker

from .layout import IGNORED, Batch


class Losses(NamedTuple):
    """Cross entropies, in nats."""

    code0: Tensor
    rest: Tensor
    """Mean over codes 1 to 15."""
    accuracy: Tensor
    """Of code 0."""


def initialise(talker: Talker, generator: torch.Generator) -> None:
    """Weights to begin training with."""
    branches = {
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
                small = "embedding" in name
                weight.normal_(0, 0.02 if small else min(0.04, weight.shape[-1] ** -0.5), generator=generator)
                weight.mul_(0.4 if id(weight) in branches else 1)


def share_norms(talker: Talker) -> None:
    """Gives all heads the weights of the first: one is learnt for the queries of a layer, and one for its keys."""
    with torch.no_grad():
        for module in talker.modules():
            if isinstance(module, PackedHeadNorm):
                module.weight.copy_(_head_norm(module))


def _head_norm(norm: PackedHeadNorm) -> Tensor:
    """[heads + key heads, head_size], as a checkpoint has it: the same for all heads of a kind."""
    queries, keys = norm.weight[:1], norm.weight[norm.heads : norm.heads + 1]
    return torch.cat((queries.expand(norm.heads, -1), keys.expand(len(norm.weight) - norm.heads, -1)))


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.float()
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def run_stack(stack: DecoderStack, x: Tensor, positions: Tensor, heard: Tensor | None, eps: float) -> Tensor:
    """Inputs [B, S, width] at `positions` [B, S] to normalised outputs.

    heard: [B, 1, S, S], what each position attends to; None for all before it, and itself.
    """
    cos, sin = (table[positions] for table in (stack.rotary.cos, stack.rotary.sin))
    for layer in stack.layers:
        assert isinstance(layer, DecoderLayer)
        attention = layer.self_attn
        qkv = _product(_rms_norm(x, layer.input_layernorm.weight, eps), attention.qkv)
        x = x + F.linear(_attend(qkv, attention.qk_norm, (cos, sin), heard, eps), attention.o_proj.weight)
        gate, up = _product(_rms_norm(x, layer.post_attention_layernorm.weight, eps), layer.mlp.gate_up).chunk(2, -1)
        x = x + F.linear(F.silu(gate) * up, layer.mlp.down_proj.weight)
    return _rms_norm(x, stack.norm.weight, eps)


def _product(x: Tensor, packed: PackedLinear) -> Tensor:
    return F.linear(x, packed.weight)


def _attend(
    qkv: Tensor, norm: PackedHeadNorm, rotation: tuple[Tensor, Tensor], heard: Tensor | None, eps: float
) -> Tensor:
    """Queries, keys and values [B, S, all heads x size] to attended values [B, S, heads x size]."""
    size, count = norm.weight.shape[1], len(norm.weight)
    heads = qkv.view(*qkv.shape[:2], -1, size)
    turning = _rms_norm(heads[:, :, :count], _head_norm(norm), eps)
    cos, sin = rotation
    turned = (turning * cos + turning.roll(size // 2, -1) * sin).to(qkv.dtype)
    query, key, value = turned[:, :, : norm.heads], turned[:, :, norm.heads :], heads[:, :, count:]
    repeats = norm.heads // key.shape[2]
    key, value = (kept.repeat_interleave(repeats, 2).transpose(1, 2) for kept in (key, value))
    query = query.transpose(1, 2)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=heard, is_causal=heard is None)
    return out.transpose(1, 2).flatten(2)


def embed(talker: Talker, batch: Batch, kind: torch.dtype) -> Tensor:
    """The talker's inputs [rows, positions, width].

    Sums of table rows as products with a matrix of ones: the backward pass of looking up rows, of which most are the
    same few, is slow on a GPU.
    """
    codes = talker.code_predictor.model.embeddings.weight
    tables = torch.cat((talker.model.codec_embedding.weight, codes.flatten(0, 1)))
    first = len(talker.model.codec_embedding.weight)
    offsets = first - codes.shape[1] + torch.arange(CODE_GROUPS, device=tables.device) * codes.shape[1]
    offsets[0] = 0
    index = torch.cat((batch.codec.clamp(min=0)[..., None], batch.frames + offsets), -1)
    there = torch.cat(((batch.codec >= 0)[..., None], batch.is_frame[..., None].expand(batch.frames.shape)), -1)
    chosen = torch.zeros(*batch.text.shape, len(tables), dtype=kind, device=tables.device)
    chosen.scatter_add_(-1, index, there.to(kind))
    texts = talker.text_projection(talker.model.text_embedding.weight)
    said = torch.zeros(*batch.text.shape, len(texts), dtype=kind, device=tables.device)
    said.scatter_(-1, batch.text[..., None], 1)
    inputs: Tensor = chosen @ tables.to(kind) + said @ texts.to(kind)
    return inputs


def heard_of(sentences: Tensor) -> Tensor:
    """What a position attends to: its own sentence up to itself: [rows, 1, positions, positions]."""
    same = sentences[:, :, None] == sentences[:, None, :]
    return same.tril()[:, None]


def talker_states(talker: Talker, inputs: Tensor, batch: Batch) -> Tensor:
    """Inputs to states [rows, positions, width]."""
    eps = talker.config.rms_norm_eps
    return run_stack(talker.model, inputs.float(), batch.positions, heard_of(batch.sentences), eps)


def predictor_logits(talker: Talker, states: Tensor, codes: Tensor) -> Tensor:
    """Logits of codes 1 to 15 [15, n, codes] after talker states [n, width] and codes 0 to 14 [n, 15]."""
    predictor = talker.code_predictor
    rest = predictor.model.embeddings.weight
    size = rest.shape[1]
    tables = torch.cat((talker.model.codec_embedding.weight[None, :size], rest[:-1]))
    chosen = F.one_hot(codes, size).to(states.dtype).transpose(0, 1)
    embedded = torch.bmm(chosen, tables.to(chosen.dtype)).transpose(0, 1)
    inputs = predictor.small_to_mtp_projection(torch.cat((states[:, None], embedded.to(states.dtype)), 1))
    positions = torch.arange(CODE_GROUPS, device=codes.device)[None]
    eps = predictor.config.rms_norm_eps
    hidden = run_stack(predictor.model, inputs.float(), positions, None, eps)[:, 1:].transpose(0, 1)
    heads = torch.stack([head.get_parameter("weight") for head in predictor.lm_head])
    return torch.bmm(hidden, heads.mT)


def losses(talker: Talker, inputs: Tensor, batch: Batch) -> Losses:
    """What is learnt from a step whose inputs `embed` gave."""
    states = talker_states(talker, inputs, batch)
    logits = F.linear(states, talker.codec_head.weight).float()
    labels = batch.labels
    code0 = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
    counted = labels != IGNORED
    accuracy = ((logits.argmax(-1) == labels) & counted).sum() / counted.sum()
    rest = predictor_logits(talker, states.flatten(0, 1)[batch.predicted], batch.predicted_inputs).float()
    each = F.cross_entropy(rest.permute(1, 2, 0), batch.predicted_codes[:, 1:], reduction="none")
    weight = batch.predicted_weight[:, None]
    return Losses(code0, (each * weight).sum() / (weight.sum() * (CODE_GROUPS - 1)), accuracy.detach())
