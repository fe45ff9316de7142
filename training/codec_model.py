"""The codec's trainable modules: encoder, codebooks and decoder."""

from __future__ import annotations

from typing import NamedTuple

import torch

from syrinx_stages.model.codec_decoder import CodecDecoder

from . import decoder as decoding
from .config import CodecConfig
from .encoder import Encoder
from .quantizer import QuantizerTraining
from .run import generator
from .shapes import decoder_config


class Codec(NamedTuple):
    """The modules that are trained together."""

    encoder: Encoder
    decoder: CodecDecoder

    @property
    def quantizer(self) -> QuantizerTraining:
        """On the decoder's codebooks."""
        return QuantizerTraining(self.decoder.quantizer)


def build(config: CodecConfig, device: torch.device) -> Codec:
    """Untrained modules; the same for the same seed, whatever the device."""
    torch.manual_seed(config.seed)
    encoder, decoder = Encoder(config), CodecDecoder(decoder_config(config))
    decoding.initialise(decoder, generator(torch.device("cpu"), config.seed))
    return Codec(encoder.to(device), decoder.to(device))
