"""A simulated pipeline with the interface of a real one: settings in, evidence out."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from copy import copy
from datetime import UTC, datetime, timedelta
from itertools import accumulate, compress
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np

from simulator import kernel, layout
from simulator.layout import Array
from simulator.scenario import TASK_TYPES, Scenario
from syrinx_operator.resource.knobs import Setting, live_settings
from syrinx_operator.tuner.builder import OVERRIDE_TTL_SECONDS
from syrinx_operator.tuner.counters import STALE_SECONDS
from syrinx_operator.tuner.decide import Assignment
from syrinx_operator.tuner.evidence import (
    CallStats,
    CaptureCost,
    Evidence,
    Outcomes,
    ReplicaStats,
    StepStats,
    StreamStats,
    burstiness,
)
from syrinx_stages.contract.metrics import ROW_BUCKETS, TTFA_BUCKETS
from syrinx_stages.contract.settings import MAX_ROWS
from syrinx_stages.contract.stages import WORKERS, Stage

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""Start time of every simulation."""
_LONGEST = 120.0
"""Seconds within which the outcome of a request is known."""
_EDGES = (*TTFA_BUCKETS, float("inf"))
_ROW_EDGES = (*ROW_BUCKETS, MAX_ROWS)


def clock(seconds: float) -> datetime:
    """Returns the time at a number of seconds after the start of the simulation."""
    return EPOCH + timedelta(seconds=seconds)


class _Scrape(NamedTuple):
    """Copies of the counters at one time."""

    at: float
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
        self._names = {f"{stage}-{index}": stage for stage in WORKERS for index in range(counts[stage])}
        """Names and stages of the replicas, in the order of `Memory.replicas`."""
        self._serving = [True] * len(self._names)
        """Whether each replica claims requests. One that does not is being drained, starting, or not there."""
        self._starting: dict[int, float] = {}
        """Replicas that start, and when they are ready."""
        self.replica_seconds = 0.0
        """Seconds of replicas that start, serve or drain."""
        self._base = scenario.initial
        self._candidate: Setting | None = None
        self._labels: list[tuple[float, str]] = [(0.0, "")]
        """Times from which requests had a label."""
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
            stop = min(until, scrape, self._overrides_end, restart, *self._starting.values())
            while not kernel.advance(self._state, stop):
                self._memory = layout.grow(self._memory, self.scenario)
                self._state = kernel.bind(self._memory)
            self.replica_seconds += (stop - self.now) * self._existing()
            self.now = stop
            self._begin_to_serve()
            if stop >= self._overrides_end:
                self._override(None, "")
            if stop == restart:
                self._configure()
            if stop >= scrape and not any(begin <= stop < end for begin, end in self.scenario.outages):
                self._scrape()

    def copy(self) -> "World":
        """Returns a pipeline in the same state, with the same requests to come."""
        twin = copy(self)
        twin._memory = layout.Memory(*(array.copy() for array in self._memory))
        twin._state = kernel.bind(twin._memory)
        twin._scrapes, twin._labels = list(self._scrapes), list(self._labels)
        twin._serving, twin._starting = list(self._serving), dict(self._starting)
        return twin

    def scale(self, counts: Mapping[Stage, int], start_seconds: float) -> None:
        """Sets the number of replicas of each stage, at most those of the scenario.

        New ones serve after `start_seconds`. Those that are too many finish their requests and end.
        """
        for k, name in enumerate(self._names):
            is_wanted = int(name.rpartition("-")[2]) < counts[self._names[name]]
            if not is_wanted:
                self._serving[k] = False
                self._starting.pop(k, None)
            elif not self._serving[k]:
                self._starting.setdefault(k, self.now + start_seconds)
        self._begin_to_serve()
        self._configure()

    def live_streams(self) -> int:
        """Returns the number of requests that wait or are served."""
        requests = self._requests()
        return int((np.isnan(requests["finished"]) & ~requests["refused"]).sum())

    def _begin_to_serve(self) -> None:
        for k in [k for k, at in self._starting.items() if at <= self.now]:
            del self._starting[k]
            self._serving[k] = True
            self._configure()
            kernel.poll(self._state, k, self.now)

    def _existing(self) -> int:
        """Returns the number of replicas that start, serve or drain."""
        held = self._memory.replicas["held"]
        return sum(serves or k in self._starting or held[k] > 0 for k, serves in enumerate(self._serving))

    def _present(self) -> list[int]:
        """Returns the replicas that serve or start."""
        return [k for k, serves in enumerate(self._serving) if serves or k in self._starting]

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
        self._override(assignment.candidate, assignment.label)

    def _override(self, candidate: Setting | None, label: str) -> None:
        self._candidate = candidate
        if label != self._labels[-1][1]:
            self._labels.append((self.now, label))
        self._overrides_end = self.now + OVERRIDE_TTL_SECONDS if candidate is not None or label else float("inf")
        self._configure()

    def _configure(self) -> None:
        scenario = self.scenario
        for replica, stage, serves in zip(self._memory.replicas, self._names.values(), self._serving, strict=True):
            setting = self._candidate or self._base
            replica["limited"] = self._candidate is not None and replica["up"]
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
            replica["capacity"] = (replica["rows"] if by_rows else resident) if serves else 0

    # Evidence -----------------------------------------------------------------------------------------------

    def _scrape(self) -> None:
        m = self._memory
        calls = m.calls[: m.pipeline[0]["columns"]].copy()
        self._scrapes.append(_Scrape(self.now, m.pipeline[0].copy(), m.replicas.copy(), calls))
        if self._scrapes[0].at < self.now - 2 * self.scenario.history_seconds:
            begin = self.now - self.scenario.history_seconds
            del self._scrapes[: bisect_left(self._scrapes, begin, key=attrgetter("at"))]

    def evidence(self, since: datetime, until: datetime) -> Evidence:
        """Returns the evidence that the tuner's counter history would have of a window."""
        begin, end = (since - EPOCH).total_seconds(), min((until - EPOCH).total_seconds(), self.now)
        known = self._scrapes[: bisect_right(self._scrapes, end, key=attrgetter("at"))]
        stale = not known or known[-1].at < end - STALE_SECONDS
        present = self._present()
        down = list(compress(self._names, ~self._memory.replicas["up"]))
        down += [list(self._names)[k] for k in self._starting]
        found = Evidence(
            since=since,
            until=since,
            identity=self.scenario.identity,
            problem=f"the counters are older than {STALE_SECONDS:g} seconds" if stale else "",
            replicas=tuple(self._replica(k) for k in present),
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
            streams=self._streams(first.at, last.at),
            outcomes=self._outcomes(first.at, last.at),
            burst=burstiness(self._arrivals([scrape.at for scrape in seen])),
            replicas=tuple(
                msgspec.structs.replace(replica, **self._counts(k, first, last))
                for k, replica in zip(present, found.replicas, strict=True)
            ),
        )

    def _streams(self, begin: float, end: float) -> dict[str, StreamStats]:
        entries = _between(self._memory.log[: self._memory.pipeline[0]["logged"]], "at", begin, end)
        requests = self._memory.requests[entries["request"]]
        edge = np.where(entries["underrun"], len(_EDGES), np.searchsorted(TTFA_BUCKETS, requests["ttfa"]))
        width = len(_EDGES) + 1
        counts = np.bincount(requests["task"] * width + edge, minlength=len(TASK_TYPES) * width).reshape(-1, width)
        limits = _objectives(self.scenario)
        return {
            name: StreamStats(
                requests=sum(row),
                within_objective=sum(count for count, limit in zip(row, _EDGES, strict=True) if limit <= most),
                underruns=underruns,
                ttfa_histogram=dict(zip(_EDGES, accumulate(row), strict=True)),
            )
            for name, most, (*row, underruns) in zip(TASK_TYPES, limits, counts.tolist(), strict=True)
            if sum(row) or underruns
        }

    def _arrivals(self, times: Sequence[float]) -> list[int]:
        """Returns the numbers of requests between times."""
        ends = np.searchsorted(self._requests()["accepted"], times, side="right")
        return [int(count) for count in np.diff(ends)]

    def _outcomes(self, begin: float, end: float) -> dict[tuple[str, str], Outcomes]:
        """Returns what becomes known in (begin, end], as a gateway counts it."""
        window = _between(self._requests(), "accepted", begin - _LONGEST, end)
        accepted, task = window["accepted"], window["task"]
        starts = np.array([at for at, _ in self._labels])
        label = np.searchsorted(starts, accepted, side="right") - 1
        deadline = accepted + _objectives(self.scenario)[task]
        late = np.where(window["refused"] | (accepted + window["ttfa"] <= deadline), np.inf, deadline)
        stalls = np.full(len(window), np.inf)
        entries = _between(self._memory.log[: self._memory.pipeline[0]["logged"]], "at", begin - _LONGEST, end)
        entries = entries[entries["underrun"]]
        first = len(self._requests()[: bisect_right(self._requests(), begin - _LONGEST, key=itemgetter("accepted"))])
        inside = entries["request"] >= first
        stalls[entries["request"][inside] - first] = entries["at"][inside]
        bad = np.minimum(late, stalls)
        kinds = {
            "accepted": accepted,
            "refused": np.where(window["refused"], accepted, np.inf),
            "late": np.where(late <= stalls, late, np.inf),
            "interrupted": np.where(stalls < late, stalls, np.inf),
            "well": np.where(np.isinf(bad) & ~window["refused"], window["finished"], np.inf),
        }
        counts: dict[tuple[str, str], dict[str, int]] = {}
        for kind, at in kinds.items():
            known = (at > begin) & (at <= end)
            for t, n, count in _counted(task[known], label[known]):
                each = counts.setdefault((TASK_TYPES[t], self._labels[n][1]), {})
                each[kind] = each.get(kind, 0) + count
        return {key: Outcomes(**each) for key, each in counts.items()}

    def _replica(self, k: int) -> ReplicaStats:
        name, stage = list(self._names.items())[k]
        replica, setting, costs = self._memory.replicas[k], self._candidate or self._base, self.scenario.costs
        up = bool(replica["up"]) and self._serving[k]
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
        requests = self._requests()
        window = _between(requests, "accepted", first.at, last.at)
        asked = np.bincount(window["task"][~window["refused"]], minlength=len(TASK_TYPES))
        talkers = sum(k < self.scenario.talkers for k in self._present())
        prepares = {
            name: StepStats(count // talkers, count // talkers * self.scenario.costs.prepare.get(name, 0.0))
            for name, count in zip(TASK_TYPES, asked.tolist(), strict=True)
            if count
        }
        return {
            "prepares": prepares,
            "prefills": StepStats(
                int(after["prefills"] - before["prefills"]), float(after["prefill_seconds"] - before["prefill_seconds"])
            ),
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


def _counted(one: Array, two: Array) -> list[tuple[int, int, int]]:
    """Returns the pairs of values and their numbers."""
    width = int(two.max(initial=0)) + 1
    counts = np.bincount(one.astype(np.int64) * width + two)
    return [(int(each) // width, int(each) % width, int(counts[each])) for each in np.flatnonzero(counts)]


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
