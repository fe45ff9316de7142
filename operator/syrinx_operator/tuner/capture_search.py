"""Branch-and-bound search for the set of captured shapes that minimizes decoder time. Pure.

The codec pads every call that fits a captured shape to the first one by `rank`, even where eager would be faster. An
additional shape can therefore increase the time.

**Relaxation.** Let each call choose freely (eager, or any shape that it fits). Then the saving is monotone and
submodular: a set of some current shapes and at most m new ones takes at least the relaxed time of all current shapes,
minus the m largest relaxed gains of new ones. If the search completes, the result is optimal; if its work budget runs
out, the least open bound limits the optimality gap.

**Candidates** are the current shapes and each requested number of rows with each requested number of frames. Any other
shape fits the same calls as the largest candidate within it, which is no slower and has no higher rank. Replacing it
never costs time if times are nondecreasing in `rank`; the bound does not cover sets for which they are not.
"""

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate, count
from operator import itemgetter
from typing import NamedTuple

Shape = tuple[int, int]
"""Rows and frames."""

WORK_BUDGET = 800_000
"""Operations of about 0.1 microseconds after which a search stops with a bound. It is not a time limit, so that the
same evidence yields the same plan."""

NEIGHBOURS = 24
"""Number of candidates, by largest relaxed gain, that local search tries."""


def rank(shape: Shape) -> tuple[int, Shape]:
    """Sort key: the codec pads a call to the first captured shape that fits it in this order.

    Duplicates `syrinx_stages.codec.scheduler.cheapest_shape`, which is not part of the operator's image.
    """
    return shape[0] * shape[1], shape


class Limits(NamedTuple):
    """Constraints of a set."""

    max_count: int
    max_new: int
    """Limit of shapes that are not captured now."""
    costs: tuple[tuple[Mapping[Shape, float], float], ...]
    """Pairs of (cost by candidate, limit of the sum), one per kind of cost."""

    def allow(self, shapes: Collection[Shape]) -> bool:
        """Returns whether a set satisfies the constraints except `max_new`, which the caller counts."""
        return len(shapes) <= self.max_count and all(
            sum(cost[shape] for shape in shapes) <= limit for cost, limit in self.costs
        )


class SearchResult(NamedTuple):
    """A set, the expected seconds of all calls with it, and a lower bound for any allowed set."""

    shapes: tuple[Shape, ...]
    seconds: float
    bound: float


class TimeGrid(NamedTuple):
    """Seconds per call at each shape of a grid, indexed [frames][rows]. They never decrease as a shape grows."""

    eager: list[list[float]]
    captured: list[list[float]]


class CallGrid:
    """Calls on a grid of rows and frames; evaluates the time of a set of shapes.

    Tables have one line per number of frames, indexed by rows. Prefix sums start with 0, so the sum of a range is a
    difference.
    """

    def __init__(
        self, rows: Sequence[int], frames: Sequence[int], wanted: Mapping[Shape, int], times: TimeGrid
    ) -> None:
        self.size = len(rows), len(frames)
        self._row = {r: i for i, r in enumerate(rows)}
        self._frame = {f: j for j, f in enumerate(frames)}
        self._eager, self._captured = times
        self._counts = [[wanted.get((r, f), 0) for r in rows] for f in frames]
        self._calls = [list(accumulate(line, initial=0)) for line in self._counts]
        self._alone = self._prefix_sums(self._eager)
        self.call_count = sum(wanted.values())

    def seconds(self, shapes: Iterable[Shape]) -> float:
        """Returns the seconds of all calls, padded like the codec does."""
        calls_of, done = self._padded(shapes)
        captured = sum(calls * self._captured[self._frame[f]][self._row[r]] for (r, f), calls in calls_of.items())
        return captured + self._rest(done)

    def calls_by_shape(self, shapes: Iterable[Shape]) -> dict[Shape, int]:
        """Returns the number of calls that are padded to each shape."""
        return self._padded(shapes)[0]

    def relaxed_seconds(self, shapes: Iterable[Shape]) -> float:
        """Returns the relaxed seconds: each call chooses freely."""
        done, total = [0] * len(self._calls), 0.0
        for taken, rows, last in sorted(self._timed(shapes)):
            for j in range(last + 1):
                if done[j] < rows:
                    # Eager times rise with the rows, so up to `at` eager is faster than this and all larger shapes.
                    at = bisect_right(self._eager[j], taken, done[j], rows)
                    total += self._alone[j][at] - self._alone[j][done[j]]
                    total += taken * (self._calls[j][rows] - self._calls[j][at])
                    done[j] = rows
        return total + self._rest(done)

    def floor_seconds(self) -> float:
        """Returns the relaxed seconds with every shape captured."""
        return sum(
            n * min(eager, captured)
            for lines in zip(self._counts, self._eager, self._captured, strict=True)
            for n, eager, captured in zip(*lines, strict=True)
        )

    def gains(self, shapes: Iterable[Shape], candidates: Iterable[Shape]) -> list[tuple[float, Shape]]:
        """Returns (relaxed saving, candidate) beside `shapes`, largest first."""
        # The least time of each call. It is nondecreasing in the shape: larger calls fit fewer shapes.
        times = [list(line) for line in self._eager]
        for taken, rows, last in self._timed(shapes):
            for line in times[: last + 1]:
                at = bisect_left(line, taken, 0, rows)
                line[at:rows] = [taken] * (rows - at)
        sums = self._prefix_sums(times)
        gains: list[tuple[float, Shape]] = []
        for shape in candidates:
            row, last = self._row[shape[0]], self._frame[shape[1]]
            taken, gain = self._captured[last][row], 0.0
            for j in range(last, -1, -1):
                if times[j][row] <= taken:
                    break  # Smaller calls are faster already.
                at = bisect_right(times[j], taken, 0, row)
                calls = self._calls[j]
                gain += sums[j][row + 1] - sums[j][at] - taken * (calls[row + 1] - calls[at])
            gains.append((gain, shape))
        return sorted(gains, key=itemgetter(0), reverse=True)

    def _padded(self, shapes: Iterable[Shape]) -> tuple[dict[Shape, int], list[int]]:
        """Returns the calls by shape, and for each line the rows up to which calls fit a shape."""
        calls_of: dict[Shape, int] = {}
        done = [0] * len(self._calls)
        for shape in sorted(shapes, key=rank):
            rows, calls = self._row[shape[0]] + 1, 0
            for j in range(self._frame[shape[1]] + 1):
                if done[j] < rows:
                    calls += self._calls[j][rows] - self._calls[j][done[j]]
                    done[j] = rows
            calls_of[shape] = calls
        return calls_of, done

    def _rest(self, done: Sequence[int]) -> float:
        return sum(line[-1] - line[at] for line, at in zip(self._alone, done, strict=True))

    def _timed(self, shapes: Iterable[Shape]) -> Iterable[tuple[float, int, int]]:
        for r, f in shapes:
            yield self._captured[self._frame[f]][self._row[r]], self._row[r] + 1, self._frame[f]

    def _prefix_sums(self, times: Sequence[Sequence[float]]) -> list[list[float]]:
        """Returns the seconds of the calls of each line up to a number of rows."""
        lines = zip(self._counts, times, strict=True)
        return [list(accumulate((n * x for n, x in zip(*line, strict=True)), initial=0.0)) for line in lines]


class _Node(NamedTuple):
    """An open node of the search tree: sets derived from `shapes`, all of which take at least `bound` seconds."""

    bound: float
    order: int
    """Tie-breaker, oldest first."""
    shapes: frozenset[Shape]
    first: int = 0
    """Index of the first option to add, or current shape to drop, so that no set is visited twice."""
    new: int = 0
    """Number of options that may still be added. If it is 0, current shapes are dropped."""
    options: Sequence[tuple[float, Shape]] = ()
    """(Upper bound of the saving beside `shapes`, shape), largest first."""
    relaxed: float = 0.0
    """Relaxed seconds of `shapes`."""
    stale: bool = False
    """Whether the savings were computed beside a smaller set, so they are valid but loose upper bounds."""


class Search:
    """One search: local search for an incumbent, then branch and bound until the work budget runs out."""

    def __init__(self, load: CallGrid, candidates: Iterable[Shape], current: Iterable[Shape], limits: Limits) -> None:
        self._load, self._allow = load, limits.allow
        self._current = tuple(sorted(current, key=rank))
        self._held = frozenset(self._current)
        self._fresh = [shape for shape in candidates if shape not in self._held and self._allow((shape,))]
        self._new = min(limits.max_new, limits.max_count)
        self._work = 0
        self._best: tuple[float, int, tuple[Shape, ...]] = (load.seconds(()), 0, ())
        self._open: list[_Node] = []
        self._order = count()

    def run(self) -> SearchResult:
        """Returns the best set found; among equal times the one with the fewest shapes."""
        start = self._held if self._allow(self._held) else frozenset[Shape]()
        floor = max(self._load.floor_seconds(), self._improve(start))
        bound = max(floor, self._explore(floor))
        seconds, _, shapes = self._best
        return SearchResult(shapes, seconds, min(bound, seconds))

    def _try(self, shapes: Iterable[Shape]) -> float:
        """Returns the seconds of an allowed set and updates the incumbent."""
        shapes = tuple(sorted(shapes))
        self._work += len(shapes) * self._load.size[1] // 2 + 100
        seconds = self._load.seconds(shapes)
        self._best = min(self._best, (seconds, len(shapes), shapes))
        return seconds

    def _gains(self, shapes: Iterable[Shape], candidates: Sequence[Shape]) -> list[tuple[float, Shape]]:
        self._work += len(candidates) * 25 + 2 * math.prod(self._load.size)
        return self._load.gains(shapes, candidates)

    def _relaxed(self, shapes: frozenset[Shape]) -> float:
        self._work += len(shapes) * self._load.size[1] + 100
        return self._load.relaxed_seconds(shapes)

    @property
    def _target(self) -> float:
        """Seconds to beat, minus a rounding tolerance."""
        return self._best[0] * (1 - 1e-9)

    # Local search -------------------------------------------------------------------------------------------------

    def _improve(self, shapes: frozenset[Shape]) -> float:
        """Adds, drops or swaps single shapes while that saves time. Returns a lower bound from the last set."""
        seconds = self._try(shapes)
        while self._work < WORK_BUDGET:
            added = [frozenset({shape}) for _, shape in self._gains(shapes, self._fresh)[:NEIGHBOURS]]
            added += [frozenset({shape}) for shape in sorted(self._held - shapes)]
            dropped = [shapes - {shape} for shape in shapes]
            step = self._best_of([*dropped, *(shapes | one for one in added)], seconds)
            step = step or self._best_of((rest | one for rest in dropped for one in added), seconds)
            if step is None:
                break
            seconds, shapes = step
        base = shapes | self._held
        return self._relaxed(base) - sum(gain for gain, _ in self._gains(base, self._fresh)[: self._new])

    def _best_of(self, steps: Iterable[frozenset[Shape]], seconds: float) -> tuple[float, frozenset[Shape]] | None:
        """Returns the best allowed step, or None if none is an improvement."""
        permitted = (step for step in steps if len(step - self._held) <= self._new and self._allow(step))
        best = min(((self._try(step), sorted(step)) for step in permitted), default=None)
        return (best[0], frozenset(best[1])) if best and best[0] < seconds * (1 - 1e-9) else None

    # Branch and bound, best bound first ---------------------------------------------------------------------------

    def _explore(self, floor: float) -> float:
        """Explores until no open node can improve or the work budget runs out. Returns the least open bound.

        A set is reached by adding new shapes to the current ones, then dropping some of the current ones.
        """
        self._enter(_Node(0.0, 0, self._held, new=self._new, options=[(math.inf, shape) for shape in self._fresh]))
        while self._open and max(floor, self._open[0].bound) < self._target and self._work < WORK_BUDGET:
            node = heapq.heappop(self._open)
            if not node.new:
                self._drop(node)
            elif node.stale:
                options = self._gains(node.shapes, [shape for _, shape in node.options[node.first :]])
                self._push(node._replace(first=0, options=options, stale=False))
            else:
                self._add(node)
        return self._open[0].bound if self._open else self._best[0]

    def _enter(self, node: _Node) -> None:
        """Evaluates a set and opens its children: with further options, and with current shapes dropped."""
        if self._allow(node.shapes):
            self._try(node.shapes)
        relaxed = self._relaxed(node.shapes)
        self._push(_Node(node.bound, 0, node.shapes, relaxed=relaxed))
        if node.new:
            self._push(node._replace(relaxed=relaxed, stale=True))

    def _push(self, node: _Node) -> None:
        if node.new and node.first >= len(node.options):
            return
        savings = sum(gain for gain, _ in node.options[node.first : node.first + node.new])
        bound = max(node.bound, node.relaxed - savings)
        if bound < self._target:
            heapq.heappush(self._open, node._replace(bound=bound, order=next(self._order)))

    def _add(self, node: _Node) -> None:
        """Branches on the first option: with it, and without it."""
        self._push(node._replace(first=node.first + 1))
        shapes = node.shapes | {node.options[node.first][1]}
        if self._allow(shapes - self._held):
            self._enter(node._replace(shapes=shapes, first=node.first + 1, new=node.new - 1))

    def _drop(self, node: _Node) -> None:
        """Branches on dropping one of the remaining current shapes."""
        for at, shape in enumerate(self._current[node.first :], start=node.first):
            shapes = node.shapes - {shape}
            if self._allow(shapes):
                self._try(shapes)
            self._push(_Node(0.0, 0, shapes, first=at + 1, relaxed=self._relaxed(shapes)))
