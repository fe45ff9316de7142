"""The set of captured shapes with which given decoder calls take the least time. Pure.

The codec pads every call that a captured shape holds, to the first one by `rank`, even where eager would be quicker.
So one more shape can make things worse, and the time saved is neither monotone nor submodular in the set.

**Relaxation.** If each call could choose (eager, or any shape that holds it), the time could only be less, and what
that saves is monotone and submodular: a shape is worth most to the smallest set. A set made of some of the current
shapes and of at most m new ones therefore takes no less than the relaxed time of all the current ones, less the m
largest relaxed gains of new ones. With that bound the search goes through all sets of candidates; what it finishes is
exact, and when its work is spent, the least bound left open says how far from the best the set found can be.

**Candidates** are the current shapes and each wanted number of rows with each wanted number of frames. Any other
shape holds the same calls as the largest of these within it, which takes no longer and comes no later. Put in its
place, that one takes calls over from shapes of a higher rank alone; so if times never fall as `rank` rises, it never
costs time. If they can (a shape of less work, yet more time), a set may be better that has a shape larger than any call
wants, only for it to come later. Such sets are left out, and the bound says nothing about them.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate, count
from operator import itemgetter
from typing import NamedTuple

from msgspec import Struct

from syrinx_operator.tuner.capture_times import Shape, TimeGrid, rank

WORK_BUDGET = 800_000
"""Steps, of roughly a tenth of a microsecond, after which a search ends with a bound. No clock: the same evidence gives
the same plan."""

NEIGHBOURS = 24
"""Candidates of the largest relaxed gain that the improvement of a set tries."""


class Limits(Struct, frozen=True):
    """What a set must keep to."""

    max_count: int
    max_new: int
    """Shapes that are not captured now."""
    costs: tuple[tuple[Mapping[Shape, float], float], ...]
    """What each candidate costs, and how much all may cost together; one for each kind of cost."""

    def allow(self, shapes: Collection[Shape]) -> bool:
        """Whether a set keeps to them; new shapes are counted where they are added."""
        return len(shapes) <= self.max_count and all(
            sum(cost[shape] for shape in shapes) <= most for cost, most in self.costs
        )


class SearchResult(NamedTuple):
    """A set, the expected seconds of all calls with it, and seconds that no permitted set goes below."""

    shapes: tuple[Shape, ...]
    seconds: float
    bound: float


class CallGrid:
    """Calls on a grid of rows and frames with their times: what a set of shapes makes of them.

    Lines run over rows, one for each number of frames; sums begin with nothing, so a stretch is a difference.
    """

    def __init__(
        self, rows: Sequence[int], frames: Sequence[int], wanted: Mapping[Shape, int], times: TimeGrid
    ) -> None:
        self.rows, self.frames = tuple(rows), tuple(frames)
        self._row = {r: i for i, r in enumerate(rows)}
        self._frame = {f: j for j, f in enumerate(frames)}
        self._eager, self._captured = times.eager, times.captured
        self._counts = [[wanted.get((r, f), 0) for r in rows] for f in frames]
        self._calls = [_sums(line) for line in self._counts]
        self._alone = [_products(*lines) for lines in zip(self._counts, self._eager, strict=True)]
        self.call_count = sum(wanted.values())

    def seconds(self, shapes: Iterable[Shape]) -> float:
        """Of all calls, padded as the codec pads them."""
        served, done = self._shared_out(shapes)
        captured = sum(
            calls * self._captured[self._frame[shape[1]]][self._row[shape[0]]] for shape, calls in served.items()
        )
        return captured + sum(line[-1] - line[at] for line, at in zip(self._alone, done, strict=True))

    def calls_by_shape(self, shapes: Iterable[Shape]) -> dict[Shape, int]:
        """How many calls each shape gets."""
        return self._shared_out(shapes)[0]

    def _shared_out(self, shapes: Iterable[Shape]) -> tuple[dict[Shape, int], list[int]]:
        """How many calls each shape gets, and up to where each line is served: what shapes hold is a staircase."""
        served: dict[Shape, int] = {}
        done = [0] * len(self.frames)
        for shape in sorted(shapes, key=rank):
            rows, calls = self._row[shape[0]] + 1, 0
            for j in range(self._frame[shape[1]] + 1):
                if done[j] < rows:
                    calls += self._calls[j][rows] - self._calls[j][done[j]]
                    done[j] = rows
            served[shape] = calls
        return served, done

    def relaxed_seconds(self, shapes: Iterable[Shape]) -> float:
        """Seconds of all calls if each could choose."""
        done, total = [0] * len(self.frames), 0.0
        for taken, rows, last in sorted(self._timed(shapes)):
            for j in range(last + 1):
                if done[j] < rows:
                    # In a line eager times rise with the rows: up to here eager is quicker, with larger shapes too.
                    at = bisect_right(self._eager[j], taken, done[j], rows)
                    total += self._alone[j][at] - self._alone[j][done[j]]
                    total += taken * (self._calls[j][rows] - self._calls[j][at])
                    done[j] = rows
        return total + sum(line[-1] - line[at] for line, at in zip(self._alone, done, strict=True))

    def floor_seconds(self) -> float:
        """Seconds of all calls if each shape were captured and each call could choose."""
        return sum(
            n * min(eager, captured)
            for lines in zip(self._counts, self._eager, self._captured, strict=True)
            for n, eager, captured in zip(*lines, strict=True)
        )

    def gains(self, shapes: Iterable[Shape], candidates: Iterable[Shape]) -> list[tuple[float, Shape]]:
        """What each candidate saves beside `shapes` if each call could choose, the largest first."""
        times = self._choices(shapes)
        sums = [_products(*lines) for lines in zip(self._counts, times, strict=True)]
        gains: list[tuple[float, Shape]] = []
        for shape in candidates:
            row, last = self._row[shape[0]], self._frame[shape[1]]
            taken, gain = self._captured[last][row], 0.0
            for j in range(last, -1, -1):
                if times[j][row] <= taken:
                    break  # What is smaller takes less already.
                at = bisect_right(times[j], taken, 0, row)
                calls = self._calls[j]
                gain += sums[j][row + 1] - sums[j][at] - taken * (calls[row + 1] - calls[at])
            gains.append((gain, shape))
        return sorted(gains, key=itemgetter(0), reverse=True)

    def _timed(self, shapes: Iterable[Shape]) -> Iterable[tuple[float, int, int]]:
        """Time, rows and line of each shape."""
        for r, f in shapes:
            yield self._captured[self._frame[f]][self._row[r]], self._row[r] + 1, self._frame[f]

    def _choices(self, shapes: Iterable[Shape]) -> list[list[float]]:
        """The least time that each call could have. It never falls as a call grows: fewer shapes hold it."""
        times = [list(line) for line in self._eager]
        for taken, rows, last in self._timed(shapes):
            for line in times[: last + 1]:
                at = bisect_left(line, taken, 0, rows)
                line[at:rows] = [taken] * (rows - at)
        return times


def _sums(values: Iterable[int]) -> list[int]:
    return list(accumulate(values, initial=0))


def _products(counts: Sequence[int], values: Sequence[float]) -> list[float]:
    return list(accumulate((n * x for n, x in zip(counts, values, strict=True)), initial=0.0))


class _Open(NamedTuple):
    """Sets not looked at yet: `shapes`, changed further. All of them take at least `bound` seconds."""

    bound: float
    order: int
    """Breaks ties, oldest first."""
    shapes: frozenset[Shape]
    first: int = 0
    """From here on: options to add, or current shapes to drop. So no set comes twice."""
    new: int = 0
    """How many of the options may be added; 0: current shapes are dropped."""
    options: Sequence[tuple[float, Shape]] = ()
    """With what they save beside `shapes` at most, the largest first."""
    relaxed: float = 0.0
    """Of `shapes`."""
    stale: bool = False
    """Whether the options' savings are those beside a smaller set: too large, then, but never too small."""


class Search:
    """One search: makes a good set by steps, then goes through all that could be better until its work is spent."""

    def __init__(self, load: CallGrid, candidates: Iterable[Shape], current: Iterable[Shape], limits: Limits) -> None:
        self._load, self._limits = load, limits
        self._current = tuple(sorted(current, key=rank))
        self._held = frozenset(self._current)
        self._fresh = [shape for shape in candidates if shape not in self._held and self._fits((shape,))]
        self._new = min(limits.max_new, limits.max_count)
        self._work = 0
        self._best: tuple[float, int, tuple[Shape, ...]] = (load.seconds(()), 0, ())
        self._open: list[_Open] = []
        self._order = count()

    def run(self) -> SearchResult:
        """The best set found; with the same time, the one of the fewest shapes."""
        start = self._held if self._fits(self._held) else frozenset[Shape]()
        floor = max(self._load.floor_seconds(), self._improve(start))
        bound = max(floor, self._explore(floor))
        seconds, _, shapes = self._best
        return SearchResult(shapes, seconds, min(bound, seconds))

    def _fits(self, shapes: Iterable[Shape]) -> bool:
        return self._limits.allow(tuple(shapes))

    def _try(self, shapes: Iterable[Shape]) -> float:
        """A permitted set's seconds; remembers the best."""
        shapes = tuple(sorted(shapes))
        self._work += len(shapes) * len(self._load.frames) // 2 + 100
        seconds = self._load.seconds(shapes)
        self._best = min(self._best, (seconds, len(shapes), shapes))
        return seconds

    def _gains(self, shapes: Iterable[Shape], candidates: Sequence[Shape]) -> list[tuple[float, Shape]]:
        self._work += len(candidates) * 25 + 2 * len(self._load.rows) * len(self._load.frames)
        return self._load.gains(shapes, candidates)

    def _relaxed(self, shapes: frozenset[Shape]) -> float:
        self._work += len(shapes) * len(self._load.frames) + 100
        return self._load.relaxed_seconds(shapes)

    @property
    def _target(self) -> float:
        """What is to be beaten, by more than a rounding error."""
        return self._best[0] * (1 - 1e-9)

    # A good set, by steps -----------------------------------------------------------------------------------------

    def _improve(self, shapes: frozenset[Shape]) -> float:
        """Adds, drops or else swaps one shape as long as that saves time. Returns a bound from where it ends."""
        seconds = self._try(shapes)
        while self._work < WORK_BUDGET:
            promising = [shape for _, shape in self._gains(shapes, self._fresh)[:NEIGHBOURS]]
            promising += sorted(self._held - shapes)
            step = self._best_of(self._single(shapes, promising), seconds)
            step = step or self._best_of(self._swaps(shapes, promising), seconds)
            if step is None:
                break
            seconds, shapes = step
        base = shapes | self._held
        return self._relaxed(base) - sum(gain for gain, _ in self._gains(base, self._fresh)[: self._new])

    def _best_of(self, steps: Iterable[frozenset[Shape]], seconds: float) -> tuple[float, frozenset[Shape]] | None:
        """The permitted step that takes least; None if none takes less than now."""
        permitted = (step for step in steps if len(step - self._held) <= self._new and self._fits(step))
        best = min(((self._try(step), sorted(step)) for step in permitted), default=None)
        return (best[0], frozenset(best[1])) if best and best[0] < seconds * (1 - 1e-9) else None

    def _single(self, shapes: frozenset[Shape], promising: Sequence[Shape]) -> Iterable[frozenset[Shape]]:
        yield from (shapes - {dropped} for dropped in shapes)
        yield from (shapes | {added} for added in promising)

    def _swaps(self, shapes: frozenset[Shape], promising: Sequence[Shape]) -> Iterable[frozenset[Shape]]:
        return (shapes - {dropped} | {added} for dropped in shapes for added in promising)

    # All sets that could be better, the most promising first ------------------------------------------------------

    def _explore(self, floor: float) -> float:
        """Goes on until nothing open can be better, or the work is spent. Returns the least bound left open.

        A set is reached by adding new shapes to the current ones, then dropping some of these.
        """
        self._enter(_Open(0.0, 0, self._held, new=self._new, options=[(math.inf, shape) for shape in self._fresh]))
        while self._open and max(floor, self._open[0].bound) < self._target and self._work < WORK_BUDGET:
            item = heapq.heappop(self._open)
            if not item.new:
                self._drop(item)
            elif item.stale:
                options = self._gains(item.shapes, [shape for _, shape in item.options[item.first :]])
                self._push(item._replace(first=0, options=options, stale=False))
            else:
                self._add(item)
        return self._open[0].bound if self._open else self._best[0]

    def _enter(self, item: _Open) -> None:
        """Tries a set, and opens what can be made of it with more of the options, and with fewer shapes."""
        if self._fits(item.shapes):
            self._try(item.shapes)
        relaxed = self._relaxed(item.shapes)
        self._push(_Open(item.bound, 0, item.shapes, relaxed=relaxed))
        if item.new:
            self._push(item._replace(relaxed=relaxed, stale=True))

    def _push(self, item: _Open) -> None:
        """Opens it unless nothing better can be in it."""
        if item.new and item.first >= len(item.options):
            return
        savings = sum(gain for gain, _ in item.options[item.first : item.first + item.new])
        bound = max(item.bound, item.relaxed - savings)
        if bound < self._target:
            heapq.heappush(self._open, item._replace(bound=bound, order=next(self._order)))

    def _add(self, item: _Open) -> None:
        """The sets with the first option, and those without it."""
        self._push(item._replace(first=item.first + 1))
        shapes = item.shapes | {item.options[item.first][1]}
        if self._fits(shapes - self._held):
            self._enter(item._replace(shapes=shapes, first=item.first + 1, new=item.new - 1))

    def _drop(self, item: _Open) -> None:
        """The sets with one current shape less, of those not decided yet."""
        for at, shape in enumerate(self._current[item.first :], start=item.first):
            shapes = item.shapes - {shape}
            if self._fits(shapes):
                self._try(shapes)
            self._push(_Open(0.0, 0, shapes, first=at + 1, relaxed=self._relaxed(shapes)))
