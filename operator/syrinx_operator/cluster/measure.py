"""Measures how soon listeners are heard: what the gateways, or a Prometheus, counted within the last minutes."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Self

from msgspec import Struct, field
from prometheus_client.parser import text_string_to_metric_families

from syrinx_operator.cluster import prometheus
from syrinx_operator.cluster.histogram import (
    SERIES,
    Counted,
    Counters,
    Sample,
    counted,
    counters,
    quantile,
    total,
    within,
)
from syrinx_operator.cluster.state import Measured, Objective, Owner, Replica
from syrinx_operator.spec import SloSpec, TTSPipeline, TuningSpec

QUANTILE = 0.95
WINDOW = 300
"""Seconds that are measured over; one interval, if that is longer."""
SCRAPE_SECONDS = 10.0
MAX_EXPOSITION = 8 << 20
"""Characters of one gateway's metrics at most."""
STALE_SECONDS = 90.0
"""Age of numbers from which they no longer count; of Prometheus' samples, three scrapes of the PodMonitor if longer."""

Scrape = Callable[[Replica], Awaitable[str]]


class _Memory(Struct):
    """What is remembered of one pipeline; lost with the operator, it builds up again within minutes."""

    tuning: TuningSpec
    slo: SloSpec
    looked_at: float
    measured: Measured
    known_at: float | None
    """When `measured` was last true of the metrics; None if there were none."""
    gateways: dict[str, list[Counters]] = field(default_factory=dict)


class Meter:
    """Measures pipelines, each at most once per interval; in between its answer is the last one."""

    def __init__(
        self, access: prometheus.Access = prometheus.PLAIN, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._access = access
        self._clock = clock
        self._memory: dict[str, _Memory] = {}

    async def measure(
        self, pipeline: TTSPipeline, owner: Owner, gateways: Sequence[Replica], scrape: Scrape
    ) -> Measured | None:
        """How the pipeline does; None with tuning Off. What goes wrong is part of the answer, never an exception.

        `scrape` returns a gateway's `/metrics`; it may raise.
        """
        spec, now = pipeline.spec, self._clock()
        self._forget(now)
        before = self._memory.get(owner.uid)
        if spec.tuning.mode == "Off":
            self._memory.pop(owner.uid, None)
            return None
        same = before is not None and before.tuning == spec.tuning and before.slo == spec.slo
        if before and same and now - before.looked_at < spec.tuning.interval_seconds:
            return before.measured
        looks = before.gateways if before else {}
        if spec.tuning.prometheus is not None:
            measured = await _ask(spec.tuning.prometheus.url, pipeline, owner, self._access)
        else:
            measured = await self._look(pipeline, gateways, scrape, looks)
        known_at = None if measured.problem else now
        if before and same and measured.problem and _still_holds(before, measured, now):
            measured, known_at = before.measured, before.known_at
        self._memory[owner.uid] = _Memory(spec.tuning, spec.slo, now, measured, known_at, looks)
        return measured

    async def _look(
        self, pipeline: TTSPipeline, gateways: Sequence[Replica], scrape: Scrape, looks: dict[str, list[Counters]]
    ) -> Measured:
        asked = [gateway for gateway in gateways if gateway.address]
        if not asked:
            return _nothing("gateways", "Missing", "no gateway runs that could be asked")
        answers = await asyncio.gather(*(self._scraped(gateway, scrape) for gateway in asked))
        for gateway, answer in zip(asked, answers, strict=True):
            if isinstance(answer, Counters):
                looks.setdefault(gateway.name, []).append(answer)
        _trim(looks, self._clock() - WINDOW)
        wrong = [answer for answer in answers if isinstance(answer, str)]
        if len(wrong) == len(answers):
            return _nothing("gateways", "Error", f"no gateway's metrics can be read; {wrong[0]}")
        return _measured("gateways", pipeline.spec.slo, counted(looks.values()))

    async def _scraped(self, gateway: Replica, scrape: Scrape) -> Counters | str:
        """A gateway's counters, or why there are none."""
        try:
            async with asyncio.timeout(SCRAPE_SECONDS):
                text = await scrape(gateway)
                at = self._clock()
                return await asyncio.to_thread(parse, text, at)
        except Exception as error:
            # Whatever the transport raises: one gateway's silence is no reason to know nothing of the others.
            return f"{gateway.name}: {type(error).__name__}: {str(error)[:200]}"

    def _forget(self, now: float) -> None:
        """Pipelines that nobody asks about any more."""
        for uid, memory in list(self._memory.items()):
            if now - memory.looked_at > 2 * max(memory.tuning.interval_seconds, WINDOW):
                del self._memory[uid]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._memory.clear()


def _still_holds(before: _Memory, failure: Measured, now: float) -> bool:
    """Whether the last numbers outlive a look that failed: a gateway that restarts is no loss of all metrics."""
    if before.known_at is None or failure.reason == "Stale":
        return False
    return now - before.known_at <= max(STALE_SECONDS, before.tuning.interval_seconds)


def parse(text: str, at: float) -> Counters:
    """A gateway's counters from its `/metrics`. Raises `ValueError` for what is none."""
    if len(text) > MAX_EXPOSITION:
        raise ValueError(f"its metrics are larger than {MAX_EXPOSITION >> 20} MiB")
    # Only these: the parser is slow, and there is one histogram per pair of talker and codec.
    wanted = "".join(f"{line}\n" for line in text.splitlines() if line.startswith(SERIES))
    samples = [
        Sample(one.name, one.labels.get("task_type", ""), float(one.labels.get("le", "0")), one.value)
        for family in text_string_to_metric_families(wanted)
        for one in family.samples
        if one.name in SERIES
    ]
    found = counters(samples, at)
    if found is None:
        raise ValueError("these are not a gateway's metrics")
    return found


async def _ask(url: str, pipeline: TTSPipeline, owner: Owner, access: prometheus.Access) -> Measured:
    spec = pipeline.spec
    monitor = spec.monitoring.pod_monitor
    stale = max(STALE_SECONDS, 3.0 * monitor.interval_seconds if monitor else 0.0)
    try:
        looks, age = await prometheus.read(url, owner, max(WINDOW, spec.tuning.interval_seconds), access)
    except prometheus.PrometheusError as error:
        return _nothing("prometheus", "Error", f"spec.tuning.prometheus: {error}")
    if age is None or math.isnan(age):
        return _nothing(
            "prometheus",
            "Missing",
            f"Prometheus has no samples of pods {owner.name}-gateway-… with the labels pod and namespace "
            f"({owner.namespace}): see that it scrapes them (spec.monitoring)",
        )
    if age > stale:
        return _nothing("prometheus", "Stale", f"Prometheus' newest sample is older than {stale:g} seconds")
    return _measured("prometheus", spec.slo, counted(looks.values()))


def _measured(source: str, slo: SloSpec, found: Counted) -> Measured:
    edges: dict[str, float] = {objective.task_type: objective.ttfa_p95_ms / 1000 for objective in slo.ttfa}
    objectives = []
    for task_type, buckets in sorted(found.heard.items()):
        edge, p95 = edges.get(task_type), quantile(buckets, QUANTILE)
        if p95 is None:
            continue
        objectives.append(
            Objective(
                task_type=task_type,
                requests=total(buckets),
                within=None if edge is None else within(buckets, edge),
                ttfa_p95_ms=p95 * 1000,
            )
        )
    return Measured(source=source, task_types=tuple(objectives), live_streams=found.streams, underruns=found.underruns)


def _nothing(source: str, reason: str, problem: str) -> Measured:
    return Measured(source=source, reason=reason, problem=problem)


def _trim(looks: dict[str, list[Counters]], since: float) -> None:
    """Drops what is older than the window, but for the last look before it, from which is counted."""
    for gateway, series in list(looks.items()):
        while len(series) > 1 and series[1].at <= since:
            del series[0]
        if series[-1].at <= since and len(series) == 1:
            del looks[gateway]
