"""A simulated pipeline with the interface of a real one: settings in, evidence out."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec
import numpy as np

from simulator import kernel, layout
from simulator.scenario import TASK_TYPES, Scenario
from syrinx_operator.resource.knobs import Setting, Stage, live_settings
from syrinx_operator.tuner.counters import STALE_SECONDS
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

Array = np.ndarray[Any, Any]

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""Start time of every simulation."""
_EDGES = (*TTFA_BUCKETS, float("inf"))
_ROW_EDGES = (*ROW_BUCKETS, 1024)


def clock(seconds: float) -> datetime:
    """Returns the time at a number of seconds after the start of the simulation."""
    return EPOCH + timedelta(seconds=seconds)


def since_epoch(moment: datetime) -> float:
    """Returns the seconds since the start of the simulation."""
    return (moment - EPOCH).total_seconds()


class Outcomes(NamedTuple):
    """Outcomes of all requests so far, as arrays of equal length."""

    accepted: Array
    """Seconds."""
    task: Array
    """Index of `TASK_TYPES`."""
    ttfa: Array
    """Seconds; nan without first audio."""
    refused: Array
    underrun: Array
    """Whether playback underran."""
    talker: Array
    """Talker of the first frame; -1 without one."""
    codec: Array
    candidate: Array
    """Whether talker or codec ran an override at first audio."""
    finished: Array
    """Time of full delivery in seconds; nan before."""
    frames: Array


class _Counters(NamedTuple):
    """Counters of a stage at one scrape."""

    frames: Array
    steps: Array
    step_seconds: Array


class _Scrape(NamedTuple):
    at: float
    queue_age: float
    started: int
    """Streams started since the beginning."""
    ended: int
    """Streams ended since the beginning."""
    stages: dict[Stage, _Counters]
    calls: Array
    call_seconds: Array


class World:
    """One simulated pipeline. Time advances only in `run`."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.now = 0.0
        self._memory = layout.make(scenario)
        self._state = kernel.bind(self._memory)
        self._scrapes: list[_Scrape] = []
        self._restarts = {Stage.TALKER: [0] * scenario.talkers, Stage.CODEC: [0] * scenario.codecs}
        self._names = {
            stage: tuple(f"{stage}-{index}" for index in range(len(self._restarts[stage]))) for stage in Stage
        }
        self._index = {name: index for stage in Stage for index, name in enumerate(self._names[stage])}
        self._base = scenario.initial
        self._limited: dict[str, Setting] = {}
        self._lease = float("inf")
        self._plan_failures()
        for stage in Stage:
            for name in self._names[stage]:
                self._set(stage, name, self._base, limited=False)
        for task, name in enumerate(TASK_TYPES):
            for listener in range(scenario.listeners.get(name, 0)):
                kernel.push(self._state, 0.0, kernel.ASK, listener, task)
        kernel.start(self._state)
        self._scrape()

    # Time ---------------------------------------------------------------------------------------------------

    def run(self, until: float) -> None:
        """Simulates up to `until` seconds."""
        while self.now < until:
            step = self.scenario.scrape_seconds
            scrape = (int(self.now / step + 1e-9) + 1) * step
            stop = min(until, scrape, self._lease, self._next_failure())
            self._advance(stop)
            if stop >= self._lease:
                self._end_leases()
            self._restart()
            if stop >= scrape and not self._in_outage(stop):
                self._scrape()

    def _advance(self, until: float) -> None:
        while kernel.advance(self._state, until) == kernel.FULL:
            self._memory = layout.grow(self._memory, self.scenario)
            self._state = kernel.bind(self._memory)
        self.now = until

    def _plan_failures(self) -> None:
        """Schedules the failures, and lists the restarts by time."""
        events = {
            Stage.TALKER: (kernel.TALKER_DIES, kernel.TALKER_RETURNS),
            Stage.CODEC: (kernel.CODEC_DIES, kernel.CODEC_RETURNS),
        }
        self._returns: list[tuple[float, Stage, int]] = []
        for failure in self.scenario.failures:
            dies, returns = events[failure.stage]
            kernel.push(self._state, failure.at, dies, failure.replica, 0)
            kernel.push(self._state, failure.at + failure.down, returns, failure.replica, 0)
            self._returns.append((failure.at + failure.down, failure.stage, failure.replica))
        self._returns.sort()

    def _next_failure(self) -> float:
        return self._returns[0][0] if self._returns else float("inf")

    def _restart(self) -> None:
        """Applies the base setting to replicas that have restarted."""
        while self._returns and self._returns[0][0] <= self.now:
            _, stage, index = self._returns.pop(0)
            self._restarts[stage][index] += 1
            name = self._names[stage][index]
            self._limited.pop(name, None)
            self._set(stage, name, self._base, limited=False)

    def _in_outage(self, at: float) -> bool:
        return any(begin <= at < end for begin, end in self.scenario.outages)

    @property
    def events(self) -> int:
        """Number of past and scheduled events."""
        return int(self._memory.counters["events"][0])

    # Settings -----------------------------------------------------------------------------------------------

    def apply(self, assignment: Assignment) -> None:
        """Applies an assignment from the next step on. Overrides end when they expire without renewal."""
        based = assignment.base != self._base
        self._base = assignment.base
        limited: dict[str, Setting] = {}
        for stage in Stage:
            for name in self._names[stage]:
                setting = assignment.override(stage, name)
                if setting is not None and self._up(stage, name):
                    limited[name] = setting
        for stage in Stage:
            names = self._names[stage] if based else {*limited, *self._limited} & set(self._names[stage])
            for name in names:
                before, after = self._limited.get(name), limited.get(name)
                if based or before != after:
                    self._set(stage, name, after or self._base, limited=after is not None)
        self._limited = limited
        self._lease = self.now + OVERRIDE_TTL_SECONDS if limited else float("inf")

    def _end_leases(self) -> None:
        for stage in Stage:
            for name in {*self._limited} & set(self._names[stage]):
                self._set(stage, name, self._base, limited=False)
        self._limited = {}
        self._lease = float("inf")

    def _replicas(self, stage: Stage) -> Array:
        return self._memory.talkers if stage is Stage.TALKER else self._memory.codecs

    def _set(self, stage: Stage, name: str, setting: Setting, limited: bool) -> None:
        index, memory = self._index[name], self._memory
        replica = self._replicas(stage)[index]
        replica["limited"] = limited
        if stage is Stage.TALKER:
            replica["rows"] = min(setting.talker_max_num_seqs, self.scenario.talker_resident)
            return
        replica["rows"] = min(setting.codec_max_num_seqs, self.scenario.codec_resident)
        replica["ramp"], replica["largest"] = len(setting.chunk_ramp), max(setting.chunk_ramp)
        replica["pairs"] = len(setting.capture_pairs)
        memory.ramps[index, : len(setting.chunk_ramp)] = setting.chunk_ramp
        for at, shape in enumerate(setting.capture_pairs):
            memory.pairs[index, at] = shape.rows, shape.frames

    # Metrics -------------------------------------------------------------------------------------------

    def _scrape(self) -> None:
        """Saves the current counters."""
        m, counters = self._memory, self._memory.counters[0]
        waiting = counters["talker_tail"] > counters["talker_head"]
        oldest = m.requests["accepted"][m.talker_queue[counters["talker_head"]]] if waiting else self.now
        stages = {
            Stage.TALKER: _counters(m.talkers, m.talker_steps, m.talker_step_seconds),
            Stage.CODEC: _counters(m.codecs, m.codec_steps, m.codec_step_seconds),
        }
        columns = int(counters["columns"])
        calls, seconds = m.calls[:, :columns].copy(), m.call_seconds[:, :columns].copy()
        started, ended = int(counters["streams_started"]), int(counters["streams_ended"])
        self._scrapes.append(_Scrape(self.now, self.now - float(oldest), started, ended, stages, calls, seconds))
        if self._scrapes[0].at < self.now - 2 * self.scenario.history_seconds:
            del self._scrapes[: bisect_left(self._scrapes, self.now - self.scenario.history_seconds, key=_at)]

    def evidence(self, since: datetime, until: datetime) -> Evidence:
        """Returns the evidence that the tuner's counter history would have of a window."""
        begin, end = since_epoch(since), min(since_epoch(until), self.now)
        seen = self._scrapes[bisect_left(self._scrapes, begin, key=_at) : bisect_right(self._scrapes, end, key=_at)]
        newest = self._scrapes[bisect_right(self._scrapes, end, key=_at) - 1]
        if newest.at < end - STALE_SECONDS:
            return self._without_counters(since, f"the counters are older than {STALE_SECONDS:g} seconds")
        if len(seen) < 2:
            return msgspec.structs.replace(self._without_counters(since), queue_age=newest.queue_age)
        first, last = seen[0], seen[-1]
        return msgspec.structs.replace(
            self._without_counters(clock(first.at)),
            until=clock(last.at),
            routes=self._route_stats(first.at, last.at),
            failed=self._failed(first.at, last.at),
            live_streams=last.started - first.ended,
            queue_age=last.queue_age,
            replicas=tuple(self._worker(stage, name, first, last) for stage in Stage for name in self._names[stage]),
        )

    def _without_counters(self, since: datetime, problem: str = "") -> Evidence:
        """Returns evidence without counters."""
        down = [name for stage in Stage for name in self._names[stage] if not self._up(stage, name)]
        return Evidence(
            since=since,
            until=since,
            identity=self.scenario.identity,
            problem=problem,
            replicas=tuple(self._worker(stage, name) for stage in Stage for name in self._names[stage]),
            disruption=f"{down[0]} is not ready" if down else "",
        )

    def _up(self, stage: Stage, name: str) -> bool:
        return bool(self._replicas(stage)["up"][self._index[name]])

    def _route_stats(self, begin: float, end: float) -> dict[Route, RouteStats]:
        """Returns the route stats of a time range."""
        m = self._memory
        with_ttfa = _within(m.ttfa_log, m.ttfa_log_at, int(m.counters["ttfa_count"][0]), begin, end)
        with_underrun = _within(m.underrun_log, m.underrun_log_at, int(m.counters["underrun_count"][0]), begin, end)
        routes, of = np.unique(self._routes(np.concatenate([with_ttfa, with_underrun])), return_inverse=True)
        ttfa_of, underrun_of = of[: len(with_ttfa)], of[len(with_ttfa) :]
        ttfa = m.requests["ttfa"][with_ttfa]
        objective = _objectives(self.scenario)
        good = _edge(ttfa) <= objective[m.requests["task"][with_ttfa]]
        count = len(routes)
        requests, underruns = np.bincount(ttfa_of, minlength=count), np.bincount(underrun_of, minlength=count)
        within = np.bincount(ttfa_of, good, count)
        edges = np.stack([np.bincount(ttfa_of, ttfa <= edge, count) for edge in _EDGES], axis=1)
        return {
            self._route(int(route)): RouteStats(
                requests=int(requests[i]),
                within_objective=int(within[i]),
                underruns=int(underruns[i]),
                ttfa_histogram=dict(zip(_EDGES, edges[i].astype(int).tolist(), strict=True)),
            )
            for i, route in enumerate(routes)
        }

    def _routes(self, requests: Array) -> Array:
        m = self._memory.requests
        talker, codec = m["first_talker"][requests].astype(np.int64), m["first_codec"][requests]
        routes: Array = (talker * self.scenario.codecs + codec) * len(TASK_TYPES) + m["task"][requests]
        return routes

    def _route(self, route: int) -> Route:
        replicas, task = divmod(route, len(TASK_TYPES))
        talker, codec = divmod(replicas, self.scenario.codecs)
        return Route(self._names[Stage.TALKER][talker], self._names[Stage.CODEC][codec], TASK_TYPES[task])

    def _failed(self, begin: float, end: float) -> dict[str, FailedRequests]:
        came = self._memory.requests[: int(self._memory.counters["requests"][0])]
        window = came[
            np.searchsorted(came["accepted"], begin, "right") : np.searchsorted(came["accepted"], end, "right")
        ]
        refused = np.bincount(window["task"][window["refused"] == 1], minlength=len(TASK_TYPES))
        return {
            name: FailedRequests(refused=int(refused[task])) for task, name in enumerate(TASK_TYPES) if refused[task]
        }

    def _worker(
        self, stage: Stage, name: str, first: _Scrape | None = None, last: _Scrape | None = None
    ) -> ReplicaStats:
        index, up = self._index[name], self._up(stage, name)
        setting = self._limited.get(name, self._base)
        about = ReplicaStats(
            name=name,
            stage=stage,
            ready=up,
            restarts=self._restarts[stage][index],
            settings=live_settings(setting, stage) if up else None,
            captures=self._captures(setting) if stage is Stage.CODEC and up else (),
        )
        if first is None or last is None:
            return about
        before, after = first.stages[stage], last.stages[stage]
        steps = after.steps[index] - before.steps[index]
        seconds = after.step_seconds[index] - before.step_seconds[index]
        return msgspec.structs.replace(
            about,
            errors=0,
            frames=int(after.frames[index] - before.frames[index]),
            steps={edge: StepStats(int(steps[i]), float(seconds[i])) for i, edge in enumerate(_ROW_EDGES) if steps[i]},
            calls=self._calls(index, first, last) if stage is Stage.CODEC else (),
        )

    def _calls(self, index: int, first: _Scrape, last: _Scrape) -> tuple[CallStats, ...]:
        counts, seconds = last.calls[index].copy(), last.call_seconds[index].copy()
        known = first.calls.shape[1]
        counts[:known] -= first.calls[index]
        seconds[:known] -= first.call_seconds[index]
        shapes = self._memory.shapes
        return tuple(
            CallStats(
                int(shapes[i, 0]), int(shapes[i, 1]), layout.RESULTS[shapes[i, 2]], int(counts[i]), float(seconds[i])
            )
            for i in np.flatnonzero(counts)
        )

    def _captures(self, setting: Setting) -> tuple[CaptureCost, ...]:
        costs = self.scenario.costs
        return tuple(
            CaptureCost(each.rows, each.frames, costs.capture, costs.capture_bytes * each.rows * each.frames)
            for each in setting.capture_pairs
        )

    def outcomes(self) -> Outcomes:
        """Returns the outcomes of all requests so far."""
        came = self._memory.requests[: int(self._memory.counters["requests"][0])]
        return Outcomes(
            accepted=came["accepted"].copy(),
            task=came["task"].copy(),
            ttfa=came["ttfa"].copy(),
            refused=came["refused"].astype(bool),
            underrun=came["underrun"].astype(bool),
            talker=came["first_talker"].copy(),
            codec=came["first_codec"].copy(),
            candidate=came["candidate"].astype(bool),
            finished=np.where((came["ended"] == layout.NEVER) | (came["refused"] == 1), np.nan, came["ended"]),
            frames=came["length"].copy(),
        )


def _at(scrape: _Scrape) -> float:
    return scrape.at


def _counters(replicas: Array, steps: Array, seconds: Array) -> _Counters:
    return _Counters(replicas["frames"].copy(), steps.copy(), seconds.copy())


def _within(requests: Array, at: Array, count: int, begin: float, end: float) -> Array:
    """Returns the requests of a log in (begin, end]."""
    first, last = np.searchsorted(at[:count], (begin, end), "right")
    window: Array = requests[first:last]
    return window


def _objectives(scenario: Scenario) -> Array:
    """Returns the TTFA objectives in seconds by index of `TASK_TYPES`; infinite without one."""
    found = (scenario.objectives.get(name) for name in TASK_TYPES)
    return np.array([np.inf if objective is None else objective.seconds for objective in found])


def _edge(seconds: Array) -> Array:
    """Returns the upper bound of the histogram bucket of each time, which is all that the metric shows."""
    edges: Array = np.array(_EDGES)[np.searchsorted(TTFA_BUCKETS, seconds)]
    return edges


def good(outcomes: Outcomes, scenario: Scenario) -> Array:
    """Returns which requests met their objective without an underrun."""
    with_ttfa: Array = outcomes.ttfa <= _objectives(scenario)[outcomes.task]
    return with_ttfa & ~outcomes.underrun


def goodput(outcomes: Outcomes, scenario: Scenario) -> float:
    """Returns good requests per second."""
    return float(good(outcomes, scenario).sum()) / scenario.seconds


def fixed(scenario: Scenario, setting: Setting) -> float:
    """Returns the goodput under a fixed setting."""
    world = World(msgspec.structs.replace(scenario, initial=setting, scrape_seconds=scenario.seconds))
    world.run(scenario.seconds)
    return goodput(world.outcomes(), scenario)
