"""Draws the speakers that voice cloning is learned from: a variant of espeak-ng's voice, a pitch and a scale each."""

import random
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

MIN_PITCH, MAX_PITCH = 20, 80
"""Of espeak-ng's parameter, 0 to 99."""
MAX_SCALE = 1.12
"""Formants and pitch are raised or lowered by this factor at most."""
_VOICE = "en-us"


class Timbre(msgspec.Struct, frozen=True):
    """What distinguishes speakers with the same espeak-ng voice."""

    pitch: int = 50
    """espeak-ng's parameter, 0 to 99."""
    scale: float = 1.0
    """Factor of all frequencies, formants included, at the same speaking rate."""


class Speakers(NamedTuple):
    """Drawn speakers, by name."""

    voices: dict[str, dict[str, str]]
    """espeak-ng's voice in each language."""
    timbres: dict[str, Timbre]


def draw(variants: Sequence[str], count: int, seed: int) -> Speakers:
    """Draws `count` English speakers, about as many of each variant; they depend on the arguments alone.

    A speaker is named after its variant and its number among the variant's speakers.
    """
    rng = random.Random(f"{seed} {' '.join(variants)}")
    voices: dict[str, dict[str, str]] = {}
    timbres = {}
    for number in range(count):
        variant = variants[number % len(variants)]
        name = f"{variant}-{number // len(variants)}"
        voices[name] = {"english": f"{_VOICE}+{variant}"}
        scale = MAX_SCALE ** rng.uniform(-1, 1)
        timbres[name] = Timbre(pitch=rng.randint(MIN_PITCH, MAX_PITCH), scale=round(scale, 3))
    return Speakers(voices, timbres)
