"""Scores what was spoken: is it understood, how long, how loud, does it click? And the codec alone."""

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
from .corpus import HELD_OUT
from .hearing import Recognisers
from .nearest import Nearest
from .sentence import Sentence

_SETTLING = 48
"""Samples (2 ms) in which a decoder that starts from nothing may click: not speech."""
SHORTEST, LONGEST = 0.7, 1.4
"""Of espeak-ng's duration: what is between is neither cut off nor a runaway."""
_BORDER = 2
"""Samples at each side of a border of frames."""


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Of one case."""

    case: str
    sentences: int
    identified: float | None
    """Share, of a closed set of as many, that a recogniser hears; None where it knows no such set."""
    identified_plain: float | None
    """The same, of what listeners are sent (without leading silence), by a recogniser that nothing is done to help."""
    nearest: float | None
    """Share that is nearest to espeak-ng's reading of its own sentence; None where that is no held-out set."""
    pieces: float | None
    """Share of a sentence's half seconds that are nearest to a place in that reading, mean over the sentences."""
    duration_ratio: tuple[float, float, float]
    """To espeak-ng: lowest, median, highest."""
    out_of_range: int
    """Sentences whose ratio is not within 0.7 to 1.4."""
    unended: int
    """Runaways."""
    empty: int
    leading_ms: float
    """The longest silence that one begins with."""
    border_ratio: float
    """Curvature of the waveform at borders of frames over that elsewhere: about 1 where nothing clicks."""
    peak_dbfs: float
    missed: list[str]


class _Measures(NamedTuple):
    """Of one sentence."""

    seconds: float
    leading_ms: float
    peak: int


def score(name: str, spoken: speak.Spoken, recognisers: Recognisers | None, config: SynthesisConfig) -> Score:
    """A case's score."""
    ends = np.cumsum(spoken.samples)
    audio = [spoken.pcm[end - count : end] for end, count in zip(ends, spoken.samples, strict=True)]
    measures = [_measure(each) for each in audio]
    readings = _readings(spoken, config)
    heard = _heard([each.tobytes() for each in audio], recognisers)
    likeness = _likeness(name, spoken.texts.tolist(), audio, readings)
    ratios = np.array([len(each) / len(read) for each, read in zip(audio, readings, strict=True)])
    peak = max(each.peak for each in measures)
    return Score(
        case=name,
        sentences=len(audio),
        identified=heard.identified,
        identified_plain=heard.plain,
        nearest=likeness.nearest,
        pieces=likeness.pieces,
        duration_ratio=_spread(ratios),
        out_of_range=int(((ratios < SHORTEST) | (ratios > LONGEST)).sum()),
        unended=int((~spoken.ended).sum()),
        empty=sum(each.peak == 0 or each.seconds == 0 for each in measures),
        leading_ms=round(max(each.leading_ms for each in measures), 1),
        border_ratio=round(border_ratio(audio), 3),
        peak_dbfs=round(20 * float(np.log10(max(peak, 1) / 32768)), 2),
        missed=heard.missed + likeness.mistaken,
    )


class _Heard(NamedTuple):
    """By recognisers."""

    identified: float | None
    plain: float | None
    missed: list[str]


def _heard(audio: Sequence[bytes], recognisers: Recognisers | None) -> _Heard:
    if recognisers is None:
        return _Heard(None, None, [])
    identified, missed = recognisers.helped.score(audio)
    plain, _ = recognisers.plain.score([sent(each) for each in audio])
    return _Heard(identified, plain, missed)


def sent(pcm: bytes) -> bytes:
    """What listeners are sent of an utterance."""
    cut = LeadingSilenceTrimmer()
    return cut.feed(pcm) + cut.end()


def _measure(samples: synthesis.Samples) -> _Measures:
    begun = samples[_SETTLING:].astype("<i2").tobytes()
    audible = first_audible(begun)
    lead = len(samples) if audible is None else audible + _SETTLING
    peak = int(np.abs(samples.astype(np.int32)).max(initial=0))
    return _Measures(len(samples) / FAMILY.sample_rate, 1e3 * lead / FAMILY.sample_rate, peak)


def border_ratio(audio: Sequence[synthesis.Samples]) -> float:
    """Mean square second difference within `_BORDER` samples of frames' borders, over that of all samples."""
    near, everywhere = [np.zeros(0)], [np.zeros(0)]
    for samples in audio:
        bend = np.diff(samples.astype(np.float64), 2) ** 2
        # The first frame's border is the utterance's beginning, where nothing was before.
        borders = np.arange(FAMILY.samples_per_frame, len(samples) - _BORDER, FAMILY.samples_per_frame)
        near += [bend[borders + offset - 1] for offset in range(-_BORDER, _BORDER)]
        everywhere.append(bend[FAMILY.samples_per_frame :])
    whole = float(np.concatenate(everywhere).mean())
    return float(np.concatenate(near).mean()) / whole if whole else 1.0


def _readings(spoken: speak.Spoken, config: SynthesisConfig) -> list[synthesis.Samples]:
    """espeak-ng's of the same sentences by the same speaker, at the middle of the rates that are learnt from."""
    voices, rate = config.speakers[spoken.voice], (config.slowest + config.fastest) // 2
    sentences = map(Sentence, spoken.texts.tolist(), spoken.languages.tolist())
    return [synthesis.utterance(sentence, voices[sentence.language], rate) for sentence in sentences]


class _Likeness(NamedTuple):
    """To espeak-ng's readings."""

    nearest: float | None
    pieces: float | None
    mistaken: list[str]


def _likeness(
    name: str, texts: list[str], audio: Sequence[synthesis.Samples], readings: Sequence[synthesis.Samples]
) -> _Likeness:
    """Of a held-out set; other sentences are too many to be compared with each other."""
    if name.rpartition("-")[2] not in HELD_OUT:
        return _Likeness(None, None, [])
    known, called = Nearest(readings), [*texts, "nothing"]
    found = [known.find(each) for each in audio]
    own = [np.mean(np.array(known.pieces(each)) == index) for index, each in enumerate(audio)]
    wrong = [f"{texts[at]!r} nearest to {called[other]!r}" for at, other in enumerate(found) if at != other]
    return _Likeness(1 - len(wrong) / len(found), float(np.mean(own)), wrong)


def _spread(ratios: npt.NDArray[np.float64]) -> tuple[float, float, float]:
    low, middle, high = np.quantile(ratios, (0, 0.5, 1)).round(3).tolist()
    return low, middle, high


def table(scores: Sequence[Score]) -> str:
    """A Markdown table."""
    lines = [
        "| case | sentences | identified | plain | nearest | pieces | duration to espeak-ng | outside 0.7-1.4 |"
        " runaways | empty | leading silence | border | peak |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for each in scores:
        shares = (each.identified, each.identified_plain, each.nearest, each.pieces)
        understood = " | ".join("" if share is None else f"{share:.2f}" for share in shares)
        ratio = "{1:.2f} ({0:.2f}-{2:.2f})".format(*each.duration_ratio)
        lines.append(
            f"| {each.case} | {each.sentences} | {understood} | {ratio} | {each.out_of_range} |"
            f" {each.unended} | {each.empty} |"
            f" {each.leading_ms:.0f} ms | {each.border_ratio:.2f} | {each.peak_dbfs:.1f} dBFS |"
        )
    return "\n".join(lines) + "\n"


def write(directory: Path, scores: Sequence[Score]) -> None:
    """Writes `scores.json` and `scores.md`."""
    (directory / "scores.json").write_bytes(msgspec.json.format(msgspec.json.encode(list(scores))) + b"\n")
    (directory / "scores.md").write_text(table(scores))
