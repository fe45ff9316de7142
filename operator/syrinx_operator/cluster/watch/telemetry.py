"""The operator's own metrics, and the HTTP server for metrics and probes."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Self

from aiohttp import web
from msgspec import Struct
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from syrinx_operator.cluster.objects.clock import Now, utc_now
from syrinx_operator.cluster.objects.tuner_telemetry import PIPELINE, TunerTelemetry

log = logging.getLogger(__name__)


class Health(Struct, frozen=True):
    """The answer of a probe."""

    ok: bool
    text: str


Probe = Callable[[], Health]


class ConditionTelemetry(Collector):
    """Exports the conditions of the pipelines in `update`, until `forget`: one series for each."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._conditions: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
        registry.register(self)

    def update(self, namespace: str, name: str, conditions: Iterable[Mapping[str, Any]]) -> None:
        """Stores the conditions of a pipeline's status."""
        found = [(each["type"], each["status"], each["reason"]) for each in conditions]
        self._conditions[namespace, name] = found

    def forget(self, namespace: str, name: str) -> None:
        """Removes the series of a pipeline."""
        self._conditions.pop((namespace, name), None)

    def collect(self) -> Iterator[Metric]:
        """Returns the current values."""
        labels = (*PIPELINE, "condition", "status", "reason")
        text = "1 for the current status and reason of each condition of a pipeline."
        family = GaugeMetricFamily("syrinx_operator_pipeline_condition", text, labels=labels)
        for pipeline, conditions in self._conditions.items():
            for condition in conditions:
                family.add_metric((*pipeline, *condition), 1.0)
        yield family


class Telemetry:
    """All `syrinx_operator_*` and `syrinx_tuning_*` metrics, in their own registry."""

    def __init__(self, now: Now = utc_now) -> None:
        self.registry = CollectorRegistry()
        self.tuning = TunerTelemetry(self.registry, now)
        self.conditions = ConditionTelemetry(self.registry)
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        self.reconciles = counter(
            "syrinx_operator_reconciles", "Reconciles of pipelines, by outcome.", labelnames=["outcome"]
        )
        self.reconcile_seconds = Histogram(
            "syrinx_operator_reconcile_seconds",
            "Duration of a reconcile in seconds.",
            buckets=(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
            registry=self.registry,
        )
        self.api_requests = counter(
            "syrinx_operator_api_requests",
            "Requests to the Kubernetes API server, by verb and HTTP status code (0: no response).",
            labelnames=["verb", "code"],
        )
        self.object_writes = counter(
            "syrinx_operator_object_writes",
            "Writes of Kubernetes objects, by kind and result (applied, unchanged, deleted, rejected).",
            labelnames=["kind", "result"],
        )
        self.settings_pushes = counter(
            "syrinx_operator_settings_pushes",
            "Live settings sent to stage replicas, by result (confirmed, override: a trial's, failed).",
            labelnames=["result"],
        )
        self.pipelines = gauge(
            "syrinx_operator_pipelines",
            "Number of pipelines, by status condition and its value.",
            labelnames=["condition", "status"],
        )
        self.watch_up = gauge(
            "syrinx_operator_watch_up",
            "Whether the objects of a kind in a namespace (empty: in all) are watched.",
            labelnames=["pipeline_namespace", "kind"],
        )
        self.oldest_reconcile_age = gauge(
            "syrinx_operator_oldest_reconcile_age_seconds",
            "Seconds since the last reconcile of the pipeline that has waited longest; 0 without pipelines.",
        )


class HealthServer:
    """Serves /metrics, /healthz and /readyz on all addresses. Use as `async with`."""

    def __init__(self, port: int, *, health: Probe, readiness: Probe, metrics: Callable[[], bytes]) -> None:
        """`metrics` returns all metrics in the text format of Prometheus."""

        async def scrape(request: web.Request) -> web.Response:
            return web.Response(body=metrics(), headers={"Content-Type": CONTENT_TYPE_LATEST})

        self._port = port
        app = web.Application()
        app.router.add_get("/metrics", scrape)
        app.router.add_get("/healthz", _handler(health))
        app.router.add_get("/readyz", _handler(readiness))
        self._runner = web.AppRunner(app, access_log=None)

    @property
    def port(self) -> int:
        """The port that it listens on: that of IPv4, if any, where 0 was asked for and each address has its own."""
        port: int = min(self._runner.addresses, key=lambda address: ":" in address[0])[1]
        return port

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        # Without a host it listens on all IPv4 and IPv6 addresses.
        await web.TCPSite(self._runner, None, self._port).start()
        log.info("Serving /metrics, /healthz and /readyz on port %d", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()


def _handler(probe: Probe) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        health = probe()
        return web.Response(text=f"{health.text}\n", status=200 if health.ok else 503)

    return handle
