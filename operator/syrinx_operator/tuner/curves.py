"""Seconds of an engine's work by its size, learned from the stages' counters. Pure.

A talker's step takes longer with more rows, a codec's call with more rows and frames. Counts of other sizes, which were
never run, follow from what was: by interpolation between sizes, and by a fitted line beyond them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise
from typing import Any

from msgspec import Struct

from syrinx_operator.resource.stage_config import Stage
from syrinx_operator.resource.tuning_status import MAX_SHAPES, CallPoint, Measured, PreparePoint, StepPoint
from syrinx_operator.tuner.evidence import Evidence
from syrinx_stages.contract.metrics import ROW_BUCKETS

MEMORY_SECONDS = 4 * 3600.0
"""Time after which older measurements count a third."""
_SLOPE_PER_ROW = 0.15
"""Part of the mean step that a further row is expected to add, divided by the mean rows."""
_SLOPE_SPREAD = 0.25
"""Spread of the sizes, in mean sizes, at which what was measured of the slope counts as much as what is expected."""


def learned(measured: Measured, evidence: Evidence) -> Measured:
    """Returns the times with those of a window that was not counted before."""
    keep = MEMORY_SECONDS / (MEMORY_SECONDS + evidence.seconds)
    steps = {each.rows: [each.count * keep, each.seconds * keep] for each in measured.steps}
    calls = {(c.rows, c.frames, c.captured): [c.count * keep, c.seconds * keep] for c in measured.calls}
    prepares = {each.task_type: [each.count * keep, each.seconds * keep] for each in measured.prepares}
    prefills, prefill_seconds = measured.prefills * keep, measured.prefill_seconds * keep
    for replica in evidence.replicas_of(Stage.TALKER):
        for rows, step in replica.steps.items():
            _add(steps, rows, step.count, step.seconds)
        for task_type, prepare in replica.prepares.items():
            _add(prepares, task_type, prepare.count, prepare.seconds)
        prefills += replica.prefills.count
        prefill_seconds += replica.prefills.seconds
    for replica in evidence.replicas_of(Stage.CODEC):
        for call in replica.calls:
            # How long a padded call's own shape would take is not known.
            if call.result != "padded":
                _add(calls, (call.rows, call.frames, call.result == "hit"), call.count, call.seconds)
    heaviest = sorted(calls.items(), key=lambda item: -item[1][1])[:MAX_SHAPES]
    return Measured(
        steps=tuple(StepPoint(rows, *sums) for rows, sums in sorted(steps.items()) if sums[0] >= 0.5),
        calls=tuple(CallPoint(*shape, *sums) for shape, sums in sorted(heaviest) if sums[0] >= 0.5),
        prepares=tuple(PreparePoint(name, *sums) for name, sums in sorted(prepares.items()) if sums[0] >= 0.5),
        prefills=prefills,
        prefill_seconds=prefill_seconds,
    )


def learned_frames(measured: Measured) -> float:
    """Returns the frames of the measured steps: one for each row."""
    return math.fsum(each.count * _middle(each.rows) for each in measured.steps)


def _add(sums: dict[Any, list[float]], key: Any, count: float, seconds: float) -> None:
    total = sums.setdefault(key, [0.0, 0.0])
    total[0] += count
    total[1] += seconds


def step_seconds(measured: Measured, rows: int) -> list[float]:
    """Returns the seconds of a step by rows, from 0 to `rows`. It never decreases."""
    points = _increasing([(_middle(p.rows), p.count, p.seconds / p.count) for p in measured.steps])
    fixed, slope = _line(points)
    first, last = points[0], points[-1]
    known = [(0.0, min(first[2], max(fixed, 0.3 * first[2])))] if first[0] > 1 else []
    known += [(size, mean) for size, _, mean in points]
    if rows > last[0]:
        known.append((float(rows), last[2] + slope * (rows - last[0])))
    return [_interpolated(known, float(size)) for size in range(rows + 1)]


def _middle(bucket: int) -> float:
    """Returns the mean size of a bucket's steps."""
    below = max((edge for edge in ROW_BUCKETS if edge < bucket), default=0)
    return (below + 1 + bucket) / 2


def _increasing(points: Sequence[tuple[float, float, float]]) -> list[tuple[float, float, float]]:
    """Pools neighbors (size, count, mean) whose means decrease: isotonic regression."""
    pooled: list[list[tuple[float, float, float]]] = []
    for point in points:
        pooled.append([point])
        while len(pooled) > 1 and _mean(pooled[-2]) > _mean(pooled[-1]):
            last = pooled.pop()
            pooled[-1] += last
    return [(size, count, _mean(group)) for group in pooled for size, count, _ in group]


def _mean(group: Sequence[tuple[float, float, float]]) -> float:
    return sum(count * mean for _, count, mean in group) / sum(count for _, count, _ in group)


def _line(points: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Returns the weighted line (fixed, slope): least squares, with an expected slope where sizes hardly differ.

    A larger size is never quicker.
    """
    weight = sum(count for _, count, _ in points)
    size = sum(count * x for x, count, _ in points) / weight
    mean = sum(count * y for _, count, y in points) / weight
    spread = sum(count * (x - size) ** 2 for x, count, _ in points)
    known = sum(count * (x - size) * (y - mean) for x, count, y in points)
    expected, trust = _SLOPE_PER_ROW * mean / size, weight * (_SLOPE_SPREAD * size) ** 2
    slope = (known + expected * trust) / (spread + trust)
    slope = min(max(slope, 0.0), mean / size)
    return mean - slope * size, slope


def _interpolated(points: Sequence[tuple[float, float]], size: float) -> float:
    if size <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in pairwise(points):
        if size <= x1:
            return y0 + (y1 - y0) * (size - x0) / (x1 - x0)
    return points[-1][1]


class CallCost(Struct, frozen=True):
    """Seconds of a decoder call: `fixed + row * rows + frame * rows * frames`."""

    fixed: float
    row: float
    frame: float

    def at(self, rows: int, frames: int) -> float:
        """Returns the seconds of a call."""
        return self.fixed + rows * (self.row + self.frame * frames)

    def times(self, factor: float) -> CallCost:
        """Returns the cost multiplied by a factor."""
        return CallCost(factor * self.fixed, factor * self.row, factor * self.frame)


def call_cost(calls: Iterable[CallPoint]) -> CallCost | None:
    """Fits the cost of calls by nonnegative least squares of the relative error; None without calls."""
    points = [(c.rows, c.rows * c.frames, c.count**0.5, c.seconds / c.count) for c in calls if c.count and c.seconds]
    if not points:
        return None
    best: tuple[float, list[float]] | None = None
    for size in (1, 2, 3):
        for columns in combinations(range(3), size):
            fitted = _solve(points, columns)
            if fitted is None or min(fitted) < 0:
                continue
            error = sum(w * (1 - (fitted[0] + fitted[1] * r + fitted[2] * rf) / y) ** 2 for r, rf, w, y in points)
            if best is None or error < best[0] - 1e-12:
                best = error, fitted
    assert best is not None  # A single column has a positive solution.
    return CallCost(*best[1])


def _solve(points: Sequence[tuple[int, int, float, float]], columns: Sequence[int]) -> list[float] | None:
    """Solves the normal equations of a subset of (1, rows, rows * frames); None if they are singular."""
    n = len(columns)
    matrix = [[0.0] * (n + 1) for _ in range(n)]
    for rows, area, weight, seconds in points:
        values = [(1.0, rows, area)[column] / seconds for column in columns]
        for i in range(n):
            for j in range(n):
                matrix[i][j] += weight * values[i] * values[j]
            matrix[i][n] += weight * values[i]
    for i in range(n):
        pivot = max(range(i, n), key=lambda k: abs(matrix[k][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        if abs(matrix[i][i]) < 1e-9 * max(1.0, abs(matrix[i][n])):
            return None
        for k in range(n):
            if k != i:
                factor = matrix[k][i] / matrix[i][i]
                matrix[k] = [a - factor * b for a, b in zip(matrix[k], matrix[i], strict=True)]
    found = [0.0] * 3
    for i, column in enumerate(columns):
        found[column] = matrix[i][n] / matrix[i][i]
    return found
