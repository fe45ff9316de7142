"""Residual vector quantisation while it is learnt: the decoder's codebooks as running means (van den Oord et al. 2017).

Codebooks hold sums and counts, as the checkpoint does: an entry is `embedding_sum / cluster_usage`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from syrinx_stages.model.codec_decoder import Codebook, Quantizer, ResidualQuantizer

_DECAY = 0.99
_KMEANS_STEPS = 12
_DROPOUT = 0.25
"""Share of utterances that are quantised with fewer codebooks, so that the first ones carry most."""
_REVIVE_EVERY = 10
_UNUSED = 0.02
"""An entry used this much less than the average is put elsewhere."""


class Quantized(NamedTuple):
    """What quantisation gives."""

    vectors: Tensor
    """[B, codebook_dim, F]: the decoder's input, gradients passed straight through."""
    codes: Tensor
    """[B, F, quantizers]."""
    commitment: Tensor
    """Mean squared error of the encoder's vectors."""


def nearest(x: Tensor, entries: Tensor) -> Tensor:
    """The entry [K, D] nearest to each x [N, D]: [N]."""
    return (entries.square().sum(1) - 2 * x @ entries.T).argmin(1)


def kmeans(x: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """`count` centres [count, D] of x [N, D]."""
    index = torch.randint(len(x), (count,), generator=generator, device=x.device)
    centres = x[index] + 1e-4 * torch.randn(count, x.shape[1], generator=generator, device=x.device)
    for _ in range(_KMEANS_STEPS):
        chosen = nearest(x, centres)
        members = F.one_hot(chosen, count).to(x).T
        sizes = members.sum(1)
        strays = x[torch.randint(len(x), (count,), generator=generator, device=x.device)]
        centres = torch.where(sizes[:, None] > 0, members @ x / sizes.clamp(min=1)[:, None], strays)
    return centres


class QuantizerTraining:
    """Quantises, and moves the codebooks of a decoder's quantizer after what it saw."""

    def __init__(self, quantizer: Quantizer) -> None:
        self.quantizer = quantizer

    def __call__(self, x: Tensor, generator: torch.Generator, *, first: bool, step: int) -> Quantized:
        """x: the encoder's vectors [B, codebook_dim, F]; first: codebooks are not begun yet."""
        rest = self.quantizer.rvq_rest
        count = len(rest._books)
        dropped = torch.rand(len(x), generator=generator, device=x.device) < _DROPOUT
        kept = torch.randint(1, count + 1, (len(x),), generator=generator, device=x.device)
        depth = torch.where(dropped & (not first), kept, count)
        learner = _Learner(generator, first, step)
        start = _quantize(self.quantizer.rvq_first, x, None, learner)
        end = _quantize(rest, x - start.vectors.detach(), depth, learner)
        codes = torch.cat((start.codes, end.codes), 2)
        return Quantized(start.vectors + end.vectors, codes, start.commitment + end.commitment)

    @torch.no_grad()
    def encode(self, x: Tensor) -> Tensor:
        """Codes [B, F, quantizers] of the encoder's vectors [B, codebook_dim, F]; nothing is learnt."""
        start = _quantize(self.quantizer.rvq_first, x, None, None)
        end = _quantize(self.quantizer.rvq_rest, x - start.vectors, None, None)
        return torch.cat((start.codes, end.codes), 2)


def _quantize(part: ResidualQuantizer, x: Tensor, depth: Tensor | None, learner: _Learner | None) -> Quantized:
    """depth: [B], how many of the part's codebooks each utterance is quantised with."""
    batch, _, frames = x.shape
    inner = F.conv1d(x, part.input_proj.weight).transpose(1, 2).flatten(0, 1).float()
    residual, total = inner.detach(), torch.zeros_like(inner)
    codes = []
    for index, book in enumerate(part._books):
        if learner and learner.first:
            learner.begin(book, residual)
        chosen = nearest(residual, book.entries())
        found = book.entries()[chosen]
        if learner:
            learner.follow(book, residual, chosen)
        if depth is not None:
            found = found * (index < depth).float().repeat_interleave(frames)[:, None]
        total, residual = total + found, residual - found
        codes.append(chosen.view(batch, frames))
    straight = (inner + (total - inner).detach()).view(batch, frames, -1).transpose(1, 2)
    vectors = F.conv1d(straight, part.output_proj.weight)
    return Quantized(vectors, torch.stack(codes, 2), F.mse_loss(inner, total))


class _Learner:
    """Moves codebooks."""

    def __init__(self, generator: torch.Generator, first: bool, step: int) -> None:
        self.generator, self.first, self.step = generator, first, step

    @torch.no_grad()
    def begin(self, book: Codebook, x: Tensor) -> None:
        """Sets the entries to centres of x [N, D]."""
        book.embedding_sum.copy_(kmeans(x, len(book.cluster_usage), self.generator))
        book.cluster_usage.fill_(1)

    @torch.no_grad()
    def follow(self, book: Codebook, x: Tensor, chosen: Tensor) -> None:
        """Moves the entries towards the x [N, D] that chose them [N]; some that few choose begin anew."""
        size = len(book.cluster_usage)
        members = F.one_hot(chosen, size).to(x).T
        # Counted in shares of an average entry's, so that the sums keep their size whatever the batch.
        share = size / len(x)
        book.cluster_usage.mul_(_DECAY).add_(members.sum(1) * share, alpha=1 - _DECAY)
        book.embedding_sum.mul_(_DECAY).add_(members @ x * share, alpha=1 - _DECAY)
        if self.step % _REVIVE_EVERY == 0:
            unused = book.cluster_usage < _UNUSED
            strays = x[torch.randint(len(x), (size,), generator=self.generator, device=x.device)]
            book.embedding_sum.copy_(torch.where(unused[:, None], strays * 0.3, book.embedding_sum))
            book.cluster_usage.masked_fill_(unused, 0.3)
