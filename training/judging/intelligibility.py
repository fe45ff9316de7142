"""Measures intelligibility: identification of English sentences by pocketsphinx, and similarity to readings.

In any language, speech is compared with readings by dynamic time warping (DTW). Features are mel cepstra and their
slopes, normalized per utterance, so that level, microphone and most of the speaker's voice make no difference.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import soxr
from pocketsphinx import Decoder

from syrinx_stages.contract.family import FAMILY
from training.codec.loss import mel_filters
from training.data.corpus import Sentence
from training.data.synthesis import Samples

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


_HOP, _WINDOW = FAMILY.sample_rate // 50, FAMILY.sample_rate // 25
_BANDS, _CEPSTRA = 26, 12
_MIN_HZ, _MAX_HZ = 80.0, 7_600.0
_FLOOR = 1e-5
"""Silence threshold relative to the utterance's loudest band: -50 dB."""
_SEGMENT = 25
"""Feature frames of a segment: half a second."""

Features = npt.NDArray[np.float32]
"""[frames of 20 ms, 24]."""
_FILTERS = mel_filters(_WINDOW, _BANDS, _MIN_HZ, _MAX_HZ).numpy().T
_COSINES = np.cos(np.pi * (np.arange(_BANDS)[:, None] + 0.5) * np.arange(1, _CEPSTRA + 1) / _BANDS)
"""[bands, cepstra]: the transform to cepstra 1 to 12; cepstrum 0, the level, is left out."""


def features(samples: Samples) -> Features:
    """Returns the features of 16-bit samples at 24 kHz, padded with silence to at least two windows."""
    padded = np.pad(samples.astype(np.float64), (0, max(0, 2 * _WINDOW - len(samples))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)[::_HOP] * np.hanning(_WINDOW)
    bands = np.abs(np.fft.rfft(frames)) ** 2 @ _FILTERS
    cepstra = np.log(np.maximum(bands, _FLOOR * bands.max() + 1)) @ _COSINES
    both = np.concatenate((cepstra, np.gradient(cepstra, axis=0)), 1)
    normalized: Features = ((both - both.mean(0)) / (both.std(0) + 1e-9)).astype(np.float32)
    return normalized


class ReadingMatcher:
    """Matches speech against a set of at least one reading."""

    def __init__(self, readings: Sequence[Samples]) -> None:
        each = [features(reading) for reading in readings]
        self._lengths = np.array([len(frames) for frames in each])
        self._readings = np.zeros((len(each), self._lengths.max(), 2 * _CEPSTRA), np.float32)
        for row, frames in zip(self._readings, each, strict=True):
            row[: len(frames)] = frames
        inside = np.arange(self._readings.shape[1]) < self._lengths[:, None]
        self._squared_norms = np.where(inside, np.square(self._readings).sum(-1), np.inf)

    def match(self, samples: Samples) -> int:
        """Returns the index of the reading nearest to the whole speech; -1 if it is too short for any."""
        start = np.full_like(self._squared_norms, np.inf)
        start[:, 0] = 0
        ends = self._path_costs(features(samples), start)[np.arange(len(start)), self._lengths - 1]
        return int(ends.argmin()) if np.isfinite(ends).any() else -1

    def match_segments(self, samples: Samples) -> list[int]:
        """Returns the index of the reading that contains the nearest match for each full half second of speech.

        Stricter than `match`, which finds a sentence even if half of it is wrong.
        """
        speech, anywhere = features(samples), np.zeros_like(self._squared_norms)
        starts = range(0, max(1, len(speech) - _SEGMENT + 1), _SEGMENT)
        return [int(self._path_costs(speech[at : at + _SEGMENT], anywhere).min(1).argmin()) for at in starts]

    def _path_costs(self, speech: Features, costs: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Returns the costs [readings, frames] of the best paths to each frame, given those before `speech`.

        A path visits each frame of the speech once and advances zero, one or two frames of the reading each time.
        """
        for frame in speech:
            best = costs.copy()
            best[:, 1:] = np.minimum(best[:, 1:], costs[:, :-1])
            best[:, 2:] = np.minimum(best[:, 2:], costs[:, :-2])
            squared_distance = self._squared_norms - 2 * (self._readings @ frame) + np.square(frame).sum()
            costs = best + np.sqrt(np.maximum(squared_distance, 0))
        return costs
