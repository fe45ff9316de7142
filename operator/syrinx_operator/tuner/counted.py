"""Sums of counters as evidence. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from syrinx_operator.tuner.evidence import Call, Route, Served, Step, Turned, Worker
from syrinx_operator.tuner.policy import Objective
from syrinx_operator.tuner.snapshot import BUCKET, STARTED, STEP_COUNT, STEP_SUM, Series
from syrinx_stages.contract import metrics as m

MOST_ROWS = 1024
"""Of a step: the most that `max_num_seqs` can be. Steps of more rows than the metric's last edge count as such."""
_EDGES = (*m.TTFA_BUCKETS, math.inf)

Sums = Mapping[Series, float]


def as_served(sums: Sums, objectives: Mapping[str, Objective]) -> dict[Route, Served]:
    """What listeners got, by route."""
    heard: dict[Route, dict[float, int]] = {}
    waited: dict[Route, int] = {}
    for one, value in sums.items():
        if one.name == BUCKET:
            buckets = heard.setdefault(Route(*one.labels), {})
            buckets[one.edge] = round(value)
        elif one.name == m.UNDERRUNS.name:
            waited[Route(*one.labels)] = round(value)
    return {
        route: _served(heard.get(route, {}), waited.get(route, 0), objectives.get(route.task_type))
        for route in sorted({*heard, *waited})
    }


def _served(buckets: Mapping[float, int], underruns: int, objective: Objective | None) -> Served:
    requests = sum(buckets.values())
    within = requests
    if objective is not None:
        within = sum(count for edge, count in buckets.items() if edge <= objective.seconds)
    return Served(requests=requests, within=within, underruns=underruns, ttfa=_cumulative(buckets))


def _cumulative(buckets: Mapping[float, int]) -> dict[float, int]:
    found, below = {}, 0
    for edge in sorted({*_EDGES, *buckets}) if buckets else ():
        below += buckets.get(edge, 0)
        found[edge] = below
    return found


def as_turned(sums: Sums) -> dict[str, Turned]:
    """Requests that nobody was heard for, by task type."""
    found: dict[str, Turned] = {}
    for one, value in sums.items():
        if one.name == m.REQUESTS.name and one.labels[1] in ("refused", "error"):
            field = "refused" if one.labels[1] == "refused" else "errors"
            before = found.get(one.labels[0], Turned())
            found[one.labels[0]] = msgspec.structs.replace(before, **{field: round(value)})
    return found


def streams(sums: Sums) -> int:
    """Live streams that began."""
    return round(sums.get(Series(STARTED, ()), 0.0))


def with_counts(worker: Worker, sums: Sums) -> Worker:
    """A worker with what it counted."""
    return msgspec.structs.replace(
        worker,
        errors=round(sums.get(Series(m.REQUESTS_FINISHED.name, ("error",)), 0.0)),
        frames=round(sums.get(Series(m.FRAMES.name, ()), 0.0)),
        steps=_steps(sums),
        calls=_calls(sums),
    )


def _steps(sums: Sums) -> dict[int, Step]:
    counts = {one.labels[0]: value for one, value in sums.items() if one.name == STEP_COUNT}
    return {
        MOST_ROWS if rows == "+Inf" else int(rows): Step(round(count), sums.get(Series(STEP_SUM, (rows,)), 0.0))
        for rows, count in sorted(counts.items())
        if rows == "+Inf" or rows.isdecimal()
    }


def _calls(sums: Sums) -> tuple[Call, ...]:
    counts = sorted((one.labels, value) for one, value in sums.items() if one.name == m.CODEC_CALLS.name)
    return tuple(
        Call(
            rows=int(labels[0]),
            frames=int(labels[1]),
            result=labels[2],
            count=round(value),
            seconds=sums.get(Series(m.CODEC_CALL_SECONDS.name, labels), 0.0),
        )
        for labels, value in counts
        if labels[0].isdecimal() and labels[1].isdecimal()
    )
