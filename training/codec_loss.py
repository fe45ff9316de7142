"""What a step of the codec's training computes: of the codec as a whole, and of its decoder alone.

`inputs` draws all that is random; `parts` can be replayed with other inputs of the same kind (`Replayed`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from syrinx_stages.contract.audio import FRAME_SAMPLES
from syrinx_stages.model.codec_decoder import CodecDecoder

from . import decoder as decoding
from . import quantizer
from .config import CodecConfig
from .crops import Audio, Window, crops, heard, window
from .quantizer import Draws
from .run import generator
from .spectral import SpectralLoss

if TYPE_CHECKING:
    from .codec import Codec

_COMMITMENT = 0.25
_POSITIONS_A_FRAME = 4
"""Of the states that the convolutions turn into samples."""


class _Kind(NamedTuple):
    """What of a step decides about shapes and kernels."""

    begins: bool
    quantised: bool
    revives: bool


class Loss:
    """Of encoder, codebooks and decoder."""

    NAMES: ClassVar = ("spectral", "commitment")

    def __init__(self, config: CodecConfig, codec: Codec, audio: Audio, *, compiled: bool) -> None:
        self._config, self._codec, self._audio = config, codec, audio
        self._decoded = _Decoded(config, codec.decoder, audio.samples.device, compiled=compiled)
        self.device = audio.samples.device

    def inputs(self, step: int) -> tuple[_Kind, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """What `parts` takes at a step. Before the first one that quantises, it begins the codebooks."""
        config, decoded = self._config, window(self._config, step)
        draw = generator(self.device, config.seed, step)
        samples = heard(self._audio, crops(config, self._audio, draw, begins=decoded.begins))
        if step == config.unquantised_steps:
            with torch.no_grad():
                self._codec.quantizer.begin(self._encoded(samples), draw)
        quantised = step >= config.unquantised_steps
        kind = _Kind(decoded.begins, quantised, quantised and quantizer.revives(step))
        draws = self._codec.quantizer.draw(config.batch, config.frames, draw)
        return kind, samples, *self._decoded.inputs(samples, decoded), *draws

    def parts(
        self, kind: _Kind, samples: Tensor, places: Tensor, wanted: Tensor, *draws: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Spectral distance, and how far what the encoder says is from codes, as both count."""
        encoded = self._encoded(samples)
        if not kind.quantised:
            return self._decoded.distance(encoded, places, wanted), encoded.new_zeros(())
        found = self._codec.quantizer(encoded, Draws(*draws), revives=kind.revives)
        return self._decoded.distance(found.vectors, places, wanted), _COMMITMENT * found.commitment

    def _encoded(self, samples: Tensor) -> Tensor:
        with self._decoded.half:
            encoded: Tensor = self._codec.encoder(samples)
        return encoded.float()


class PolishLoss:
    """Of the decoder alone, given codes."""

    NAMES: ClassVar = ("spectral",)

    def __init__(self, config: CodecConfig, codec: Codec, audio: Audio, codes: Tensor, *, compiled: bool) -> None:
        """codes: of the audio, [frames, 16]."""
        self._config, self._codec, self._audio, self._codes = config, codec, audio, codes
        self._decoded = _Decoded(config, codec.decoder, audio.samples.device, compiled=compiled)
        self.device = audio.samples.device

    def inputs(self, step: int) -> tuple[bool, Tensor, Tensor, Tensor]:
        """What `parts` takes at a step."""
        config, decoded = self._config, window(self._config, step)
        draw = generator(self.device, config.seed, step)
        samples = crops(config, self._audio, draw, begins=decoded.begins, grain=FRAME_SAMPLES)
        codes = self._codes[samples[:, ::FRAME_SAMPLES] // FRAME_SAMPLES].long()
        return decoded.begins, codes, *self._decoded.inputs(heard(self._audio, samples), decoded)

    def parts(self, _begins: bool, codes: Tensor, places: Tensor, wanted: Tensor) -> tuple[Tensor]:
        """Spectral distance."""
        vectors = self._codec.decoder.quantizer(codes).transpose(1, 2)
        return (self._decoded.distance(vectors, places, wanted),)


class _Decoded:
    """Vectors, decoded and compared with what was said."""

    def __init__(self, config: CodecConfig, decoder: CodecDecoder, device: torch.device, *, compiled: bool) -> None:
        self._config, self._decoder = config, decoder
        spectral = SpectralLoss().to(device)
        waveform: Callable[[CodecDecoder, Tensor], Tensor] = decoding.waveform
        self._spectral = torch.compile(spectral) if compiled else spectral
        self._waveform = torch.compile(waveform) if compiled else waveform
        # Weights that are kept in bfloat16 from an earlier step would not be read again when one is replayed.
        self.half = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda", cache_enabled=False)

    def inputs(self, samples: Tensor, decoded: Window) -> tuple[Tensor, Tensor]:
        """Which states are decoded, and the samples of those that count."""
        first, end = decoded.first, decoded.first + self._config.decoded_frames
        places = torch.arange(first * _POSITIONS_A_FRAME, end * _POSITIONS_A_FRAME, device=samples.device)
        return places, samples[:, (first + decoded.skipped) * FRAME_SAMPLES : end * FRAME_SAMPLES]

    def distance(self, vectors: Tensor, places: Tensor, wanted: Tensor) -> Tensor:
        """vectors: [B, codebook_dim, F]."""
        with self.half:
            states = decoding.hidden(self._decoder, vectors)
        made = self._waveform(self._decoder, states.float().index_select(-1, places))
        distance: Tensor = self._spectral(made[:, made.shape[1] - wanted.shape[1] :], wanted)
        return distance
