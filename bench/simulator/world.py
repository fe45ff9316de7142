"""A simulated pipeline with the interface of a real one: settings in, evidence out."""

from bisect import bisect_left, bisect_right
from datetime import UTC, datetime, timedelta
from itertools import accumulate, compress
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np

from simulator import kernel, layout
from simulator.layout import Array
from simulator.scenario import TASK_TYPES, Scenario
from syrinx_operator.resource.knobs import TUNED_STAGES, Setting, live_settings
from syrinx_operator.resource.stage_config import Stage
from syrinx_operator.tuner.counters import MAX_ROWS, STALE_SECONDS
from syrinx_operator.tuner.decide import OVERRIDE_TTL_SECONDS, Assignment
from syrinx_operator.tuner.evidence import (
    CallStats,
    CaptureCost,
    Evidence,
    FailedRequests,
    ReplicaStats,
    Route,
    RouteStats,
    StepStats,
)
from syrinx_stages.contract.metrics import ROW_BUCKETS, TTFA_BUCKETS

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""Start time of every simulation."""
_EDGES = (*TTFA_BUCKETS, float("inf"))
_ROW_EDGES = (*ROW_BUCKETS, MAX_ROWS)


def clock(seconds: float) -> datetime:
    """Returns the time at a number of seconds after the start of the simulation."""
    return EPOCH + timedelta(seconds=seconds)


class _Scrape(NamedTuple):
    """Copies of the counters at one time."""

    at: float
    queue_age: float
    pipeline: Array
    replicas: Array
    calls: Array


class World:
    """One simulated pipeline. Time advances only in `run`."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.now = 0.0
        self._memory = layout.make(scenario)
        self._state = kernel.bind(self._memory)
        self._scrapes: list[_Scrape] = []
        counts = {Stage.TALKER: scenario.talkers, Stage.CODEC: scenario.codecs}
        self._names = {f"{stage}-{index}": stage for stage in TUNED_STAGES for index in range(counts[stage])}
        """Names and stages of the replicas, in the order of `Memory.replicas`."""
        self._base = scenario.initial
        self._overrides: dict[str, Setting] = {}
        self._overrides_end = float("inf")
        self._restarts: list[tuple[float, str]] = []
        """Times and names of the replicas that will restart."""
        for failure in scenario.failures:
            name = f"{failure.stage}-{failure.replica}"
            k = list(self._names).index(name)
            kernel.push(self._state, failure.at, kernel.DIES, k, 0)
            kernel.push(self._state, failure.at + failure.down, kernel.RETURNS, k, 0)
            self._restarts.append((failure.at + failure.down, name))
        self._configure()
        for task, task_type in enumerate(TASK_TYPES):
            for listener in range(scenario.listeners.get(task_type, 0)):
                kernel.push(self._state, 0.0, kernel.ASK, listener, task)
        for k in range(len(self._names)):
            kernel.poll(self._state, k, 0.0)
        self._scrape()

    def run(self, until: float) -> None:
        """Simulates up to `until` seconds."""
        while self.now < until:
            step = self.scenario.scrape_seconds
            scrape = (int(self.now / step + 1e-9) + 1) * step
            restart = min((at for at, _ in self._restarts if at > self.now), default=float("inf"))
            stop = min(until, scrape, self._overrides_end, restart)
            while not kernel.advance(self._state, stop):
                self._memory = layout.grow(self._memory, self.scenario)
                self._state = kernel.bind(self._memory)
            self.now = stop
            if stop >= self._overrides_end:
                self._override({})
            if stop == restart:
                restarted = {name for at, name in self._restarts if at == restart}
                self._overrides = {name: each for name, each in self._overrides.items() if name not in restarted}
                self._configure()
            if stop >= scrape and not any(begin <= stop < end for begin, end in self.scenario.outages):
                self._scrape()

    @property
    def events(self) -> int:
        """Number of past and scheduled events."""
        return int(self._memory.pipeline["events"][0])

    def outcomes(self) -> Any:
        """Returns all requests so far as a record array with the fields of `layout.REQUEST`.

        `accepted`, `finished` and `ttfa` are in seconds, nan if it has not happened. `task` is an index of
        `TASK_TYPES`; `candidate` is whether the talker or the codec ran an override at first audio.
        """
        return self._requests().copy().view(np.recarray)

    def _requests(self) -> Array:
        return self._memory.requests[: int(self._memory.pipeline["requests"][0])]

    # Settings -----------------------------------------------------------------------------------------------

    def apply(self, assignment: Assignment) -> None:
        """Applies an assignment from the next step on. Overrides end when they expire without renewal."""
        self._base = assignment.base
        found = {name: assignment.override(stage, name) for name, stage in self._names.items()}
        up = set(compress(self._names, self._memory.replicas["up"]))
        self._override({name: setting for name, setting in found.items() if setting is not None and name in up})

    def _override(self, overrides: dict[str, Setting]) -> None:
        self._overrides = overrides
        self._overrides_end = self.now + OVERRIDE_TTL_SECONDS if overrides else float("inf")
        self._configure()

    def _configure(self) -> None:
        scenario = self.scenario
        for replica, (name, stage) in zip(self._memory.replicas, self._names.items(), strict=True):
            setting = self._overrides.get(name, self._base)
            replica["limited"] = name in self._overrides and replica["up"]
            if stage is Stage.TALKER:
                rows, resident = setting.talker_max_num_seqs, scenario.talker_resident
                by_rows = scenario.admission != "resident"
            else:
                rows, resident = setting.codec_max_num_seqs, scenario.codec_resident
                by_rows = scenario.admission == "rows"
                replica["chunks"], replica["max_chunk"] = len(setting.chunk_ramp), max(setting.chunk_ramp)
                replica["ramp"][: len(setting.chunk_ramp)] = setting.chunk_ramp
                replica["pairs"] = len(setting.capture_pairs)
                for at, shape in enumerate(setting.capture_pairs):
                    replica["shapes"][at] = shape.rows, shape.frames
            replica["rows"] = min(rows, resident)
            replica["capacity"] = replica["rows"] if by_rows else resident

    # Evidence -----------------------------------------------------------------------------------------------

    def _scrape(self) -> None:
        m, pipeline = self._memory, self._memory.pipeline[0]
        head = m.stages[layout.TALKER]["queue_head"]
        waiting = pipeline["queue_tail"] > head
        age = self.now - float(m.requests[m.queue[head]]["accepted"]) if waiting else 0.0
        calls = m.calls[: pipeline["columns"]].copy()
        self._scrapes.append(_Scrape(self.now, age, m.pipeline[0].copy(), m.replicas.copy(), calls))
        if self._scrapes[0].at < self.now - 2 * self.scenario.history_seconds:
            begin = self.now - self.scenario.history_seconds
            del self._scrapes[: bisect_left(self._scrapes, begin, key=attrgetter("at"))]

    def evidence(self, since: datetime, until: datetime) -> Evidence:
        """Returns the evidence that the tuner's counter history would have of a window."""
        begin, end = (since - EPOCH).total_seconds(), min((until - EPOCH).total_seconds(), self.now)
        known = self._scrapes[: bisect_right(self._scrapes, end, key=attrgetter("at"))]
        stale = known[-1].at < end - STALE_SECONDS
        down = list(compress(self._names, ~self._memory.replicas["up"]))
        found = Evidence(
            since=since,
            until=since,
            identity=self.scenario.identity,
            problem=f"the counters are older than {STALE_SECONDS:g} seconds" if stale else "",
            replicas=tuple(self._replica(k) for k in range(len(self._names))),
            queue_age=None if stale else known[-1].queue_age,
            disruption=f"{down[0]} is not ready" if down else "",
        )
        seen = known[bisect_left(known, begin, key=attrgetter("at")) :]
        if stale or len(seen) < 2:
            return found
        first, last = seen[0], seen[-1]
        return msgspec.structs.replace(
            found,
            since=clock(first.at),
            until=clock(last.at),
            routes=self._routes(first.at, last.at),
            failed=self._failed(first.at, last.at),
            live_streams=int(last.pipeline["streams_started"] - first.pipeline["streams_ended"]),
            replicas=tuple(
                msgspec.structs.replace(replica, **self._counts(k, first, last))
                for k, replica in enumerate(found.replicas)
            ),
        )

    def _routes(self, begin: float, end: float) -> dict[Route, RouteStats]:
        entries = _between(self._memory.log[: self._memory.pipeline[0]["logged"]], "at", begin, end)
        requests = self._memory.requests[entries["request"]]
        edge = np.where(entries["underrun"], len(_EDGES), np.searchsorted(TTFA_BUCKETS, requests["ttfa"]))
        shape = (self.scenario.talkers, self.scenario.codecs, len(TASK_TYPES))
        keys = np.ravel_multi_index((requests["talker"], requests["codec"], requests["task"]), shape)
        found, inverse = np.unique(keys, return_inverse=True)
        width = len(_EDGES) + 1
        counts = np.bincount(inverse * width + edge, minlength=len(found) * width).reshape(-1, width).tolist()
        limits = _objectives(self.scenario)
        return {
            Route(f"{Stage.TALKER}-{talker}", f"{Stage.CODEC}-{codec}", TASK_TYPES[task]): RouteStats(
                requests=sum(row),
                within_objective=sum(count for count, limit in zip(row, _EDGES, strict=True) if limit <= limits[task]),
                underruns=underruns,
                ttfa_histogram=dict(zip(_EDGES, accumulate(row), strict=True)),
            )
            for talker, codec, task, (*row, underruns) in zip(*np.unravel_index(found, shape), counts, strict=True)
        }

    def _failed(self, begin: float, end: float) -> dict[str, FailedRequests]:
        window = _between(self._requests(), "accepted", begin, end)
        refused = np.bincount(window["task"][window["refused"]], minlength=len(TASK_TYPES)).tolist()
        return {name: FailedRequests(refused=count) for name, count in zip(TASK_TYPES, refused, strict=True) if count}

    def _replica(self, k: int) -> ReplicaStats:
        name, stage = list(self._names.items())[k]
        replica, setting, costs = self._memory.replicas[k], self._overrides.get(name, self._base), self.scenario.costs
        up = bool(replica["up"])
        return ReplicaStats(
            name=name,
            stage=stage,
            ready=up,
            restarts=int(replica["restarts"]),
            settings=live_settings(setting, stage) if up else None,
            captures=tuple(
                CaptureCost(each.rows, each.frames, costs.capture, costs.capture_bytes * each.rows * each.frames)
                for each in setting.capture_pairs
                if stage is Stage.CODEC and up
            ),
        )

    def _counts(self, k: int, first: _Scrape, last: _Scrape) -> dict[str, Any]:
        """Returns the counts of a replica between two scrapes, as fields of `ReplicaStats`."""
        before, after = first.replicas[k], last.replicas[k]
        steps = zip(_ROW_EDGES, before["steps"].tolist(), after["steps"].tolist(), strict=True)
        return {
            "errors": 0,
            "frames": int(after["frames"] - before["frames"]),
            "steps": {
                rows: StepStats(count - known, seconds - spent)
                for rows, (known, spent), (count, seconds) in steps
                if count > known
            },
            "calls": self._calls(k - self.scenario.talkers, first, last) if k >= self.scenario.talkers else (),
        }

    def _calls(self, c: int, first: _Scrape, last: _Scrape) -> tuple[CallStats, ...]:
        before = first.calls[:, c].tolist()
        before += [(0, 0, 0, 0, 0.0)] * (len(last.calls) - len(before))
        return tuple(
            CallStats(rows, frames, layout.RESULTS[result], count - known, seconds - spent)
            for (*_, known, spent), (rows, frames, result, count, seconds) in zip(
                before, last.calls[:, c].tolist(), strict=True
            )
            if count > known
        )


def _between(records: Array, field: str, begin: float, end: float) -> Array:
    """Returns the records of (begin, end], which are sorted by a field."""
    first, last = (bisect_right(records, at, key=itemgetter(field)) for at in (begin, end))
    window: Array = records[first:last]
    return window


def _objectives(scenario: Scenario) -> Array:
    found = (scenario.objectives.get(name) for name in TASK_TYPES)
    return np.array([np.inf if each is None else each.seconds for each in found])


def good(outcomes: Any, scenario: Scenario) -> Array:
    """Returns which requests met their objective without an underrun."""
    met: Array = (outcomes.ttfa <= _objectives(scenario)[outcomes.task]) & ~outcomes.underrun
    return met


def goodput(outcomes: Any, scenario: Scenario) -> float:
    """Returns good requests per second."""
    return float(good(outcomes, scenario).sum()) / scenario.seconds


def run_fixed(scenario: Scenario, setting: Setting) -> Any:
    """Returns the outcomes under a fixed setting."""
    world = World(msgspec.structs.replace(scenario, initial=setting, scrape_seconds=scenario.seconds))
    world.run(scenario.seconds)
    return world.outcomes()


def fixed(scenario: Scenario, setting: Setting) -> float:
    """Returns the goodput under a fixed setting."""
    return goodput(run_fixed(scenario, setting), scenario)
