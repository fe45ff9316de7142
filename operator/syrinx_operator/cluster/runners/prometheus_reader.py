"""Reads pipelines' counters from their Prometheus servers, with the credentials in their Secrets."""

from datetime import datetime, timedelta

from msgspec import Struct

from syrinx_operator.cluster.objects.clock import Now, utc_now
from syrinx_operator.cluster.objects.state import Owner
from syrinx_operator.cluster.watch import prometheus
from syrinx_operator.cluster.watch.prometheus_access import (
    Access,
    Credentials,
    GetObject,
    PrometheusError,
    read_credentials,
)
from syrinx_operator.observed.snapshot import Snapshot
from syrinx_operator.resource.fields.tuning import PrometheusSpec
from syrinx_operator.resource.resolve import ResolvedPipeline
from syrinx_stages.contract.stages import Stage


class Reading(Struct, frozen=True, kw_only=True):
    """The result of reading a pipeline's metrics once."""

    source: str
    snapshots: tuple[Snapshot, ...] = ()
    scrape_interval: float = 0.0
    """Seconds between two scrapes if Prometheus determines them, else 0."""
    problem: str = ""
    """Why there are no gateway metrics (with `reason`); empty if there are."""
    reason: str = ""
    """`Missing` or `Error`; empty without a problem."""


class _Known(Struct, frozen=True):
    spec: PrometheusSpec
    credentials: Credentials
    read_at: datetime


class PrometheusReader:
    """Queries the Prometheus of each pipeline.

    Its Secrets, which cannot be watched, are read again after `secret_seconds`, and after a reading without metrics.
    """

    def __init__(self, get: GetObject, access: Access, secret_seconds: float, clock: Now = utc_now) -> None:
        self._get = get
        self._access = access
        self._age = timedelta(seconds=secret_seconds)
        self._clock = clock
        self._known: dict[str, _Known] = {}
        """By the pipeline's UID."""

    async def read(self, pipeline: ResolvedPipeline, owner: Owner, span: float) -> Reading:
        """Returns the counters of the last `span` seconds or more. Failures are part of the result and never raise."""
        spec, monitor = pipeline.spec.tuning.prometheus, pipeline.spec.monitoring.pod_monitor
        assert spec is not None
        interval = float(monitor.interval_seconds) if monitor else 0.0
        seconds = round(max(span, 3 * interval, prometheus.MIN_SPAN))
        found: tuple[Snapshot, ...] = ()
        reason = problem = ""
        try:
            credentials = await self._credentials(spec, owner)
            found = await prometheus.read(spec.url, owner, seconds, self._access, credentials, self._clock)
        except PrometheusError as error:
            reason, problem = "Error", f"{error.field}: {error}"
        if not problem and not any(each.stage == Stage.GATEWAY for each in found):
            reason = "Missing"
            problem = (
                f"Prometheus has no samples from the last {seconds} seconds for pods {owner.name}-gateway-… with "
                f"labels pod and namespace ({owner.namespace}): check that it scrapes them (spec.monitoring)"
            )
        if problem:
            self._known.pop(owner.uid, None)
        return Reading(source="prometheus", scrape_interval=interval, snapshots=found, reason=reason, problem=problem)

    async def _credentials(self, spec: PrometheusSpec, owner: Owner) -> Credentials:
        """Returns what the pipeline's Secrets contain. Raises PrometheusError."""
        now = self._clock()
        self._known = {uid: each for uid, each in self._known.items() if now - each.read_at < self._age}
        known = self._known.get(owner.uid)
        if known is None or known.spec != spec:
            known = _Known(spec, await read_credentials(spec, owner.namespace, self._get), now)
            self._known[owner.uid] = known
        return known.credentials
