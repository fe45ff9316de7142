"""Seconds of an engine's work by its size, learned from the stages' counters. Pure.

A talker's step takes longer with more rows, a codec's call with more rows and frames. Counts of other sizes, which were
never run, follow from what was: by interpolation between sizes, and by a fitted line beyond them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from msgspec import Struct

from syrinx_operator.observed.evidence import Evidence
from syrinx_operator.resource.state.tuning_status import MAX_SHAPES, CallPoint, Measured, PreparePoint, StepPoint
from syrinx_stages.contract.metrics import ROW_BUCKETS
from syrinx_stages.contract.stages import Stage

K = TypeVar("K")

MEMORY_SECONDS = 4 * 3600.0
"""Time after which older measurements count a third."""
_SLOPE_PER_ROW = 0.15
"""Part of the mean step that a further row is expected to add, divided by the mean rows."""
_SLOPE_SPREAD = 0.25
"""Spread of the sizes, in mean sizes, at which what was measured of the slope counts as much as what is expected."""
_SWEEPS = 2000
"""Of a fit, which changes nothing any more then."""


def learned(measured: Measured, evidence: Evidence) -> Measured:
    """Returns the times with those of a window that was not counted before."""
    keep = MEMORY_SECONDS / (MEMORY_SECONDS + evidence.seconds)
    talkers, codecs = evidence.replicas_of(Stage.TALKER), evidence.replicas_of(Stage.CODEC)
    steps = _sums(keep, ((p.rows, p) for p in measured.steps), (i for each in talkers for i in each.steps.items()))
    calls = _sums(
        keep,
        (((c.rows, c.frames, c.captured), c) for c in measured.calls),
        # How long a padded call's own shape would take is not known.
        (((c.rows, c.frames, c.result == "hit"), c) for each in codecs for c in each.calls if c.result != "padded"),
    )
    prepares = _sums(
        keep, ((p.task_type, p) for p in measured.prepares), (i for each in talkers for i in each.prepares.items())
    )
    heaviest = sorted(calls.items(), key=lambda item: -item[1][1])[:MAX_SHAPES]
    return Measured(
        steps=tuple(StepPoint(rows, *sums) for rows, sums in sorted(steps.items()) if sums[0] >= 0.5),
        calls=tuple(CallPoint(*shape, *sums) for shape, sums in sorted(heaviest) if sums[0] >= 0.5),
        prepares=tuple(PreparePoint(name, *sums) for name, sums in sorted(prepares.items()) if sums[0] >= 0.5),
        prefills=sum((each.prefills.count for each in talkers), measured.prefills * keep),
        prefill_seconds=sum((each.prefills.seconds for each in talkers), measured.prefill_seconds * keep),
    )


def _sums(keep: float, known: Iterable[tuple[K, Any]], more: Iterable[tuple[K, Any]]) -> dict[K, list[float]]:
    """Returns the sums of `count` and `seconds` by key, of which what is known counts `keep`."""
    found = {key: [each.count * keep, each.seconds * keep] for key, each in known}
    for key, each in more:
        total = found.setdefault(key, [0.0, 0.0])
        total[0] += each.count
        total[1] += each.seconds
    return found


def learned_frames(measured: Measured) -> float:
    """Returns the frames of the measured steps: one for each row."""
    return math.fsum(each.count * _middle(each.rows) for each in measured.steps)


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


def call_cost(calls: Iterable[CallPoint]) -> CallCost | None:
    """Fits the cost of calls by nonnegative least squares of the relative error; None without calls."""
    # Of each point: 1, rows, and rows * frames, as ratios of its seconds, so that a perfect fit has the sum 1.
    points = [
        (c.count**0.5, [c.count / c.seconds * size for size in (1.0, c.rows, c.rows * c.frames)])
        for c in calls
        if c.count and c.seconds
    ]
    if not points:
        return None
    (aa, ab, ac), (ba, bb, bc), (ca, cb, cc) = (
        [sum(weight * x[i] * x[j] for weight, x in points) for j in range(3)] for i in range(3)
    )
    a_sum, b_sum, c_sum = (sum(weight * x[i] for weight, x in points) for i in range(3))
    a = b = c = 0.0
    # Coordinate descent, which converges because the error is convex. Written out: it is most of the tuner's work.
    for _ in range(_SWEEPS):
        before = a, b, c
        a = max((a_sum - (ab * b + ac * c)) / aa, 0.0)
        b = max((b_sum - (ba * a + bc * c)) / bb, 0.0)
        c = max((c_sum - (ca * a + cb * b)) / cc, 0.0)
        if before == (a, b, c):
            break
    return CallCost(a, b, c)
