"""Scores generated speech: intelligibility, duration, loudness and clicks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.silence import LeadingSilenceTrimmer, first_audible

from . import speak, synthesis
from .config import SynthesisConfig
from .corpus import HELD_OUT, Sentence
from .dtw import ReadingMatcher
from .recognizer import RecognizerPair

_DECODER_START = 48
"""Samples (2 ms) at the beginning that may contain a click of the decoder, which starts from an empty state."""
MIN_DURATION_RATIO, MAX_DURATION_RATIO = 0.7, 1.4
"""Relative to espeak-ng's duration; outside, speech is cut off or runs away."""
_BORDER = 2
"""Samples at each side of a frame border."""


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """The score of one case."""

    case: str
    sentences: int
    identified: float | None
    """Share of sentences identified by the enhanced recognizer among those of the set; None without a recognizer."""
    identified_plain: float | None
    """The same by the plain recognizer, without leading silence, as clients receive the audio."""
    nearest: float | None
    """Share of sentences nearest to espeak-ng's reading of their text; None unless the sentences are a held-out set."""
    segments: float | None
    """Share of a sentence's half seconds whose nearest match is in that reading, mean over the sentences."""
    duration_ratio: tuple[float, float, float]
    """Duration over espeak-ng's: minimum, median, maximum."""
    out_of_range: int
    """Sentences whose ratio is not within 0.7 to 1.4."""
    runaways: int
    empty: int
    leading_ms: float
    """The longest leading silence."""
    border_ratio: float
    """Curvature of the waveform at frame borders over that elsewhere: about 1 without clicks."""
    peak_dbfs: float
    errors: list[str]


class _Measurements(NamedTuple):
    """Measurements of one sentence."""

    seconds: float
    leading_ms: float
    peak: int


class _Recognition(NamedTuple):
    """Results of both recognizers."""

    identified: float | None
    plain: float | None
    errors: list[str]


class _Similarity(NamedTuple):
    """Similarity to espeak-ng's readings."""

    nearest: float | None
    segments: float | None
    errors: list[str]


def score(name: str, case: speak.CaseAudio, recognizers: RecognizerPair | None, config: SynthesisConfig) -> Score:
    """Returns a case's score. recognizers: of the case's sentences; None without."""
    ends = np.cumsum(case.samples)
    audio = [case.pcm[end - count : end] for end, count in zip(ends, case.samples, strict=True)]
    measurements = [_measure(each) for each in audio]
    readings = _readings(case, config)
    recognition = _recognize([each.tobytes() for each in audio], recognizers)
    similarity = _similarity(name, case.texts.tolist(), audio, readings)
    ratios = np.array([len(each) / len(read) for each, read in zip(audio, readings, strict=True)])
    peak = max(each.peak for each in measurements)
    return Score(
        case=name,
        sentences=len(audio),
        identified=recognition.identified,
        identified_plain=recognition.plain,
        nearest=similarity.nearest,
        segments=similarity.segments,
        duration_ratio=_min_median_max(ratios),
        out_of_range=int(((ratios < MIN_DURATION_RATIO) | (ratios > MAX_DURATION_RATIO)).sum()),
        runaways=int((~case.ended).sum()),
        empty=sum(each.peak == 0 or each.seconds == 0 for each in measurements),
        leading_ms=round(max(each.leading_ms for each in measurements), 1),
        border_ratio=round(border_ratio(audio), 3),
        peak_dbfs=round(20 * float(np.log10(max(peak, 1) / 32768)), 2),
        errors=recognition.errors + similarity.errors,
    )


def _recognize(audio: Sequence[bytes], recognizers: RecognizerPair | None) -> _Recognition:
    if recognizers is None:
        return _Recognition(None, None, [])
    identified, errors = recognizers.enhanced.score(audio)
    plain, _ = recognizers.plain.score([trim_leading_silence(each) for each in audio])
    return _Recognition(identified, plain, errors)


def trim_leading_silence(pcm: bytes) -> bytes:
    """Returns the audio as clients receive it."""
    trimmer = LeadingSilenceTrimmer()
    return trimmer.feed(pcm) + trimmer.end()


def _measure(samples: synthesis.Samples) -> _Measurements:
    audible = first_audible(samples[_DECODER_START:].astype("<i2").tobytes())
    lead = len(samples) if audible is None else audible + _DECODER_START
    peak = int(np.abs(samples.astype(np.int32)).max(initial=0))
    return _Measurements(len(samples) / FAMILY.sample_rate, 1e3 * lead / FAMILY.sample_rate, peak)


def border_ratio(audio: Sequence[synthesis.Samples]) -> float:
    """Returns the mean squared second difference within `_BORDER` samples of frame borders, over that everywhere."""
    near, everywhere = [np.zeros(0)], [np.zeros(0)]
    for samples in audio:
        curvature = np.diff(samples.astype(np.float64), 2) ** 2
        # The first frame starts the utterance: there are no samples before its border.
        borders = np.arange(FAMILY.samples_per_frame, len(samples) - _BORDER, FAMILY.samples_per_frame)
        near += [curvature[borders + offset - 1] for offset in range(-_BORDER, _BORDER)]
        everywhere.append(curvature[FAMILY.samples_per_frame :])
    whole = float(np.concatenate(everywhere).mean())
    return float(np.concatenate(near).mean()) / whole if whole else 1.0


def _readings(case: speak.CaseAudio, config: SynthesisConfig) -> list[synthesis.Samples]:
    """Returns espeak-ng's readings of the same sentences by the same speaker, at the mean rate."""
    voices = config.speakers[case.voice]
    sentences = map(Sentence, case.texts.tolist(), case.languages.tolist())
    return [
        synthesis.utterance(sentence, voices[sentence.language], config.mean_words_per_minute) for sentence in sentences
    ]


def _similarity(
    name: str, texts: list[str], audio: Sequence[synthesis.Samples], readings: Sequence[synthesis.Samples]
) -> _Similarity:
    """Compares a held-out set with its readings; other sets are too large to compare all pairs."""
    if name.rpartition("-")[2] not in HELD_OUT:
        return _Similarity(None, None, [])
    matcher, names = ReadingMatcher(readings), [*texts, "nothing"]
    matches = [matcher.match(each) for each in audio]
    segments = [np.mean(np.array(matcher.match_segments(each)) == index) for index, each in enumerate(audio)]
    errors = [f"{texts[at]!r} nearest to {names[match]!r}" for at, match in enumerate(matches) if at != match]
    return _Similarity(1 - len(errors) / len(matches), float(np.mean(segments)), errors)


def _min_median_max(ratios: npt.NDArray[np.float64]) -> tuple[float, float, float]:
    low, middle, high = np.quantile(ratios, (0, 0.5, 1)).round(3).tolist()
    return low, middle, high


def table(scores: Sequence[Score]) -> str:
    """Returns the scores as a Markdown table."""
    lines = [
        "| case | sentences | identified | plain | nearest | segments | duration to espeak-ng | outside 0.7-1.4 |"
        " runaways | empty | leading silence | border | peak |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for each in scores:
        shares = (each.identified, each.identified_plain, each.nearest, each.segments)
        intelligibility = " | ".join("" if share is None else f"{share:.2f}" for share in shares)
        ratio = "{1:.2f} ({0:.2f}-{2:.2f})".format(*each.duration_ratio)
        lines.append(
            f"| {each.case} | {each.sentences} | {intelligibility} | {ratio} | {each.out_of_range} |"
            f" {each.runaways} | {each.empty} |"
            f" {each.leading_ms:.0f} ms | {each.border_ratio:.2f} | {each.peak_dbfs:.1f} dBFS |"
        )
    return "\n".join(lines) + "\n"


def write(directory: Path, scores: Sequence[Score]) -> None:
    """Writes `scores.json` and `scores.md`."""
    (directory / "scores.json").write_bytes(msgspec.json.format(msgspec.json.encode(list(scores))) + b"\n")
    (directory / "scores.md").write_text(table(scores))
