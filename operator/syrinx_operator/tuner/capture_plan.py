"""Which decoder shapes a codec should hold captured: computed from what its calls took, never searched by trial. Pure.

`pair_times` says what calls take, `pair_search` chooses; here is what a change must be worth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from syrinx_operator.resource.spec import CaptureShape
from syrinx_operator.tuner.capture_search import CallGrid, Limits, Search
from syrinx_operator.tuner.capture_times import Shape, capture_cost, estimate_times, mean_times
from syrinx_operator.tuner.evidence import CallStats, CaptureCost
from syrinx_operator.tuner.policy import CaptureBudget

MIN_SAVED = 0.02
"""Share of decoder time that a change must save: less is not worth a trial, nor told apart by one."""

RARE = 0.001
"""A shape that gets less than this share of the calls goes, unless that would cost as large a share of the time; a new
one must save as much of it in any case."""

MAX_NEW = 2
"""New shapes at a time. Estimates of shapes never captured may be wrong; with few, a trial's verdict is about them."""


class CapturePlan(Struct, frozen=True, kw_only=True):
    """A set of shapes that is better than the current one."""

    shapes: tuple[CaptureShape, ...]
    """By rows, then frames, as the resource wants them."""
    reasons: tuple[str, ...]
    """What each of them is good for."""
    seconds_before: float
    """Expected decoder seconds of the measured calls with the current shapes, ..."""
    seconds_after: float
    """... and with these."""
    saved_ratio: float
    """Share of `before`."""
    optimality_gap: float
    """Share of `before` that the best set within the limits may save beyond this at most; 0: this is the best."""
    rationale: str
    """In a line of at most 256 characters."""


def plan_captures(
    calls: Iterable[CallStats],
    captures: Iterable[CaptureCost],
    current: tuple[CaptureShape, ...],
    budget: CaptureBudget,
    most_rows: int,
    most_new: int = MAX_NEW,
) -> CapturePlan | None:
    """The shapes to hold captured, at most `most_new` of them new; None: too little is known, or gained.

    `calls` were made with the `current` shapes, by codecs of equal speed; those of more rows than `most_rows` (what a
    codec now takes into a call at most) teach what calls take, but are not expected again. No gain is known before a
    captured call was measured: then the shapes that take the most time are a first try. No new shape is within budget
    before the cost of one was measured. A current set over the budget is not a reason for a change by itself.
    """
    calls = tuple(calls)
    held = [(each.rows, each.frames) for each in current]
    wanted = _wanted(calls, most_rows)
    load = _load(calls, held, wanted)
    if budget.count == 0:
        return None
    if load is None:
        return _first(calls, captures, held, wanted, budget, most_new)
    candidates = sorted({(r, f) for r in {r for r, _ in wanted} for f in {f for _, f in wanted}} | set(held))
    before = load.seconds(held)
    usable = [shape for shape in candidates if shape[0] <= most_rows]
    limits = _limits(captures, usable, budget, most_new)
    kept = [shape for shape in held if shape[0] <= most_rows]
    found = Search(load, usable, kept, limits).run()
    shapes = min(_without_spare(load, held, found.shapes, before), (), key=load.seconds)
    after = load.seconds(shapes)
    if before <= 0 or before - after < MIN_SAVED * before:
        return None
    return _plan(load, held, shapes, before, (after - found.bound) / before)


def _first(
    calls: Iterable[CallStats],
    captures: Iterable[CaptureCost],
    held: list[Shape],
    wanted: Mapping[Shape, int],
    budget: CaptureBudget,
    most_new: int,
) -> CapturePlan | None:
    """Shapes to learn from, beside those held: what is wanted most, in seconds. None if captured calls were measured,
    no eager ones were, or no shape's cost is known.
    """
    eager, captured = mean_times(calls, held)
    seconds = {shape: wanted[shape] * eager[shape].seconds for shape in wanted if shape in eager}
    before = sum(seconds.values())
    limits = _limits(captures, [*wanted, *held], budget, most_new)
    if captured or not before:
        return None
    shapes = list(held)
    for shape in sorted(seconds, key=lambda shape: (-seconds[shape], shape)):
        enough = seconds[shape] >= MIN_SAVED * before and len(shapes) - len(held) < limits.max_new
        if enough and shape not in held and limits.allow((*shapes, shape)):
            shapes.append(shape)
    added = [f"{_name(shape)} ({seconds[shape] / before:.1%})" for shape in shapes[len(held) :]]
    if not added:
        return None
    return CapturePlan(
        shapes=tuple(CaptureShape(rows=r, frames=f) for r, f in sorted(shapes)),
        reasons=tuple(f"{seconds.get(shape, 0.0) / before:.1%} of decoder time" for shape in sorted(shapes)),
        seconds_before=before,
        seconds_after=before,
        saved_ratio=0.0,
        optimality_gap=1.0,
        rationale="no captured call was measured yet; first, by their share of decoder time: " + ", ".join(added),
    )


def _wanted(calls: Iterable[CallStats], most_rows: int) -> dict[Shape, int]:
    """How often each shape is wanted."""
    wanted: dict[Shape, int] = {}
    for call in calls:
        if call.rows <= most_rows and call.count > 0:
            wanted[call.rows, call.frames] = wanted.get((call.rows, call.frames), 0) + call.count
    return wanted


def _load(calls: Iterable[CallStats], held: list[Shape], wanted: dict[Shape, int]) -> CallGrid | None:
    """The calls with their times; None if too little was measured to know what they take now."""
    rows = sorted({r for r, _ in (*wanted, *held)})
    frames = sorted({f for _, f in (*wanted, *held)})
    eager, captured = mean_times(calls, held)
    known = estimate_times(eager, captured, rows, frames)
    if known is None or not wanted:
        return None
    load = CallGrid(rows, frames, wanted, known)
    served = sum(load.calls_by_shape(held).values())
    return load if eager or served == load.call_count else None


def _limits(captures: Iterable[CaptureCost], usable: list[Shape], budget: CaptureBudget, most_new: int) -> Limits:
    """Within the budget; a shape that replicas captured at different costs counts with the largest."""
    seconds: dict[Shape, float] = {}
    memory: dict[Shape, float] = {}
    for each in captures:
        shape: Shape = (each.rows, each.frames)
        seconds[shape] = max(seconds.get(shape, 0.0), each.seconds)
        memory[shape] = max(memory.get(shape, 0.0), float(each.bytes))
    if not seconds:
        return Limits(budget.count, 0, ())
    costs = tuple(
        ({shape: capture_cost(shape, known) for shape in usable}, most)
        for known, most in ((seconds, budget.seconds), (memory, float(budget.bytes)))
    )
    return Limits(budget.count, most_new, costs)


def _without_spare(load: CallGrid, held: list[Shape], shapes: tuple[Shape, ...], before: float) -> tuple[Shape, ...]:
    """Leaves out rare shapes and new ones, the least worth first, as long as that costs next to nothing."""
    while True:
        served, seconds = load.calls_by_shape(shapes), load.seconds(shapes)
        spare = [shape for shape in shapes if shape not in held or served[shape] < RARE * load.call_count]
        rests = [tuple(each for each in shapes if each != shape) for shape in spare]
        rest = min(rests, key=lambda rest: (load.seconds(rest), rest), default=shapes)
        if rest == shapes or load.seconds(rest) - seconds >= RARE * before:
            return shapes
        shapes = rest


def _plan(load: CallGrid, held: list[Shape], shapes: tuple[Shape, ...], before: float, gap: float) -> CapturePlan:
    after = load.seconds(shapes)
    served = load.calls_by_shape(shapes)
    reasons = {}
    for shape in sorted(shapes):
        without = load.seconds(each for each in shapes if each != shape) - after
        reasons[shape] = f"{served[shape] / load.call_count:.1%} of calls; without it {without / before:.1%} more time"
    saved = (before - after) / before
    added = [f"{_name(shape)} ({reasons[shape]})" for shape in sorted(set(shapes) - set(held))]
    dropped = [_name(shape) for shape in sorted(set(held) - set(shapes))]
    why = f"saves {saved:.1%} of decoder time, {gap:.1%} from the best at most"
    if added:
        why += "; new: " + ", ".join(added[:2]) + (f" and {len(added) - 2} more" if len(added) > 2 else "")
    if dropped:
        why += "; dropped: " + (", ".join(dropped) if len(dropped) <= 4 else f"{len(dropped)} shapes")
    return CapturePlan(
        shapes=tuple(CaptureShape(rows=r, frames=f) for r, f in sorted(shapes)),
        reasons=tuple(reasons.values()),
        seconds_before=before,
        seconds_after=after,
        saved_ratio=saved,
        optimality_gap=gap,
        rationale=why,
    )


def _name(shape: Shape) -> str:
    return f"{shape[0]}x{shape[1]}"
