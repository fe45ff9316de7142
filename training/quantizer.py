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


class Draws(NamedTuple):
    """What of a step is random; drawn before it, so that it can be replayed."""

    depth: Tensor
    """[B]: how many of the codebooks after the first each utterance is quantised with."""
    strays: Tensor
    """[quantizers, codebook_size]: the vectors that unused entries are put at."""


class QuantizerTraining:
    """Quantises, and moves the codebooks of a decoder's quantizer after what it saw."""

    def __init__(self, quantizer: Quantizer) -> None:
        self.quantizer = quantizer

    def draw(self, batch: int, frames: int, generator: torch.Generator) -> Draws:
        """For a step of so many utterances of so many frames, on the generator's device."""
        device, count = generator.device, len(self.quantizer.rvq_rest._books)
        dropped = torch.rand(batch, generator=generator, device=device) < _DROPOUT
        kept = torch.randint(1, count + 1, (batch,), generator=generator, device=device)
        shape = 1 + count, self.quantizer.size
        strays = torch.randint(batch * frames, shape, generator=generator, device=device)
        return Draws(torch.where(dropped, kept, count), strays)

    @torch.no_grad()
    def begin(self, x: Tensor, generator: torch.Generator) -> None:
        """Sets the codebooks to centres of x, the encoder's vectors [B, codebook_dim, F]."""
        start = _quantize(self.quantizer.rvq_first, x, begun_by=generator)
        _quantize(self.quantizer.rvq_rest, x - start.vectors, begun_by=generator)

    def __call__(self, x: Tensor, draws: Draws, *, revives: bool) -> Quantized:
        """x: the encoder's vectors [B, codebook_dim, F]; revives: entries that few chose begin anew."""
        first, rest = draws.strays[:1], draws.strays[1:]
        start = _quantize(self.quantizer.rvq_first, x, strays=first, revives=revives)
        end = _quantize(
            self.quantizer.rvq_rest, x - start.vectors.detach(), depth=draws.depth, strays=rest, revives=revives
        )
        codes = torch.cat((start.codes, end.codes), 2)
        return Quantized(start.vectors + end.vectors, codes, start.commitment + end.commitment)

    @torch.no_grad()
    def encode(self, x: Tensor) -> Tensor:
        """Codes [B, F, quantizers] of the encoder's vectors [B, codebook_dim, F]; nothing is learnt."""
        start = _quantize(self.quantizer.rvq_first, x)
        end = _quantize(self.quantizer.rvq_rest, x - start.vectors)
        return torch.cat((start.codes, end.codes), 2)


def revives(step: int) -> bool:
    """Whether unused entries begin anew at this step."""
    return step % _REVIVE_EVERY == 0


def _quantize(
    part: ResidualQuantizer,
    x: Tensor,
    *,
    begun_by: torch.Generator | None = None,
    depth: Tensor | None = None,
    strays: Tensor | None = None,
    revives: bool = False,
) -> Quantized:
    """begun_by: entries are set to centres; strays: entries move; depth: how many codebooks an utterance is given."""
    batch, _, frames = x.shape
    inner = F.conv1d(x, part.input_proj.weight).transpose(1, 2).flatten(0, 1).float()
    residual, total = inner.detach(), torch.zeros_like(inner)
    codes = []
    for index, book in enumerate(part._books):
        if begun_by is not None:
            _begin(book, residual, begun_by)
        chosen = nearest(residual, book.entries())
        found = book.entries()[chosen]
        if strays is not None:
            _follow(book, residual, chosen, strays[index] if revives else None)
        if depth is not None:
            found = found * (index < depth).float()[:, None].expand(batch, frames).reshape(-1, 1)
        total, residual = total + found, residual - found
        codes.append(chosen.view(batch, frames))
    straight = (inner + (total - inner).detach()).view(batch, frames, -1).transpose(1, 2)
    vectors = F.conv1d(straight, part.output_proj.weight)
    return Quantized(vectors, torch.stack(codes, 2), F.mse_loss(inner, total))


@torch.no_grad()
def _begin(book: Codebook, x: Tensor, generator: torch.Generator) -> None:
    """Sets the entries to centres of x [N, D]."""
    book.embedding_sum.copy_(kmeans(x, len(book.cluster_usage), generator))
    book.cluster_usage.fill_(1)


@torch.no_grad()
def _follow(book: Codebook, x: Tensor, chosen: Tensor, strays: Tensor | None) -> None:
    """Moves the entries towards the x [N, D] that chose them [N]; those that few choose to x[strays]."""
    size = len(book.cluster_usage)
    members = (torch.arange(size, device=x.device)[:, None] == chosen).to(x)
    # Counted in shares of an average entry's, so that the sums keep their size whatever the batch.
    share = size / len(x)
    book.cluster_usage.mul_(_DECAY).add_(members.sum(1) * share, alpha=1 - _DECAY)
    book.embedding_sum.mul_(_DECAY).add_(members @ x * share, alpha=1 - _DECAY)
    if strays is not None:
        unused = book.cluster_usage < _UNUSED
        book.embedding_sum.copy_(torch.where(unused[:, None], x[strays] * 0.3, book.embedding_sum))
        book.cluster_usage.masked_fill_(unused, 0.3)
