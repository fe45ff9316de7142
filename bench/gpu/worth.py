"""What each technique is worth: a recorded measurement of the same load with one of them switched off at a time."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

from msgspec import Struct

from syrinx_operator.commands.bench.report import markdown

MORE_IS_BETTER = "audio s/s"
"""Of other figures less is better."""


class Effect(Struct, frozen=True, kw_only=True):
    """One figure at one load, with a technique and without it."""

    technique: str
    load: str
    figure: str
    """With its unit."""
    on: float
    off: float

    @property
    def gain(self) -> float:
        """How many times better it is with the technique."""
        return self.on / self.off if self.figure == MORE_IS_BETTER else self.off / self.on


class WorthRun(Struct, frozen=True):
    """The result file."""

    revision: str
    effects: Sequence[Effect]

    def ratios(self) -> Mapping[str, float]:
        """Returns the median gain of each technique over its loads and figures."""
        gains: dict[str, list[float]] = defaultdict(list)
        for each in self.effects:
            if each.on and each.off:
                gains[each.technique].append(each.gain)
        return {technique: median(values) for technique, values in gains.items()}

    def table(self) -> str:
        """Returns the figures of every technique."""
        rows = [
            [each.technique, each.load, each.figure, f"{each.on:.4g}", f"{each.off:.4g}", f"{each.gain:.2f}x"]
            for each in sorted(self.effects, key=lambda each: each.technique)
            if each.on and each.off
        ]
        return markdown(["technique", "load", "figure", "with", "without", "gain"], rows)
