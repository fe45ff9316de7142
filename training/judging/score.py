"""Scores generated speech: intelligibility, duration, loudness and clicks."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.silence import LeadingSilenceTrimmer, first_audible
from training.config import SynthesisConfig
from training.data.corpus import HELD_OUT
from training.data.synthesis import Samples
from training.judging.intelligibility import ReadingMatcher, Recognizer
from training.judging.similarity import Similarity, Verifier, compare
from training.judging.speak import Utterance, espeak_readings

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
    similarity: Similarity | None = None
    """To the references; None for a checkpoint with speakers of its own."""


def score(
    name: str,
    utterances: Sequence[Utterance],
    recognizers: tuple[Recognizer, Recognizer] | None,
    config: SynthesisConfig,
    verifier: Verifier | None = None,
) -> Score:
    """Returns a case's score. recognizers: the enhanced and the plain one of the case's sentences; None without.

    verifier: measures the similarity to the references.
    """
    audio = [np.frombuffer(each.pcm, "<i2") for each in utterances]
    readings = espeak_readings(utterances, config)
    errors: list[str] = []
    identified = identified_plain = nearest = segments = None
    if recognizers is not None:
        enhanced, plain = recognizers
        identified, errors = enhanced.score([each.pcm for each in utterances])
        identified_plain, _ = plain.score([trim_leading_silence(each.pcm) for each in utterances])
    # Other sets are too large to compare all pairs.
    if name.rpartition("-")[2] in HELD_OUT:
        matcher, names = ReadingMatcher(readings), [*(each.sentence.text for each in utterances), "nothing"]
        matches = [matcher.match(each) for each in audio]
        shares = [np.mean(np.array(matcher.match_segments(each)) == index) for index, each in enumerate(audio)]
        wrong = [f"{names[at]!r} nearest to {names[match]!r}" for at, match in enumerate(matches) if at != match]
        nearest, segments = 1 - len(wrong) / len(matches), float(np.mean(shares))
        errors = errors + wrong
    ratios = np.array([len(each) / len(reading) for each, reading in zip(audio, readings, strict=True)])
    low, middle, high = np.quantile(ratios, (0, 0.5, 1)).round(3).tolist()
    peaks = [int(np.abs(each.astype(np.int32)).max(initial=0)) for each in audio]
    return Score(
        case=name,
        sentences=len(audio),
        identified=identified,
        identified_plain=identified_plain,
        nearest=nearest,
        segments=segments,
        duration_ratio=(low, middle, high),
        out_of_range=int(((ratios < MIN_DURATION_RATIO) | (ratios > MAX_DURATION_RATIO)).sum()),
        runaways=sum(not each.ended for each in utterances),
        empty=peaks.count(0),
        leading_ms=round(max(map(_leading_ms, audio)), 1),
        border_ratio=round(border_ratio(audio), 3),
        peak_dbfs=round(20 * float(np.log10(max(*peaks, 1) / 32768)), 2),
        errors=errors,
        similarity=None if verifier is None else _similarity(verifier, utterances, readings),
    )


def _similarity(verifier: Verifier, utterances: Sequence[Utterance], readings: Sequence[Samples]) -> Similarity:
    speech, references = (
        verifier.embed([np.frombuffer(data, "<i2") for data in each])
        for each in ([one.pcm for one in utterances], [one.reference for one in utterances])
    )
    return compare(speech, references, verifier.embed(readings), [each.voice for each in utterances])


def trim_leading_silence(pcm: bytes) -> bytes:
    """Returns the audio as clients receive it."""
    trimmer = LeadingSilenceTrimmer()
    return trimmer.feed(pcm) + trimmer.end()


def _leading_ms(samples: Samples) -> float:
    audible = first_audible(samples[_DECODER_START:].astype("<i2").tobytes())
    return 1e3 * (len(samples) if audible is None else audible + _DECODER_START) / FAMILY.sample_rate


def border_ratio(audio: Sequence[Samples]) -> float:
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


def table(scores: Sequence[Score]) -> str:
    """Returns the scores as a Markdown table."""
    lines = [
        "| case | sentences | identified | plain | nearest | segments | duration to espeak-ng | outside 0.7-1.4 |"
        " runaways | empty | leading silence | border | peak |",
        "|" + "---|" * 13,
    ]
    for each in scores:
        shares = (each.identified, each.identified_plain, each.nearest, each.segments)
        low, middle, high = each.duration_ratio
        cells = (
            *(each.case, each.sentences),
            *("" if share is None else f"{share:.2f}" for share in shares),
            *(f"{middle:.2f} ({low:.2f}-{high:.2f})", each.out_of_range, each.runaways, each.empty),
            *(f"{each.leading_ms:.0f} ms", f"{each.border_ratio:.2f}", f"{each.peak_dbfs:.1f} dBFS"),
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, *_similarity_table(scores)]) + "\n"


def _similarity_table(scores: Sequence[Score]) -> list[str]:
    """Returns the lines of a table of the cases of voice cloning; none without any."""
    found = [(each.case, each.similarity) for each in scores if each.similarity is not None]
    if not found:
        return []
    columns = " similarity to reference | lowest | to other speakers | between speakers | espeak-ng | identified |"
    rows = [
        f"| {case} | {each.own:.2f} | {each.lowest:.2f} | {each.others:.2f} | {each.between:.2f} | {each.espeak:.2f} |"
        f" {each.identified:.2f} |"
        for case, each in found
    ]
    return ["", f"| case |{columns}", "|" + "---|" * 7, *rows]


def write(directory: Path, scores: Sequence[Score]) -> None:
    """Writes `scores.json` and `scores.md`."""
    (directory / "scores.json").write_bytes(msgspec.json.format(msgspec.json.encode(list(scores))) + b"\n")
    (directory / "scores.md").write_text(table(scores))
