"""Collects the counters of pipelines' stages, from their /metrics or from a Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from syrinx_operator.cluster import prometheus
from syrinx_operator.cluster.state import STAGES, Component, Owner, Replica
from syrinx_operator.resource.knobs import Stage
from syrinx_operator.resource.spec import TTSPipeline, TuningSpec
from syrinx_operator.tuner.policy import Policy
from syrinx_operator.tuner.snapshot import Snapshot, parse_metrics

WINDOW = 300.0
"""Measurement window in seconds; two tuning intervals if that is longer."""
SCRAPE_SECONDS = 10.0
MAX_ROUTES = 64
"""Maximum number of talker-codec pairs for which a Prometheus is queried per replica of both stages."""

Scrape = Callable[[Replica], Awaitable[str]]


class Reading(Struct, frozen=True, kw_only=True):
    """The result of reading a pipeline's metrics once."""

    source: str
    """`prometheus` or `gateways`."""
    snapshots: tuple[Snapshot, ...] = ()
    scrape_interval: float = 0.0
    """Seconds between two scrapes if Prometheus determines them, else 0."""
    problem: str = ""
    """Why there are no gateway metrics (with `reason`); empty if there are."""
    reason: str = ""
    """`Missing` or `Error`; empty without a problem."""


class _Memory(Struct):
    tuning: TuningSpec
    read_at: datetime
    reading: Reading
    """The last reading without its snapshots."""
    newest_at: datetime | None
    """Time of the newest snapshot."""


class MetricsReader:
    """Reads each pipeline's metrics at most once per interval; in between it repeats the last result."""

    def __init__(
        self,
        access: prometheus.Access = prometheus.DEFAULT_ACCESS,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._access = access
        self._clock = clock
        self._memory: dict[str, _Memory] = {}
        """By the pipeline's UID."""

    async def read(
        self,
        pipeline: TTSPipeline,
        owner: Owner,
        replicas: Sequence[Replica],
        scrape: Scrape,
        *,
        max_age: float | None = None,
        tuned: Stage | None = None,
    ) -> Reading:
        """Returns the stages' counters; none with tuning Off. Failures are part of the result and never raise.

        `scrape` returns a replica's /metrics and may raise. `max_age` (seconds) shortens the interval. With many
        replicas a Prometheus splits its sums only by replicas of the `tuned` stage.
        """
        spec, now = pipeline.spec, self._clock()
        # Pipelines that are no longer read are dropped.
        self._memory = {
            uid: memory
            for uid, memory in self._memory.items()
            if (now - memory.read_at).total_seconds() <= 2 * max(memory.tuning.interval_seconds, WINDOW)
        }
        if spec.tuning.mode == "Off":
            self._memory.pop(owner.uid, None)
            return Reading(source="")
        before = self._memory.get(owner.uid)
        seconds = spec.tuning.interval_seconds if max_age is None else min(max_age, spec.tuning.interval_seconds)
        if before and before.tuning == spec.tuning and 0 <= (now - before.read_at).total_seconds() < seconds:
            return before.reading
        if spec.tuning.prometheus is None:
            reading = await self._scrape_all([each for each in replicas if each.component in STAGES], scrape, now)
        else:
            span = WINDOW if before is None or before.newest_at is None else (now - before.newest_at).total_seconds()
            reading = await self._query(pipeline, owner, _split_by(replicas, tuned), min(span, WINDOW))
        newest_at = max((each.time for each in reading.snapshots), default=before.newest_at if before else None)
        without_snapshots = msgspec.structs.replace(reading, snapshots=())
        self._memory[owner.uid] = _Memory(spec.tuning, now, without_snapshots, newest_at)
        return reading

    async def _scrape_all(self, replicas: Sequence[Replica], scrape: Scrape, now: datetime) -> Reading:
        targets = [replica for replica in replicas if replica.address]
        if not any(replica.component is Component.GATEWAY for replica in targets):
            return Reading(source="gateways", reason="Missing", problem="no gateway is running")
        answers = await asyncio.gather(*(_scrape(replica, scrape, now) for replica in targets))
        found = tuple(answer for answer in answers if isinstance(answer, Snapshot))
        if any(each.stage == Component.GATEWAY for each in found):
            return Reading(source="gateways", snapshots=found)
        errors = (answer for replica, answer in zip(targets, answers, strict=True) if replica.component == "gateway")
        problem = f"cannot read the metrics of any gateway: {next(errors)}"
        return Reading(source="gateways", snapshots=found, reason="Error", problem=problem)

    async def _query(self, pipeline: TTSPipeline, owner: Owner, split_by: frozenset[Stage], span: float) -> Reading:
        spec = pipeline.spec
        assert spec.tuning.prometheus is not None
        monitor = spec.monitoring.pod_monitor
        interval = float(monitor.interval_seconds) if monitor else 0.0
        reading = Reading(source="prometheus", scrape_interval=interval)
        seconds = round(max(span, 3 * interval, prometheus.MIN_SPAN))
        url = spec.tuning.prometheus.url
        try:
            found = await prometheus.read(url, owner, seconds, split_by, self._access, self._clock)
        except prometheus.PrometheusError as error:
            problem = f"spec.tuning.prometheus: {error}"
            return msgspec.structs.replace(reading, reason="Error", problem=problem)
        reading = msgspec.structs.replace(reading, snapshots=found)
        if any(each.stage == Component.GATEWAY for each in found):
            return reading
        problem = (
            f"Prometheus has no samples from the last {seconds} seconds for pods {owner.name}-gateway-… with labels "
            f"pod and namespace ({owner.namespace}): check that it scrapes them (spec.monitoring)"
        )
        return msgspec.structs.replace(reading, reason="Missing", problem=problem)


def window(policy: Policy) -> float:
    """Returns the measurement window in seconds."""
    return max(WINDOW, 2 * policy.interval)


async def _scrape(replica: Replica, scrape: Scrape, at: datetime) -> Snapshot | str:
    """Returns a replica's counters at time `at`, which all scrapes of a reading share; or an error message."""
    try:
        async with asyncio.timeout(SCRAPE_SECONDS):
            text = await scrape(replica)
            return await asyncio.to_thread(parse_metrics, replica.name, replica.component.value, at, text)
    except Exception as error:
        # One unreachable replica must not hide the others, whatever the transport raises.
        return f"{replica.name}: {type(error).__name__}: {str(error)[:200]}"


def _split_by(replicas: Sequence[Replica], tuned: Stage | None) -> frozenset[Stage]:
    """Returns the stages whose replicas a Prometheus query distinguishes."""
    talkers, codecs = (sum(each.component.value == stage.value for each in replicas) for stage in Stage)
    if talkers * codecs <= MAX_ROUTES:
        return frozenset(Stage)
    return frozenset() if tuned is None else frozenset({tuned})
