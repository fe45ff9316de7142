"""Chooses the decoder shapes that a codec captures, from the measured times of its calls. Pure.

A call is padded to a captured shape that holds it, which costs nothing. Sets are built greedily, a few new shapes at a
time: what they save is measured before more are added, and a shape that does not save is dropped.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct

from syrinx_operator.observed.evidence import CaptureCost
from syrinx_operator.resource.fields.tuning import CaptureBounds
from syrinx_operator.resource.spec import CaptureShape
from syrinx_operator.resource.state.tuning_status import CallPoint
from syrinx_operator.tuner.model.curves import CallCost, call_cost
from syrinx_stages.scheduling.codec import holds

MIN_SAVED = 0.03
"""Ratio of the decoder time that a change must save, and each shape a third of it."""
MAX_NEW = 2
"""New shapes at a time."""

Shape = tuple[int, int]
"""Rows and frames."""
Costs = tuple[CallCost | None, CallCost | None]
"""Of eager and of captured calls; None without any."""


class CapturePlan(Struct, frozen=True):
    """A set of shapes, and the ratio of the decoder time that it saves; None if no captured call was measured yet."""

    shapes: tuple[CaptureShape, ...]
    saved: float | None


class CallTimes:
    """Seconds of decoder calls with a set of captured shapes."""

    def __init__(self, costs: Costs, shapes: Iterable[Shape]) -> None:
        self._eager, self._captured = costs[0] or costs[1], costs[1]
        self.shapes: tuple[Shape, ...] = tuple(shapes) if self._captured else ()
        """Those that calls are padded to; none while the cost of a captured call is not known."""
        self._known: dict[Shape, float] = {}

    def at(self, rows: int, frames: int) -> float:
        """Returns the seconds of a call."""
        if (rows, frames) not in self._known:
            is_padded = any(holds(shape, rows, frames) for shape in self.shapes)
            cost = self._captured if is_padded else self._eager
            assert cost is not None, "calls were measured"
            self._known[rows, frames] = cost.at(rows, frames)
        return self._known[rows, frames]


@lru_cache(maxsize=16)
def call_times(calls: tuple[CallPoint, ...], shapes: tuple[CaptureShape, ...]) -> CallTimes:
    """Returns the seconds of calls. Raises AssertionError without measured calls."""
    return CallTimes(_costs(calls), ((shape.rows, shape.frames) for shape in shapes))


def _costs(calls: Sequence[CallPoint]) -> Costs:
    eager, captured = (call_cost(c for c in calls if c.captured is kind) for kind in (False, True))
    return eager, captured


def plan_captures(
    calls: Sequence[CallPoint],
    asked: Mapping[Shape, float],
    captures: Sequence[CaptureCost],
    current: Sequence[CaptureShape],
    budget: CaptureBounds,
    max_rows: int,
) -> CapturePlan | None:
    """Returns the shapes to capture, at most `MAX_NEW` of them new; None with too little data or gain.

    `calls` are the measured times, `asked` the numbers of recent calls by requested shape.
    A shape that was never captured is assumed to cost as much for each row and frame as those that were; until the cost
    of one is known, there are no new ones.
    """
    counts = {shape: count for shape, count in asked.items() if shape[0] <= max_rows}
    eager, captured = costs = _costs(calls)
    held = [(shape.rows, shape.frames) for shape in current]
    fits = _within(budget, captures)
    if eager is None or not counts:
        return None
    if captured is None:
        heaviest = sorted(counts, key=lambda shape: -counts[shape] * eager.at(*shape))
        first: list[Shape] = []
        for shape in heaviest[:MAX_NEW]:
            first += [shape] if fits([*first, shape]) else []
        return CapturePlan(_sorted(first), None) if first and not held else None

    def seconds(shapes: Sequence[Shape]) -> float:
        times = CallTimes(costs, shapes)
        return sum(count * times.at(*shape) for shape, count in counts.items())

    before = seconds(held)
    chosen = _without_useless(held, seconds, MIN_SAVED / 3 * before)
    for _ in range(MAX_NEW):
        more = [[*chosen, shape] for shape in counts if shape not in chosen and fits([*chosen, shape])]
        best = min(more, key=seconds, default=chosen)
        if seconds(chosen) - seconds(best) < MIN_SAVED / 3 * before:
            break
        chosen = best
    saved = 1 - seconds(chosen) / before
    return CapturePlan(_sorted(chosen), saved) if saved >= MIN_SAVED else None


def _within(budget: CaptureBounds, captures: Sequence[CaptureCost]) -> Callable[[Sequence[Shape]], bool]:
    """Returns whether a set of shapes is within the limits, by what others took for each row and frame."""
    area = sum(each.rows * each.frames for each in captures)

    def fits(shapes: Sequence[Shape]) -> bool:
        part = sum(rows * frames for rows, frames in shapes) / max(area, 1)
        seconds, memory = (part * sum(each) for each in zip(*((c.seconds, c.bytes) for c in captures), strict=True))
        return len(shapes) <= budget.max and seconds <= budget.seconds and memory <= budget.memory_mi_b << 20

    return fits if area else lambda _: False


def _without_useless(held: list[Shape], seconds: Callable[[Sequence[Shape]], float], least: float) -> list[Shape]:
    """Returns the shapes without those that save less than `least` seconds, or cost time."""
    shapes = held
    for shape in held:
        others = [each for each in shapes if each != shape]
        if seconds(others) - seconds(shapes) < least:
            shapes = others
    return shapes


def _sorted(shapes: Iterable[Shape]) -> tuple[CaptureShape, ...]:
    return tuple(CaptureShape(rows=rows, frames=frames) for rows, frames in sorted(shapes))
