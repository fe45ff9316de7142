"""Draws the speakers that voice cloning is learned from, and those it is tested with.

Speakers have one of espeak-ng's variants of its voice, or one of their own: an invented vocal tract. Training never
hears the variants of the test's speakers, not even at another pitch.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

MIN_PITCH, MAX_PITCH = 20, 80
"""Of espeak-ng's parameter, 0 to 99."""
MAX_SCALE = 1.12
"""Formants and pitch are raised or lowered by this factor at most."""
_VOICE = "en-us"
_FORMANTS, _LAST_OF_WORDS = 9, 3
_TONE_HZ = (400, 1_200, 3_000)
"""Frequencies whose levels a variant has."""
_ECHO_SHARE, _BREATH_SHARE, _KLATT_SHARE = 0.3, 0.2, 0.2
"""Shares of the variants with an echo, with breath, and with one of espeak-ng's four other synthesizers."""


class Timbre(msgspec.Struct, frozen=True):
    """What distinguishes speakers with the same espeak-ng voice."""

    pitch: int = 50
    """espeak-ng's parameter, 0 to 99."""
    scale: float = 1.0
    """Factor of all frequencies, formants included, at the same speaking rate."""
    variant: str = ""
    """The file of a variant of espeak-ng's voice, which is none of its own; empty: the voice as its name says."""


class Speakers(NamedTuple):
    """Drawn speakers, by name."""

    voices: dict[str, dict[str, str]]
    """espeak-ng's voice in each language."""
    timbres: dict[str, Timbre]


def invent(count: int, seed: int) -> Speakers:
    """Draws `count` English speakers, each with a variant of its own; they depend on the arguments alone."""
    rng = random.Random(f"{seed} invented")
    timbres = {f"invented-{number}": Timbre(scale=_scale(rng), variant=_variant(rng)) for number in range(count)}
    return Speakers({name: {"english": _VOICE} for name in timbres}, timbres)


def draw(variants: Sequence[str], count: int, seed: int) -> Speakers:
    """Draws `count` English speakers, about as many of each of espeak-ng's variants, as `invent` does.

    A speaker is named after its variant and its number among the variant's speakers.
    """
    rng = random.Random(f"{seed} {' '.join(variants)}")
    chosen = [(variants[number % len(variants)], number // len(variants)) for number in range(count)]
    voices = {f"{variant}-{number}": {"english": f"{_VOICE}+{variant}"} for variant, number in chosen}
    timbres = {name: Timbre(scale=_scale(rng), pitch=rng.randint(MIN_PITCH, MAX_PITCH)) for name in voices}
    return Speakers(voices, timbres)


def _scale(rng: random.Random) -> float:
    scale: float = MAX_SCALE ** rng.uniform(-1, 1)
    return round(scale, 3)


def _variant(rng: random.Random) -> str:
    """Returns a drawn file of a variant, within the ranges of most of espeak-ng's own."""
    low = 62 * 3.3 ** rng.random()
    # Short vocal tracts have high formants, and mostly belong to high voices.
    tract = 92 + 12 * (low - 62) / 143 + rng.gauss(0, 6)
    lines = ["language variant", "name drawn", f"pitch {low:.0f} {low * rng.uniform(1.1, 1.7):.0f}"]
    for formant in range(_FORMANTS):
        # Words are told apart by the lower formants; the higher ones distinguish voices, and may be missing.
        spread, faintest = (0.06, 60) if formant <= _LAST_OF_WORDS else (0.12, 0)
        frequency, level, width = tract * rng.gauss(1, spread), rng.uniform(faintest, 140), rng.uniform(50, 160)
        lines.append(f"formant {formant} {frequency:.0f} {level:.0f} {width:.0f}")
    levels = " ".join(f"{frequency} {rng.randint(60, 255)}" for frequency in _TONE_HZ)
    lines += [
        f"tone {levels}",
        f"voicing {rng.randint(60, 140)}",
        f"consonants {rng.randint(60, 130)} {rng.randint(70, 130)}",
        f"flutter {rng.randint(0, 5)}",
        f"roughness {rng.randint(0, 3)}",
    ]
    if rng.random() < _ECHO_SHARE:
        lines.append(f"echo {rng.randint(20, 150)} {rng.randint(5, 25)}")
    if rng.random() < _BREATH_SHARE:
        lines.append(f"breath 0{f' {rng.randint(1, 6)}' * 7}")
    if rng.random() < _KLATT_SHARE:
        lines.append(f"klatt {rng.randint(1, 4)}")
    return "\n".join([*lines, ""])
