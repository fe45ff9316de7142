"""Collects what the stages of pipelines count: from their own metrics, or from a Prometheus that scrapes them.

What follows of the counters is `tuner.counters`'s to say; `measured` puts it in the words of the resource's status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Self

import msgspec
from msgspec import Struct

from syrinx_operator.cluster import prometheus
from syrinx_operator.cluster.state import STAGES, Component, Measured, Objective, Owner, Replica
from syrinx_operator.resource.knobs import Stage
from syrinx_operator.resource.spec import TTSPipeline, TuningSpec
from syrinx_operator.tuner.evidence import Evidence, RouteStats
from syrinx_operator.tuner.policy import Policy
from syrinx_operator.tuner.snapshot import Snapshot, parse_metrics
from syrinx_operator.tuner.workload import histogram, quantile

QUANTILE = 0.95
WINDOW = 300.0
"""Seconds that are measured over; two intervals, if that is longer."""
SCRAPE_SECONDS = 10.0
EVERY_ROUTE = frozenset(Stage)
MAX_ROUTES = 64
"""Pairs of talker and codec up to which a Prometheus is asked for each."""

Scrape = Callable[[Replica], Awaitable[str]]


class Look(Struct, frozen=True, kw_only=True):
    """What one look at the metrics brought."""

    source: str
    """`prometheus` or `gateways`."""
    snapshots: tuple[Snapshot, ...] = ()
    scraped_every: float = 0.0
    """Seconds between two scrapes, where that is not the operator's to choose; else 0."""
    problem: str = ""
    """Why it brought nothing of the gateways (with `reason`); empty if it did."""
    reason: str = ""
    """`Missing` or `Error`; empty without a problem."""


class _Memory(Struct):
    """What is remembered of one pipeline."""

    tuning: TuningSpec
    looked_at: datetime
    look: Look
    """Without its snapshots."""
    known_at: datetime | None
    """Of the newest snapshot."""


class Meter:
    """Looks at pipelines' metrics, at each at most once per interval; in between its answer is the last one."""

    def __init__(
        self, access: prometheus.Access = prometheus.PLAIN, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._access = access
        self._clock = clock
        self._memory: dict[str, _Memory] = {}

    async def look(
        self,
        pipeline: TTSPipeline,
        owner: Owner,
        replicas: Sequence[Replica],
        scrape: Scrape,
        *,
        every: float | None = None,
        tuned: Stage | None = None,
    ) -> Look | None:
        """What the stages have counted; None with tuning Off. What goes wrong is part of the answer, no exception.

        `replicas` are the pipeline's; `scrape` returns the `/metrics` of one, and may raise. `every` asks for a look
        after so many seconds, where that is sooner than the interval. With many replicas a Prometheus is asked to tell
        apart those of the `tuned` stage only.
        """
        spec, now = pipeline.spec, self._clock()
        self._forget(now)
        if spec.tuning.mode == "Off":
            self._memory.pop(owner.uid, None)
            return None
        before = self._memory.get(owner.uid)
        seconds = spec.tuning.interval_seconds if every is None else min(every, spec.tuning.interval_seconds)
        if before and before.tuning == spec.tuning and 0 <= (now - before.looked_at).total_seconds() < seconds:
            return before.look
        if spec.tuning.prometheus is None:
            found = await self._scrape_all([each for each in replicas if each.component in STAGES], scrape, now)
        else:
            span = WINDOW if before is None or before.known_at is None else (now - before.known_at).total_seconds()
            found = await self._ask(pipeline, owner, _apart(replicas, tuned), min(span, WINDOW))
        known_at = max((each.time for each in found.snapshots), default=before.known_at if before else None)
        alone = msgspec.structs.replace(found, snapshots=())
        self._memory[owner.uid] = _Memory(spec.tuning, now, alone, known_at)
        return found

    async def _scrape_all(self, replicas: Sequence[Replica], scrape: Scrape, now: datetime) -> Look:
        asked = [replica for replica in replicas if replica.address]
        if not any(replica.component is Component.GATEWAY for replica in asked):
            return Look(source="gateways", reason="Missing", problem="no gateway runs that could be asked")
        answers = await asyncio.gather(*(_scraped(replica, scrape, now) for replica in asked))
        found = tuple(answer for answer in answers if isinstance(answer, Snapshot))
        if any(each.stage == Component.GATEWAY for each in found):
            return Look(source="gateways", snapshots=found)
        wrong = next(
            answer
            for replica, answer in zip(asked, answers, strict=True)
            if replica.component is Component.GATEWAY and isinstance(answer, str)
        )
        problem = f"no gateway's metrics can be read; {wrong}"
        return Look(source="gateways", snapshots=found, reason="Error", problem=problem)

    async def _ask(self, pipeline: TTSPipeline, owner: Owner, apart: frozenset[Stage], span: float) -> Look:
        spec = pipeline.spec
        assert spec.tuning.prometheus is not None
        monitor = spec.monitoring.pod_monitor
        every = float(monitor.interval_seconds) if monitor else 0.0
        look = Look(source="prometheus", scraped_every=every)
        seconds = round(max(span, 3 * every, prometheus.LEAST_SPAN))
        try:
            found = await prometheus.read(spec.tuning.prometheus.url, owner, seconds, apart, self._access, self._clock)
        except prometheus.PrometheusError as error:
            problem = f"spec.tuning.prometheus: {error}"
            return msgspec.structs.replace(look, reason="Error", problem=problem)
        look = msgspec.structs.replace(look, snapshots=found)
        if any(each.stage == Component.GATEWAY for each in found):
            return look
        problem = (
            f"Prometheus has no samples of the last {seconds} seconds of pods {owner.name}-gateway-… with the labels "
            f"pod and namespace ({owner.namespace}): see that it scrapes them (spec.monitoring)"
        )
        return msgspec.structs.replace(look, reason="Missing", problem=problem)

    def _forget(self, now: datetime) -> None:
        """Pipelines that nobody asks about any more."""
        for uid, memory in list(self._memory.items()):
            if (now - memory.looked_at).total_seconds() > 2 * max(memory.tuning.interval_seconds, WINDOW):
                del self._memory[uid]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._memory.clear()


def window(policy: Policy) -> float:
    """Seconds that the status is measured over."""
    return max(WINDOW, 2 * policy.interval)


def measured(look: Look, policy: Policy, evidence: Evidence) -> Measured:
    """How a pipeline does, by the evidence of the last minutes."""
    if evidence.problem:
        return Measured(source=look.source, reason=look.reason or "Stale", problem=evidence.problem)
    heard: dict[str, list[RouteStats]] = {}
    for route, served in evidence.routes.items():
        heard.setdefault(route.task_type, []).append(served)
    return Measured(
        source=look.source,
        task_types=tuple(
            _objective(task_type, parts, task_type in policy.objectives)
            for task_type, parts in sorted(heard.items())
            if any(part.requests for part in parts)
        ),
        live_streams=evidence.live_streams,
        underruns=sum(served.underruns for served in evidence.routes.values()),
    )


def _objective(task_type: str, parts: Sequence[RouteStats], judged: bool) -> Objective:
    p95 = quantile(histogram(parts), QUANTILE)
    return Objective(
        task_type=task_type,
        requests=sum(part.requests for part in parts),
        within=sum(part.within_objective for part in parts) if judged else None,
        ttfa_p95_ms=None if p95 is None else p95 * 1000,
    )


async def _scraped(replica: Replica, scrape: Scrape, at: datetime) -> Snapshot | str:
    """A replica's counters, or why there are none. All of a look have its time, so that they end together."""
    try:
        async with asyncio.timeout(SCRAPE_SECONDS):
            text = await scrape(replica)
            return await asyncio.to_thread(parse_metrics, replica.name, replica.component.value, at, text)
    except Exception as error:
        # Whatever the transport raises: one replica's silence is no reason to know nothing of the others.
        return f"{replica.name}: {type(error).__name__}: {str(error)[:200]}"


def _apart(replicas: Sequence[Replica], tuned: Stage | None) -> frozenset[Stage]:
    """The stages whose replicas a Prometheus is asked to tell apart."""
    talkers, codecs = (sum(each.component.value == stage.value for each in replicas) for stage in Stage)
    if talkers * codecs <= MAX_ROUTES:
        return EVERY_ROUTE
    return frozenset() if tuned is None else frozenset({tuned})
