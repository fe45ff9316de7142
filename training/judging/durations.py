"""Measures how long a checkpoint's speech of a text is, for the bounds by which its talker checks segments."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.normalization.durations import Durations, bounds, counts_of
from syrinx_stages.normalization.normalize import normalize
from training.data.corpus import HELD_OUT, Sentence, finish, held_out
from training.data.grammar import Grammar
from training.judging.speak import Utterance

_ROUNDS = 10
"""Times that the fit is repeated without the clips that are far from it."""
_FAR = 3.0
"""Square roots of the expected frames from which on a clip is far: it may have lost words, or added some."""
_EARLY, _LATE = 2.0, 3.0
"""Square roots of the expected frames that are healthy. Of 3,005 sentences of the bundled voice all were between -1.4
and 2.3."""


def utterances(number: int, voices: Sequence[str], languages: frozenset[str], seed: int) -> list[Utterance]:
    """Returns random sentences of the grammars and the held-out sets, without speech."""
    rng = random.Random(seed)
    grammars = [Grammar(language, rng, []) for language in ("english", "german") if language in languages]
    fixed = [each for name, language in HELD_OUT.items() if language in languages for each in held_out(name)]
    found = []
    for count in range(number):
        grammar = rng.choice(grammars)
        drawn = finish(Sentence(grammar.sentence(), grammar.language)) if rng.random() < 0.75 else rng.choice(fixed)
        # As the talker does for the voice.
        sentence = Sentence(normalize(drawn.text, (drawn.language,)), drawn.language)
        voice, streaming = rng.choice(voices), rng.random() < 0.3
        found.append(Utterance(sentence=sentence, voice=voice, streaming=streaming, seed=seed + count))
    return found


def fit(spoken: Sequence[Utterance]) -> Durations:
    """Returns the durations of healthy utterances, by least squares relative to the square root of the expectation."""
    fields = ("text", *msgspec.structs.asdict(counts_of("")))
    counts = np.array([[1, *msgspec.structs.astuple(counts_of(each.sentence.text))] for each in spoken], np.float64)
    frames = np.array([len(each.pcm) / FAMILY.frame_bytes for each in spoken])
    used, weights = counts.any(0), np.ones(len(spoken))
    for _ in range(_ROUNDS):
        found, *_ = np.linalg.lstsq(counts[:, used] * weights[:, None], frames * weights)
        expected = np.maximum(counts[:, used] @ found, 1.0)
        far = np.abs(frames - expected) > _FAR * np.sqrt(expected)
        weights = np.where(far, 0.0, 1 / np.sqrt(expected))
    ratios, voices = frames / expected, np.array([each.voice for each in spoken])
    measured = dict(zip(np.array(fields)[used], np.round(found, 3).tolist(), strict=True))
    factors = {str(voice): round(float(np.median(ratios[voices == voice])), 3) for voice in np.unique(voices)}
    return Durations(**measured, voices=factors, shortest=1.0, longest=1.0, early=_EARLY, late=_LATE)


def beyond(spoken: Sequence[Utterance], durations: Durations) -> list[str]:
    """Returns the utterances that a talker with these durations would make again."""
    found = []
    for each in spoken:
        limits, frames = bounds(each.sentence.text, durations, each.voice), len(each.pcm) // FAMILY.frame_bytes
        if not limits.least <= frames <= limits.most:
            found.append(f"{each.voice}, {frames} frames instead of {limits.expected}: {each.sentence.text}")
    return found


def save(durations: Durations, path: Path) -> None:
    """Writes durations to a checkpoint's `generation_config.json`."""
    config = json.loads(path.read_text()) if path.exists() else {}
    config["durations"] = {name: value for name, value in msgspec.to_builtins(durations).items() if value}
    path.write_text(json.dumps(config, indent=1) + "\n")
