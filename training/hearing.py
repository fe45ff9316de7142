"""Can a recogniser tell which sentence was said? Closed-set identification by pocketsphinx."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import soxr
from pocketsphinx import Decoder

from syrinx_stages.contract.family import FAMILY

from .sentence import Sentence

_RECOGNISER_RATE = 16_000
_SILENCE = bytes(2 * FAMILY.sample_rate // 10)
"""Around each sentence: a grammar's utterances start and end in silence, and without it some are given up unheard."""
_NOISE = 60.0
"""Of 32,768, added to everything: the logarithm of digital silence is far from all that the recogniser has learnt.

With it, and each utterance normalised by itself, espeak-ng's plain British voice is understood at 0.92 in long
sentences; with neither at 0.38.
"""
_DITHER = 1.0
"""Of 32,768: the triangle that programs which convert audio (sox) add by themselves."""


class Recogniser:
    """Hears one of some sentences in whatever it is given."""

    def __init__(self, sentences: Sequence[str], *, plain: bool = False) -> None:
        """sentences: English, as they are written. Raises ValueError for a word that the recogniser does not know.

        plain: nothing is done to help it: the audio is converted as programs do, and no more.
        """
        self.sentences = [" ".join(Sentence(sentence, "english").words()) for sentence in sentences]
        self._plain = plain
        # Normalised over each utterance by itself: what was heard before makes no difference.
        normalised = {} if plain else {"cmn": "batch"}
        decoder = Decoder(samprate=_RECOGNISER_RATE, lm=None, loglevel="FATAL", **normalised)
        if unknown := sorted({w for s in self.sentences for w in s.split() if not decoder.lookup_word(w)}):
            raise ValueError(f"the recogniser does not know: {', '.join(unknown)}")
        decoder.add_jsgf_string("sentences", f"#JSGF V1.0; grammar s; public <s> = {' | '.join(self.sentences)};")
        decoder.activate_search("sentences")
        self._decoder = decoder

    def hear(self, pcm: bytes) -> str:
        """The sentence that 16-bit PCM at 24 kHz sounds most like, as its words; empty if it sounds like none."""
        samples = np.clip(self._converted(pcm), -32768, 32767)
        self._decoder.start_utt()
        self._decoder.process_raw(samples.astype("<i2").tobytes(), full_utt=True)
        self._decoder.end_utt()
        heard = self._decoder.hyp()
        return str(heard.hypstr) if heard else ""

    def _converted(self, pcm: bytes) -> npt.NDArray[np.floating]:
        draw, around = np.random.default_rng(0), b"" if self._plain else _SILENCE
        samples = np.frombuffer(around + pcm + around, dtype="<i2").astype(np.float32)
        if not self._plain:
            samples += draw.normal(0, _NOISE, len(samples)).astype(np.float32)
        converted: npt.NDArray[np.float32] = soxr.resample(samples, FAMILY.sample_rate, _RECOGNISER_RATE)
        if self._plain:
            converted = np.round(converted + draw.triangular(-_DITHER, 0, _DITHER, len(converted)))
        return converted

    def score(self, audio: Sequence[bytes]) -> tuple[float, list[str]]:
        """The share of sentences, spoken in their order, that are identified; and what the others were heard as."""
        heard = [self.hear(pcm) for pcm in audio]
        missed = [f"{said!r} heard as {got!r}" for said, got in zip(self.sentences, heard, strict=True) if said != got]
        return 1 - len(missed) / len(self.sentences), missed


class Recognisers(NamedTuple):
    """Both of one set of sentences."""

    helped: Recogniser
    plain: Recogniser

    @classmethod
    def of(cls, sentences: Sequence[str]) -> Recognisers:
        """Raises as `Recogniser` does."""
        return cls(Recogniser(sentences), Recogniser(sentences, plain=True))
