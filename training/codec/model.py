"""The codec's trainable modules: encoder, codebooks and decoder.

Codebooks are trained as running means (van den Oord et al. 2017). They hold sums and counts, as the checkpoint does: an
entry is `embedding_sum / cluster_usage`.

The encoder, which only training needs, is causal. With a non-causal encoder the codes contain information about the
future: the talker learns to read it from the codes it is fed, ignores the text, and babbles in free-running generation.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.codec.decoder import Codebook, CodecDecoder, Quantizer, ResidualQuantizer
from training.checkpoint import decoder_config
from training.codec import forward as codec_forward
from training.config import CodecConfig
from training.run import seeded_generator

_HOP, _WINDOW = 240, 1_024
LOOKAHEAD = _WINDOW // 2 - _HOP
"""Samples after a frame that its code depends on (11 ms); the STFT window tapers off the frame's last samples."""
_KERNEL_SIZES = (7, 7, 3, 3)
"""Of the blocks at each of the four rates."""
_EMA_DECAY = 0.99
_KMEANS_ITERATIONS = 12
_QUANTIZER_DROPOUT = 0.25
"""Share of utterances quantized with fewer codebooks, so that the first codebooks carry most of the information."""
_REVIVE_EVERY = 10
"""Steps between two replacements of unused entries."""
_UNUSED = 0.02
"""Entries with less than this share of the average usage are replaced."""


class _CausalConv(nn.Conv1d):
    """A causal convolution: [B, in, T] to [B, out, T / stride]."""

    def forward(self, x: Tensor) -> Tensor:
        """Convolves `x`, padded with zeros on the left."""
        return super().forward(F.pad(x, (self.kernel_size[0] - self.stride[0], 0)))


class _Block(nn.Module):
    """A ConvNeXt block: [B, width, T]."""

    def __init__(self, width: int, kernel_size: int) -> None:
        super().__init__()
        self.depthwise = _CausalConv(width, width, kernel_size, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        """Returns x + scale * MLP(norm(conv(x)))."""
        y = self.norm(self.depthwise(x).transpose(1, 2))
        branch: Tensor = self.scale * self.down(F.gelu(self.up(y)))
        return x + branch.transpose(1, 2)


class SampleEncoder(nn.Module):
    """Samples [B, N] in -1..1 to vectors [B, codebook_dim, N / 1,920]."""

    parallel: bool
    """See `CodecConfig`."""


class Encoder(SampleEncoder):
    """A spectrogram, then three halvings of its rate."""

    window: Tensor

    def __init__(self, config: CodecConfig, codebook_dim: int) -> None:
        super().__init__()
        width, self.parallel = config.encoder_width, config.parallel
        self.register_buffer("window", torch.hann_window(_WINDOW), persistent=False)
        layers: list[nn.Module] = [_CausalConv(_WINDOW // 2 + 1, width, 3)]
        for level, kernel_size in enumerate(_KERNEL_SIZES):
            if level:
                layers.append(_CausalConv(width, width, 4, stride=2))
            layers += [_Block(width, kernel_size) for _ in range(config.encoder_blocks)]
        self.layers = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, codebook_dim)

    def forward(self, samples: Tensor) -> Tensor:
        """samples: [B, N] in -1..1. Raises ValueError if N is not a multiple of 1,920."""
        x = self.norm(self.layers(self._spectrogram(samples)).transpose(1, 2))
        vectors: Tensor = self.out(x).transpose(1, 2)
        return vectors

    @torch.no_grad()
    def _spectrogram(self, samples: Tensor) -> Tensor:
        """Returns log magnitudes [B, 513, N / 240], about -1..1; the window of position j ends at 240 j + 512."""
        if samples.shape[1] % FAMILY.samples_per_frame:
            raise ValueError(f"{samples.shape[1]} samples are not a whole number of frames")
        spectrum = torch.stft(
            samples.float(), _WINDOW, _HOP, window=self.window, center=True, pad_mode="constant", return_complex=True
        )
        return (spectrum.abs()[..., :-1].clamp(min=1e-3).log() + 2) / 3


class Quantized(NamedTuple):
    """Quantized vectors."""

    vectors: Tensor
    """[B, codebook_dim, F]: the decoder's input, with a straight-through gradient."""
    codes: Tensor
    """[B, F, quantizers]."""
    commitment: Tensor
    """Mean squared error of the encoder's vectors, a scalar."""


def nearest(x: Tensor, entries: Tensor) -> Tensor:
    """Returns the index [N] of the entry [K, D] nearest to each x [N, D]."""
    return (entries.square().sum(1) - 2 * x @ entries.T).argmin(1)


def kmeans(x: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Returns k-means centers [count, D] of x [N, D]."""
    index = torch.randint(len(x), (count,), generator=generator, device=x.device)
    centers = x[index] + 1e-4 * torch.randn(count, x.shape[1], generator=generator, device=x.device)
    for _ in range(_KMEANS_ITERATIONS):
        assigned = nearest(x, centers)
        members = F.one_hot(assigned, count).to(x).T
        sizes = members.sum(1)
        replacements = x[torch.randint(len(x), (count,), generator=generator, device=x.device)]
        centers = torch.where(sizes[:, None] > 0, members @ x / sizes.clamp(min=1)[:, None], replacements)
    return centers


class CodebookUpdater(NamedTuple):
    """Initializes codebooks and moves their entries toward the vectors they quantize."""

    generator: torch.Generator
    step: int
    first: bool
    """True to initialize the codebooks."""

    @torch.no_grad()
    def initialize(self, book: Codebook, x: Tensor) -> None:
        """Sets the entries to k-means centers of x [N, D]."""
        book.embedding_sum.copy_(kmeans(x, len(book.cluster_usage), self.generator))
        book.cluster_usage.fill_(1)

    @torch.no_grad()
    def update(self, book: Codebook, x: Tensor, chosen: Tensor) -> None:
        """Moves each entry toward the x [N, D] that chose it [N]; replaces rarely used entries now and then."""
        size = len(book.cluster_usage)
        members = F.one_hot(chosen, size).to(x).T
        # Usage is relative to the average entry's, so that the sums do not scale with the batch.
        scale = size / len(x)
        book.cluster_usage.mul_(_EMA_DECAY).add_(members.sum(1) * scale, alpha=1 - _EMA_DECAY)
        book.embedding_sum.mul_(_EMA_DECAY).add_(members @ x * scale, alpha=1 - _EMA_DECAY)
        if self.step % _REVIVE_EVERY == 0:
            unused = book.cluster_usage < _UNUSED
            replacements = x[torch.randint(len(x), (size,), generator=self.generator, device=x.device)]
            book.embedding_sum.copy_(torch.where(unused[:, None], replacements * 0.3, book.embedding_sum))
            book.cluster_usage.masked_fill_(unused, 0.3)


def quantize(
    quantizer: Quantizer, x: Tensor, updater: CodebookUpdater | None = None, *, parallel: bool = False
) -> Quantized:
    """Quantizes the encoder's vectors x [B, codebook_dim, F]. updater: updates the codebooks, in training.

    parallel: see `CodecConfig`.
    """
    depth = None
    if updater:
        count, generator = len(quantizer.rvq_rest._books), updater.generator
        dropped = torch.rand(len(x), generator=generator, device=x.device) < _QUANTIZER_DROPOUT
        kept = torch.randint(1, count + 1, (len(x),), generator=generator, device=x.device)
        depth = torch.where(dropped & (not updater.first), kept, count)
    semantic = _quantize(quantizer.rvq_first, x, None, updater)
    rest = x if parallel else x - semantic.vectors.detach()
    acoustic = _quantize(quantizer.rvq_rest, rest, depth, updater)
    codes = torch.cat((semantic.codes, acoustic.codes), 2)
    return Quantized(semantic.vectors + acoustic.vectors, codes, semantic.commitment + acoustic.commitment)


def _quantize(part: ResidualQuantizer, x: Tensor, depth: Tensor | None, updater: CodebookUpdater | None) -> Quantized:
    """depth: [B], number of the part's codebooks used for each utterance; None for all."""
    batch, _, frames = x.shape
    projected = F.conv1d(x, part.input_proj.weight).transpose(1, 2).flatten(0, 1).float()
    residual, total = projected.detach(), torch.zeros_like(projected)
    codes = []
    for index, book in enumerate(part._books):
        if updater and updater.first:
            updater.initialize(book, residual)
        chosen = nearest(residual, book.entries())
        entries = book.entries()[chosen]
        if updater:
            updater.update(book, residual, chosen)
        if depth is not None:
            entries = entries * (index < depth).float().repeat_interleave(frames)[:, None]
        total, residual = total + entries, residual - entries
        codes.append(chosen.view(batch, frames))
    straight_through = (projected + (total - projected).detach()).view(batch, frames, -1).transpose(1, 2)
    vectors = F.conv1d(straight_through, part.output_proj.weight)
    return Quantized(vectors, torch.stack(codes, 2), F.mse_loss(projected, total))


class Codec(NamedTuple):
    """An encoder, and the decoder with the codebooks."""

    encoder: SampleEncoder
    """The one trained with the decoder, or for voice cloning the service's, which learns from it."""
    decoder: CodecDecoder


def build(config: CodecConfig, device: torch.device) -> Codec:
    """Returns an untrained codec, or one with an initial decoder; it depends on the seed but not on the device."""
    torch.manual_seed(config.seed)
    decoder_settings = decoder_config(config)
    encoder, decoder = Encoder(config, decoder_settings.codebook_dim), CodecDecoder(decoder_settings)
    codec_forward.initialize(decoder, seeded_generator(torch.device("cpu"), config.seed))
    if config.initial_decoder is not None:
        _copy_decoder(Checkpoint(config.initial_decoder).load_codec_decoder(), decoder)
    return Codec(encoder.to(device), decoder.to(device))


def _copy_decoder(source: CodecDecoder, target: CodecDecoder) -> None:
    """Copies the tensors of the target from the source, except those of the quantizer."""
    tensors = source.state_dict()
    wanted = [name for name in target.state_dict() if not name.startswith("quantizer.")]
    target.load_state_dict({name: tensors[name] for name in wanted}, strict=False)
