"""Small random codec decoders with every kind of layer and few samples per frame."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from syrinx_stages.model.codec.decoder import CodecDecoder
from syrinx_stages.model.codec.state import DecoderState
from syrinx_stages.model.config import DecoderConfig

CODES = 32
"""Entries per codebook."""

CONFIG = DecoderConfig(
    codebook_size=CODES,
    codebook_dim=24,
    hidden_size=32,
    latent_dim=40,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    sliding_window=6,
    intermediate_size=48,
    num_hidden_layers=2,
    num_quantizers=16,
    upsample_rates=(2, 3),
    upsampling_ratios=(2,),
    decoder_dim=96,
)
"""Grouped-query attention, a short window, and channels that are not multiples of 16 or not powers of two."""


def random_decoder(config: DecoderConfig = CONFIG, device: str = "cpu", seed: int = 0) -> CodecDecoder:
    """Returns a decoder whose activations stay near 1 and whose norms, scales and biases are not the defaults."""
    with torch.device(device):
        decoder = CodecDecoder(config)
    last = len(decoder.decoder) - 1
    generator = torch.Generator(device=device).manual_seed(seed)
    with torch.no_grad():
        for name, weight in decoder.named_parameters():
            if name.endswith("cluster_usage") or ("norm" in name and name.endswith("weight")):
                weight.uniform_(0.5, 1.5, generator=generator)
            elif "scale" in name or "gamma" in name:
                weight.uniform_(0.1, 0.4, generator=generator)
            elif weight.dim() == 1:
                weight.normal_(0, 0.1, generator=generator)
            else:
                gain = 0.1 if name.startswith(f"decoder.{last}.") else 0.5 if "conv2" in name else 1.0
                weight.normal_(0, gain / weight[0].numel() ** 0.5, generator=generator)
    return decoder.eval().requires_grad_(False)


def random_frames(count: int, seed: int, size: int = CODES) -> list[bytes]:
    """Returns `count` frames as a talker sends them."""
    values = np.random.default_rng(seed).integers(0, size, (count, 16))
    return [line.tobytes() for line in values.astype("<i2")]


class Reference:
    """Decodes one request with the float32 decoder, without batching."""

    def __init__(self, decoder: CodecDecoder) -> None:
        self._decoder = decoder
        self._state: DecoderState = decoder.new_state(1)

    def decode(self, frames: Sequence[bytes]) -> np.ndarray:
        """Returns the samples of the next frames, in -1..1."""
        codes = np.frombuffer(b"".join(frames), "<i2").reshape(1, len(frames), 16).astype(np.int64)
        device = self._state.data.device
        lengths = torch.tensor([len(frames)], device=device)
        pcm, self._state = self._decoder(torch.from_numpy(codes).to(device), lengths, self._state)
        return pcm[0].float().cpu().numpy()


def samples(pcm: bytes) -> np.ndarray:
    """Returns the samples of 16-bit PCM, in -1..1."""
    return np.frombuffer(pcm, "<i2") / 32767
