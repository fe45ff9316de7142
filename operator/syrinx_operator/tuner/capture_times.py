"""Times of captured and eager decoder calls by shape: measured with enough calls, else fitted. Pure.

Times are seconds per call. A shape is (rows, frames).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations

from msgspec import Struct

from syrinx_operator.tuner.evidence import CallStats

Shape = tuple[int, int]

FULL_WEIGHT_CALLS = 30
"""Number of calls from which a mean is used as measured. More calls add no weight to a fit, because the error of the
fit is then its form, not noise."""

UNKNOWN_SECONDS = 1e6
"""Time of an eager call if none was measured, so that no captured shape is dropped."""


class MeanTime(Struct, frozen=True):
    """Mean time of the calls computed at one shape."""

    count: int
    seconds: float
    """Per call."""


def rank(shape: Shape) -> tuple[int, Shape]:
    """Sort key: the codec pads a call to the first captured shape that fits it in this order.

    Duplicates `syrinx_stages.codec.scheduler.cheapest_shape`, which is not part of the operator's image.
    """
    return shape[0] * shape[1], shape


def padded_shape(captured: Iterable[Shape], wanted: Shape) -> Shape | None:
    """Returns the captured shape that a call is padded to, or None if no shape fits and it runs eagerly."""
    holding = [shape for shape in captured if shape[0] >= wanted[0] and shape[1] >= wanted[1]]
    return min(holding, key=rank, default=None)


def mean_times(
    calls: Iterable[CallStats], current: Sequence[Shape]
) -> tuple[dict[Shape, MeanTime], dict[Shape, MeanTime]]:
    """Returns the mean times of eager and of captured calls, by the shape that was computed.

    Skips padded calls that the current shapes would not pad: they were computed at an unknown earlier shape.
    """
    sums: tuple[dict[Shape, list[float]], dict[Shape, list[float]]] = ({}, {})
    for call in calls:
        wanted: Shape = (call.rows, call.frames)
        shape = padded_shape(current, wanted) if call.result == "padded" else wanted
        if shape is None or (call.result == "padded" and shape == wanted) or call.count <= 0:
            continue
        total = sums[call.result != "eager"].setdefault(shape, [0, 0.0])
        total[0] += call.count
        total[1] += call.seconds
    eager, captured = (
        {shape: MeanTime(int(count), seconds / count) for shape, (count, seconds) in kind.items()} for kind in sums
    )
    return eager, captured


class TimeGrid(Struct, frozen=True):
    """Times at each shape of a grid, indexed [frames][rows]. They never decrease as a shape grows."""

    eager: list[list[float]]
    captured: list[list[float]]


def estimate_times(
    eager: Mapping[Shape, MeanTime], captured: Mapping[Shape, MeanTime], rows: Sequence[int], frames: Sequence[int]
) -> TimeGrid | None:
    """Returns the times on the grid of ascending `rows` and `frames`, or None with too little data.

    Without a captured call the gain of capturing is unknown; without calls of different shapes, the cost of padding.
    """
    fit = _fit(eager, captured)
    if fit is None:
        return None
    return TimeGrid(
        eager=_grid(lambda shape: fit(shape, False), eager, rows, frames),
        captured=_grid(lambda shape: fit(shape, True), captured, rows, frames),
    )


def _grid(
    fit: Callable[[Shape], float], measured: Mapping[Shape, MeanTime], rows: Sequence[int], frames: Sequence[int]
) -> list[list[float]]:
    """Returns measured times, and in between the fit, clamped to the measured times of smaller and larger shapes."""
    known = {shape: mean.seconds for shape, mean in measured.items() if mean.count >= FULL_WEIGHT_CALLS}
    low, high = _largest_below(known, rows, frames), _least_above(known, rows, frames)
    # Two contradicting means (the larger shape was faster) are averaged.
    level = {
        (r, f): (low[j][i] + high[j][i]) / 2
        for j, f in enumerate(frames)
        for i, r in enumerate(rows)
        if (r, f) in known
    }
    low, high = _largest_below(level, rows, frames), _least_above(level, rows, frames)
    return [[min(max(fit((r, f)), low[j][i]), high[j][i]) for i, r in enumerate(rows)] for j, f in enumerate(frames)]


def _largest_below(known: Mapping[Shape, float], rows: Sequence[int], frames: Sequence[int]) -> list[list[float]]:
    """Returns, for each grid shape, the largest known value of the shapes that fit in it."""
    lines: list[list[float]] = []
    for j, f in enumerate(frames):
        line: list[float] = []
        for i, r in enumerate(rows):
            before = max(line[i - 1] if i else -math.inf, lines[j - 1][i] if j else -math.inf)
            line.append(max(known.get((r, f), -math.inf), before))
        lines.append(line)
    return lines


def _least_above(known: Mapping[Shape, float], rows: Sequence[int], frames: Sequence[int]) -> list[list[float]]:
    """Returns, for each grid shape, the least known value of the shapes that it fits in."""
    mirrored = {(-r, -f): -value for (r, f), value in known.items()}
    lines = _largest_below(mirrored, [-r for r in reversed(rows)], [-f for f in reversed(frames)])
    return [[-value for value in reversed(line)] for line in reversed(lines)]


_Slope = Callable[[Shape, bool], float]
"""Regressor: a function of the shape and whether it is captured."""


def _work(shape: Shape, captured: bool) -> float:
    return shape[0] * shape[1]


def _frames(shape: Shape, captured: bool) -> float:
    return shape[1]


def _eager_work(shape: Shape, captured: bool) -> float:
    return 0.0 if captured else _work(shape, captured)


def _captured_work(shape: Shape, captured: bool) -> float:
    return _work(shape, captured) if captured else 0.0


_FORMS: tuple[tuple[_Slope, ...], ...] = ((_work,), (_work, _frames), (_eager_work, _captured_work))
"""Simplest first. Each also has an intercept per kind (eager, captured)."""


def _fit(eager: Mapping[Shape, MeanTime], captured: Mapping[Shape, MeanTime]) -> Callable[[Shape, bool], float] | None:
    """Returns the fit with the best Bayesian information criterion, by weighted nonnegative least squares.

    Nonnegative coefficients make times nondecreasing in the shape.
    """
    if not captured:
        return None
    points = [(shape, False, mean) for shape, mean in eager.items()]
    points += [(shape, True, mean) for shape, mean in captured.items()]
    weights = [float(min(mean.count, FULL_WEIGHT_CALLS)) for _, _, mean in points]
    values = [mean.seconds for _, _, mean in points]
    kinds = (False, True) if eager else (True,)
    best: tuple[float, Callable[[Shape, bool], float]] | None = None
    for form in _FORMS:
        table = [_columns(form, kinds, shape, kind) for shape, kind, _ in points]
        size = len(table[0])
        if best is not None and len(points) < size + 2:
            continue
        solved = _least_squares(table, values, weights)
        if solved is None:
            continue
        score = _criterion(table, values, weights, solved)
        if best is None or score < best[0]:
            best = score, _predictor(form, kinds, solved)
    return best[1] if best else None


def _columns(form: Sequence[_Slope], kinds: Sequence[bool], shape: Shape, captured: bool) -> list[float]:
    fixed = [1.0 if kind is captured else 0.0 for kind in kinds]
    return fixed + [float(slope(shape, captured)) for slope in form]


def _predictor(
    form: Sequence[_Slope], kinds: Sequence[bool], solved: Sequence[float]
) -> Callable[[Shape, bool], float]:
    def predict(shape: Shape, captured: bool) -> float:
        if captured not in kinds:
            return UNKNOWN_SECONDS
        return sum(a * x for a, x in zip(solved, _columns(form, kinds, shape, captured), strict=True))

    return predict


def _criterion(
    table: Sequence[Sequence[float]], values: Sequence[float], weights: Sequence[float], solved: Sequence[float]
) -> float:
    """Returns the Bayesian information criterion."""
    count, total = len(values), sum(weights)
    error = _error(table, values, weights, solved) / total
    # Measurements are not more precise than a ten-thousandth.
    floor = 1e-8 * sum(w * y * y for w, y in zip(weights, values, strict=True)) / total
    return count * math.log(max(error, floor, 1e-300)) + len(solved) * math.log(count)


def _error(
    table: Sequence[Sequence[float]], values: Sequence[float], weights: Sequence[float], solved: Sequence[float]
) -> float:
    return sum(
        w * (y - sum(a * x for a, x in zip(solved, line, strict=True))) ** 2
        for line, y, w in zip(table, values, weights, strict=True)
    )


def _least_squares(
    table: Sequence[Sequence[float]], values: Sequence[float], weights: Sequence[float]
) -> list[float] | None:
    """Returns the exact weighted nonnegative least squares, or None if a parameter is not identified.

    With few parameters it tries each active set (parameters fixed at zero) and keeps the best feasible one.
    """
    size = len(table[0])
    normal = [
        [sum(w * line[a] * line[b] for line, w in zip(table, weights, strict=True)) for b in range(size)]
        for a in range(size)
    ]
    right = [sum(w * line[a] * y for line, y, w in zip(table, values, weights, strict=True)) for a in range(size)]
    if _solve(normal, right) is None:
        return None
    best: tuple[float, list[float]] | None = None
    for free in (chosen for n in range(size + 1) for chosen in combinations(range(size), n)):
        part = _solve([[normal[a][b] for b in free] for a in free], [right[a] for a in free])
        if part is None or min(part, default=0.0) < 0:
            continue
        solved = [0.0] * size
        for at, value in zip(free, part, strict=True):
            solved[at] = value
        error = _error(table, values, weights, solved)
        if best is None or error < best[0]:
            best = error, solved
    return best[1] if best else None


def _solve(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float] | None:
    """Solves a small symmetric system by Gaussian elimination; None if it is singular."""
    size = len(right)
    scale = [math.sqrt(matrix[a][a]) for a in range(size)]
    if not all(scale):
        return None
    # After scaling to a unit diagonal, a pivot is the fraction of a column that the others do not explain.
    work = [[matrix[a][b] / (scale[a] * scale[b]) for b in range(size)] + [right[a] / scale[a]] for a in range(size)]
    for at in range(size):
        pivot = max(range(at, size), key=lambda line: abs(work[line][at]))
        if abs(work[pivot][at]) < 1e-9:
            return None
        work[at], work[pivot] = work[pivot], work[at]
        for line in range(size):
            if line != at:
                factor = work[line][at] / work[at][at]
                work[line] = [x - factor * y for x, y in zip(work[line], work[at], strict=True)]
    return [work[a][size] / work[a][a] / scale[a] for a in range(size)]


def capture_cost(shape: Shape, known: Mapping[Shape, float]) -> float:
    """Returns an upper bound of the cost to capture a shape, in the unit of `known`. Raises ValueError if it is empty.

    The cost is assumed to grow with rows * frames, at most proportionally, so each known cost gives a bound.
    """
    if shape in known:
        return known[shape]
    area = shape[0] * shape[1]
    return min((cost * max(1.0, area / (r * f)) for (r, f), cost in known.items()))
