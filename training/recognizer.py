"""Measures intelligibility: closed-set identification of sentences by pocketsphinx."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import soxr
from pocketsphinx import Decoder

from syrinx_stages.contract.family import FAMILY

from .corpus import Sentence

_RECOGNIZER_RATE = 16_000
_SILENCE = bytes(2 * FAMILY.sample_rate // 10)
"""Added before and after each sentence: without it the recognizer rejects some."""
_NOISE = 60.0
"""Standard deviation, of 32,768, of the noise added: the acoustic model was not trained on the log of digital silence.

With noise and per-utterance normalization, 0.92 of espeak-ng's long sentences in its plain British voice are
identified; with neither 0.38.
"""
_DITHER = 1.0
"""Half width, of 32,768, of the triangular dither that audio converters such as sox add."""


class Recognizer:
    """Identifies which of a set of sentences was spoken."""

    def __init__(self, sentences: Sequence[str], *, plain: bool = False) -> None:
        """sentences: English, in written form. Raises ValueError for words missing in the recognizer's dictionary.

        plain: only resample and dither, without added noise, silence and per-utterance normalization.
        """
        self.sentences = [" ".join(Sentence(sentence, "english").words()) for sentence in sentences]
        self._plain = plain
        # Batch normalization uses each utterance alone, so that earlier audio makes no difference.
        normalization = {} if plain else {"cmn": "batch"}
        decoder = Decoder(samprate=_RECOGNIZER_RATE, lm=None, loglevel="FATAL", **normalization)
        if unknown := sorted({w for s in self.sentences for w in s.split() if not decoder.lookup_word(w)}):
            raise ValueError(f"words missing in the recognizer's dictionary: {', '.join(unknown)}")
        decoder.add_jsgf_string("sentences", f"#JSGF V1.0; grammar s; public <s> = {' | '.join(self.sentences)};")
        decoder.activate_search("sentences")
        self._decoder = decoder

    def recognize(self, pcm: bytes) -> str:
        """Returns the words of the most likely sentence for 16-bit PCM at 24 kHz; empty if none matches."""
        samples = np.clip(self._resample(pcm), -32768, 32767)
        self._decoder.start_utt()
        self._decoder.process_raw(samples.astype("<i2").tobytes(), full_utt=True)
        self._decoder.end_utt()
        hypothesis = self._decoder.hyp()
        return str(hypothesis.hypstr) if hypothesis else ""

    def _resample(self, pcm: bytes) -> npt.NDArray[np.floating]:
        rng, padding = np.random.default_rng(0), b"" if self._plain else _SILENCE
        samples = np.frombuffer(padding + pcm + padding, dtype="<i2").astype(np.float32)
        if not self._plain:
            samples += rng.normal(0, _NOISE, len(samples)).astype(np.float32)
        resampled: npt.NDArray[np.float32] = soxr.resample(samples, FAMILY.sample_rate, _RECOGNIZER_RATE)
        if self._plain:
            resampled = np.round(resampled + rng.triangular(-_DITHER, 0, _DITHER, len(resampled)))
        return resampled

    def score(self, audio: Sequence[bytes]) -> tuple[float, list[str]]:
        """Returns the share of the sentences, spoken in order, that are identified, and a line for each error."""
        recognized = [self.recognize(pcm) for pcm in audio]
        errors = [
            f"{spoken!r} recognized as {result!r}"
            for spoken, result in zip(self.sentences, recognized, strict=True)
            if spoken != result
        ]
        return 1 - len(errors) / len(self.sentences), errors
