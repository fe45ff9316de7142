"""The decoder of the Qwen3-TTS 12 Hz speech tokenizer: codes to 24 kHz audio, any number of frames per call.

Parameter names are those of the official checkpoint below `decoder.` (QwenLM/Qwen3-TTS, tokenizer_12hz). On a CPU with
one thread, a request's samples are bit-identical for any split of its frames into calls and any other rows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from syrinx_stages.model.codec.layers import (
    CausalConv,
    CausalTransposedConv,
    ConvNeXtBlock,
    DecoderBlock,
    Derived,
    SnakeBeta,
)
from syrinx_stages.model.codec.state import Carry, DecoderState, StateLayout
from syrinx_stages.model.codec.transformer import PreTransformer

if TYPE_CHECKING:
    from syrinx_stages.model.config import DecoderConfig


class Codebook(nn.Module):
    """The entries of one quantizer as running sums: an entry is `embedding_sum / cluster_usage`."""

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.cluster_usage = nn.Parameter(torch.ones(size))
        self.embedding_sum = nn.Parameter(torch.zeros(size, dim))

    def entries(self) -> Tensor:
        """Returns the entries: [size, dim] float32."""
        return self.embedding_sum.detach().float() / self.cluster_usage.detach().float().clamp(min=1e-5)[:, None]


class Projection(nn.Module):
    """The weight of a convolution with one tap and no bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(outputs, inputs, 1))


class ResidualQuantizer(nn.Module):
    """Quantizers with a shared projection. `input_proj` is the encoder's; it is here because checkpoints have it."""

    def __init__(self, quantizers: int, size: int, dim: int) -> None:
        super().__init__()
        self.input_proj = Projection(dim, dim // 2)
        self.output_proj = Projection(dim // 2, dim)
        self._books = [Codebook(size, dim // 2) for _ in range(quantizers)]
        layers = nn.ModuleList([nn.ModuleDict({"_codebook": book}) for book in self._books])
        self.vq = nn.ModuleDict({"layers": layers})

    def tables(self) -> list[Tensor]:
        """Returns each quantizer's projected entries: [size, dim] float32."""
        projection = self.output_proj.weight.detach().float().squeeze(-1)
        return [book.entries() @ projection.T for book in self._books]


class Quantizer(Derived):
    """Maps codes [B, F, quantizers] to the sums of their table rows [B, F, codebook_dim]."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.size = config.codebook_size
        self.rvq_first = ResidualQuantizer(1, config.codebook_size, config.codebook_dim)
        self.rvq_rest = ResidualQuantizer(config.num_quantizers - 1, config.codebook_size, config.codebook_dim)

    def derive(self) -> tuple[Tensor, ...]:
        """Returns all tables as one [quantizers * size, dim], and the first row of each [quantizers]."""
        tables = torch.cat(self.rvq_first.tables() + self.rvq_rest.tables())
        starts = torch.arange(0, tables.shape[0], self.size, device=tables.device)
        return tables.to(self.rvq_first.output_proj.weight.dtype), starts

    def forward(self, codes: Tensor) -> Tensor:
        """Sums the rows in the order of the quantizers."""
        tables, starts = self.derived()
        return tables[codes + starts].sum(2)


class CodecDecoder(nn.Module):
    """Decodes codes to audio with an explicit state per request."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.frame_samples = config.samples_per_frame
        self._layout = layout = StateLayout()
        latent = config.latent_dim
        self.quantizer = Quantizer(config)
        self.pre_conv = CausalConv(layout, config.codebook_dim, latent, taps=3)
        self.pre_transformer = PreTransformer(layout, config)
        self._transformer_width, transformer_history = layout.width, layout.history
        self.upsample = nn.ModuleList()
        for ratio in config.upsampling_ratios:
            up = CausalTransposedConv(layout, latent, latent, ratio, ratio)
            self.upsample.append(nn.ModuleList([up, ConvNeXtBlock(layout, latent)]))
        channels = config.decoder_dim
        self.decoder = nn.ModuleList([CausalConv(layout, latent, channels, taps=7)])
        for rate in config.upsample_rates:
            self.decoder.append(DecoderBlock(layout, channels, rate))
            channels //= 2
        self.decoder.extend([SnakeBeta(layout, channels), CausalConv(layout, channels, 1, taps=7)])
        self.context_frames = math.ceil(layout.history - transformer_history)
        """Frames that `forward` must decode after a `prefill` for its state, and what follows, to be exact."""

    def new_state(self, rows: int) -> DecoderState:
        """Returns the state of `rows` new requests, on the decoder's device and in its dtype."""
        weight = self.pre_transformer.input_proj.weight
        data = torch.zeros(rows, self._layout.width, dtype=weight.dtype, device=weight.device)
        return DecoderState(data, torch.zeros(rows, dtype=torch.long, device=weight.device))

    @torch.no_grad()
    def forward(self, codes: Tensor, lengths: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Decodes the next frames of B requests.

        codes: [B, F, quantizers] int64, all within the codebook. lengths: [B] int64, the number of valid frames of each
        row; the others are padding. state: the B requests' state, which is not modified.
        Returns pcm [B, F * frame_samples] in -1..1, of which the first lengths[b] * frame_samples samples of row b are
        valid, and the state after the valid frames. A length of 0 leaves a row's state unchanged.
        """
        device = state.data.device
        carry = Carry(state, lengths.to(device), codes.shape[1])
        x = self._latents(codes.to(device), carry)
        for stage in self.upsample:
            for module in stage.children():
                x = module(x, carry)
        first, *blocks, snake, last = self.decoder
        x = first(x, carry)
        for block in blocks:
            x = block(x, carry)
        pcm = last(x, carry, activation=snake).squeeze(2).clamp_(-1, 1)
        return pcm, carry.state()

    @torch.no_grad()
    def prefill(self, codes: Tensor, lengths: Tensor, state: DecoderState) -> DecoderState:
        """Returns the state after frames whose audio is not needed, without what only audio needs.

        Takes what `forward` takes. The convolutions behind the transformer start anew: they reach back
        `context_frames`, the transformer much further. So `forward` needs that many more frames of context.
        """
        carry = Carry(state, lengths.to(state.data.device), codes.shape[1])
        self._latents(codes.to(state.data.device), carry)
        after = carry.state()
        after.data[:, self._transformer_width :] = 0
        return after

    def _latents(self, codes: Tensor, carry: Carry) -> Tensor:
        """Returns [B, F, latent_dim], which the convolutions turn to audio."""
        x: Tensor = self.pre_transformer(self.pre_conv(self.quantizer(codes), carry), carry)
        return x
