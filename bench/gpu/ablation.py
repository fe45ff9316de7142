"""The result of `gpu.worth`: each technique switched off, beside what its public counterpart reported."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from msgspec import Struct, convert

from syrinx_operator.commands.bench.report import markdown
from syrinx_operator.local.machine import Machine


class Technique(Struct, frozen=True):
    """A technique, as in `techniques.yaml`."""

    what: str
    without: str
    """What happens when it is switched off."""
    published: str
    """What its public counterpart reported, with hardware and source."""
    difference: str
    """Why the gains differ."""


TECHNIQUES: Mapping[str, Technique] = convert(
    yaml.safe_load(Path(__file__).with_name("techniques.yaml").read_text()), dict[str, Technique]
)


class Effect(Struct, frozen=True, kw_only=True):
    """One figure at one load, with a technique and without it."""

    technique: str
    load: str
    figure: str
    """With its unit. More is better for those of `MORE_IS_BETTER`, and less for others."""
    on: float
    off: float

    @property
    def gain(self) -> float | None:
        """How many times better it is with the technique; None if one of both is zero."""
        if not (self.on and self.off):
            return None
        return self.on / self.off if self.figure in MORE_IS_BETTER else self.off / self.on


AUDIO = "audio s/s"
MORE_IS_BETTER = (AUDIO,)


class WorthRun(Struct, frozen=True, kw_only=True):
    """The result file."""

    created: str
    command: str
    revision: str | None
    machine: Machine
    gpu: str | None
    driver: str | None
    model: str
    complete: bool = False
    skipped: Sequence[str] = ()
    """Techniques that the time limit left out."""
    effects: Sequence[Effect] = ()


def tables(run: WorthRun) -> str:
    """Returns the table of the effects, and a list of the techniques with their public counterparts."""
    order = list(TECHNIQUES)
    effects = sorted(run.effects, key=lambda each: order.index(each.technique))
    rows = [
        [TECHNIQUES[each.technique].what, each.load, each.figure, _number(each.on), _number(each.off), _gain(each)]
        for each in effects
    ]
    measured = {each.technique for each in effects}
    parts = [markdown(["technique", "load", "figure", "with", "without", "gain"], rows)]
    parts.append("\n".join(_described(each) for name, each in TECHNIQUES.items() if name in measured))
    if run.skipped:
        parts.append(f"Not measured in the time: {', '.join(TECHNIQUES[name].what for name in run.skipped)}.")
    return "\n\n".join(parts)


def _described(technique: Technique) -> str:
    counterpart = f"Published elsewhere: {technique.published}. {technique.difference}"
    return f"- **{technique.what}**; without it: {technique.without}. {counterpart}"


def _number(value: float) -> str:
    return f"{value:.4g}"


def _gain(effect: Effect) -> str:
    return "-" if effect.gain is None else f"{effect.gain:.2f}x"
