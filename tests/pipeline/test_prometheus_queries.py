"""Every query of dashboards, alerts and tuner has data in a Prometheus that scrapes a pipeline and its operator."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import time
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest
import pytest_asyncio
from prometheus_client import generate_latest

from support.api_keys import Keys
from support.cluster_plan import EMPTY as OBSERVED
from support.cluster_plan import pipeline
from support.local_pipeline import local_pipeline
from support.prometheus import find_prometheus, scraping
from support.queries import DASHBOARDS, dashboard_queries, groups, parts, rules, substituted, variables
from support.tuning import update_telemetry
from syrinx_operator.cluster.objects.state import Owner
from syrinx_operator.cluster.plan.autoscaling import STREAMS_METRIC, WAIT_METRIC, autoscalers
from syrinx_operator.cluster.report.progress import STALLED
from syrinx_operator.cluster.watch import prometheus
from syrinx_operator.cluster.watch.prometheus_access import DEFAULT_ACCESS, Credentials
from syrinx_operator.cluster.watch.telemetry import HealthServer, Telemetry
from syrinx_operator.cluster.watch.workqueue import Outcome
from syrinx_operator.observed.snapshot import WANTED_METRICS
from syrinx_operator.resource.resolve import resolve
from syrinx_operator.resource.spec import TTSPipeline
from syrinx_stages.contract import metrics

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECONDS = 60.0
"""Timeout, for a busy machine."""
NAMESPACE = "speech"
"""Namespace of the pipeline and the operator, for which the chart is rendered."""
OWNER = Owner("demo", NAMESPACE, "u-1", generation=1)
PODS = {"gateway": "demo-gateway-5f7c9-x2k9p", "talker": "demo-talker-0", "codec": "demo-codec-0"}
"""The stages' only pods, with names as on Kubernetes."""
RESOURCE = {
    "apiVersion": "syrinx.dev/v1beta1",
    "kind": "TTSPipeline",
    "metadata": {"name": OWNER.name},
    # The first chunk of the ramp is a captured shape, the second is padded to one, and the last fits none.
    "spec": {"codec": {"chunkRamp": [2, 4, 12], "capturePairs": [{"rows": 1, "frames": 2}, {"rows": 4, "frames": 8}]}},
}
GRAFANA = {"__rate_interval": "15s", "__range": "1m"}
CHOICES = {
    "all": {**GRAFANA, "namespace": ".*", "pipeline": ".*", "objective": "0.5"},
    "one": {**GRAFANA, "namespace": NAMESPACE, "pipeline": OWNER.name, "objective": "10.0"},
}
"""Values of the dashboards' variables."""
EMPTY = {
    "SyrinxOperatorDown": "there is an operator",
    "tuner: annotation Rolled back": "the only decision was a promotion",
    "tuner: annotation No verdict": "the only decision was a promotion",
    "tuner: Capture time: A": "on a CPU nothing is captured",
    "tuner: Memory of captured shapes: A": "on a CPU nothing is captured",
}
"""Queries that correctly have no data here, with the reason."""

WRONG = [
    *({"type": kind, "status": "False", "reason": "X"} for kind in ("Ready", "ConnectorReady", "MetricsAvailable")),
    {"type": "Degraded", "status": "True", "reason": "X"},
    {"type": "Progressing", "status": "False", "reason": STALLED},
]
"""Conditions of a pipeline with which every alert fires."""


class Operator:
    """The operator's metrics, served by its server, as after some reconciles."""

    def __init__(self) -> None:
        self.telemetry = Telemetry()
        self.work()

    def server(self) -> HealthServer:
        return HealthServer(0, health=lambda: None, readiness=lambda: None, metrics=self.metrics)

    def metrics(self) -> bytes:
        self.work()
        return generate_latest(self.telemetry.registry)

    def work(self) -> None:
        """Counts two reconciles, one of which failed, and the end of a trial."""
        update_telemetry(self.telemetry.tuning, (NAMESPACE, OWNER.name), "Promoted")
        telemetry = self.telemetry
        for outcome in (Outcome.SUCCEEDED, Outcome.FAILED):
            telemetry.reconciles.labels(outcome).inc()
        telemetry.reconcile_seconds.observe(0.02)
        telemetry.api_requests.labels("GET", "200").inc()
        telemetry.object_writes.labels("Deployment", "applied").inc()
        telemetry.settings_pushes.labels("confirmed").inc()
        telemetry.oldest_reconcile_age.set(0.5)
        for condition in ("Ready", "Degraded", "MetricsAvailable"):
            for status in ("True", "False"):
                telemetry.pipelines.labels(condition, status).set(1)
        telemetry.conditions.update(NAMESPACE, OWNER.name, WRONG)
        telemetry.watch_up.labels(NAMESPACE, "Pod").set(1)


class ScrapingPrometheus:
    """A Prometheus that scrapes the pipeline under load, and the operator."""

    def __init__(self, url: str, client: httpx.AsyncClient) -> None:
        self.url = url
        self._client = client

    async def get(self, path: str, **parameters: str) -> Any:
        answer = (await self._client.get(f"/api/v1/{path}", params=parameters)).json()
        assert answer["status"] == "success", f"{parameters}: {answer['error']}"
        return answer["data"]

    async def values(self, query: str) -> list[float]:
        """Returns a query's current values. Raises AssertionError if Prometheus rejects it."""
        found = (await self.get("query", query=query))["result"]
        return [float(value) for one in found for _, value in one.get("values") or [one["value"]]]

    async def labels(self, query: str) -> list[dict[str, str]]:
        """Returns the labels of a query's series."""
        return [one["metric"] for one in (await self.get("query", query=query))["result"]]

    async def without_data(self, queries: Mapping[str, str]) -> dict[str, str]:
        """Returns the queries that have no finite value, or an infinite one.

        NaN is correct for a series that did not change recently, such as steps with a rare number of rows.
        """
        answers = await asyncio.gather(*(self.values(query) for query in queries.values()))
        return {
            name: f"{query} = {values}"
            for (name, query), values in zip(queries.items(), answers, strict=True)
            if not any(map(math.isfinite, values)) or any(map(math.isinf, values))
        }

    async def wait_for_data(self, queries: Mapping[str, str]) -> None:
        """Waits until exactly the queries in `EMPTY` have no data."""
        deadline = time.monotonic() + SECONDS
        expected = EMPTY.keys() & queries.keys()
        while (left := await self.without_data(queries)).keys() != expected:
            if time.monotonic() > deadline:
                without = "\n".join(f"{name}: {query}" for name, query in left.items() if name not in expected)
                raise AssertionError(f"no data for\n{without}\nunexpected data for {expected - left.keys()}")
            await asyncio.sleep(0.5)
        for name in expected:
            assert await self.values(queries[name]) == [], f"{name}: a value that is not a number"


async def exceed(url: str, headers: Mapping[str, str]) -> None:
    """Sends requests above the limit of an API key."""
    async with httpx.AsyncClient(base_url=url, timeout=SECONDS, headers=headers) as client:
        while True:
            await client.post("/v1/audio/speech", json={"input": ""})
            await asyncio.sleep(0.5)


async def receive(url: str, headers: Mapping[str, str]) -> None:
    """Sends one request after the other."""
    body = {"input": "The farmer found two heavy bags.", "voice": "us", "response_format": "pcm", "stream": True}
    async with httpx.AsyncClient(base_url=url, timeout=SECONDS, headers=headers) as client:
        while True:
            (await client.post("/v1/audio/speech", json=body)).raise_for_status()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def prom(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ScrapingPrometheus]:
    operator = Operator()
    keys = Keys(tmp_path_factory.mktemp("keys"), listener={}, limited={"requests_per_second": 0.01})
    resource = {**RESOURCE, "spec": {**RESOURCE["spec"], "gateway": {"apiKeys": {"file": str(keys.file)}}}}
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(operator.server())
        local = await stack.enter_async_context(local_pipeline(msgspec.convert(resource, TTSPipeline)))
        targets = {
            urlsplit(member.admin_url).netloc: {
                "namespace": NAMESPACE,
                "pipeline": OWNER.name,
                "pod": PODS[member.stage],
            }
            for member in local.processes
        }
        targets[f"127.0.0.1:{server.port}"] = {"namespace": NAMESPACE, "pod": "syrinx-operator-0"}
        url = await stack.enter_async_context(scraping(find_prometheus(), targets, {"groups": groups()}))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=SECONDS, trust_env=False))
        calls = [receive(local.gateway_url, keys.of("listener")) for _ in range(2)]
        calls.append(exceed(local.gateway_url, keys.of("limited")))
        listeners = [asyncio.create_task(call) for call in calls]
        try:
            yield ScrapingPrometheus(url, client)
            assert not [task for task in listeners if task.done()], "a request failed"
        finally:
            for task in listeners:
                task.cancel()
            await asyncio.gather(*listeners, return_exceptions=True)


@pytest.mark.parametrize("choice", CHOICES)
async def test_every_dashboard_query_has_data(prom: ScrapingPrometheus, choice: str) -> None:
    await prom.wait_for_data(dict(dashboard_queries(**CHOICES[choice])))


@pytest.mark.parametrize("name", DASHBOARDS)
async def test_every_dashboard_variable_has_values(prom: ScrapingPrometheus, name: str) -> None:
    choices = {
        variable: await prom.get(f"label/{label}/values", **{"match[]": substituted(series, **CHOICES["all"])})
        for variable, series, label, _ in variables(DASHBOARDS[name])
    }
    expected = {"namespace": [NAMESPACE], "pipeline": [OWNER.name]}
    for variable, values in choices.items():
        assert values == expected[variable] if variable in expected else "0.5" in values, variable


async def test_every_operand_of_an_alert_has_data(prom: ScrapingPrometheus) -> None:
    """The operands of a comparison have values also without a fault; otherwise the alert could never fire."""
    asks = {}
    for name, rule in rules().items():
        operands = parts(rule["expr"])
        asks |= {name if len(operands) == 1 else f"{name}: {n}": part for n, part in enumerate(operands)}
    await prom.wait_for_data(asks)


async def test_prometheus_evaluates_every_rule(prom: ScrapingPrometheus) -> None:
    async def evaluated() -> dict[str, str]:
        data = await prom.get("rules")
        return {rule["name"]: rule["health"] for group in data["groups"] for rule in group["rules"]}

    async with asyncio.timeout(SECONDS):
        while "unknown" in (found := await evaluated()).values():
            await asyncio.sleep(0.2)
    assert found == dict.fromkeys(rules(), "ok")


async def test_the_tuners_query_has_data(prom: ScrapingPrometheus) -> None:
    """Every required counter of a stage exists."""
    query = prometheus.counters_query(OWNER, 10)
    captures = {metrics.CAPTURE_SECONDS.name, metrics.CAPTURE_BYTES.name}
    wanted = {PODS[stage]: set(names) - captures for stage, names in WANTED_METRICS.items()}

    async def found() -> dict[str, set[str]]:
        names: dict[str, set[str]] = {pod: set() for pod in wanted}
        for labels in await prom.labels(query):
            names[labels["pod"]].add(labels["__name__"])
        return {pod: names[pod] & wanted[pod] for pod in wanted}

    deadline = time.monotonic() + SECONDS
    while (got := await found()) != wanted and time.monotonic() < deadline:
        await asyncio.sleep(0.5)
    assert got == wanted


async def test_the_tuner_reads_every_replica(prom: ScrapingPrometheus) -> None:
    found = await prometheus.read(prom.url, OWNER, 30, DEFAULT_ACCESS, Credentials(), lambda: datetime.now(UTC))
    assert {snapshot.stage: snapshot.replica for snapshot in found} == PODS


async def test_the_autoscalers_queries_have_data(prom: ScrapingPrometheus) -> None:
    """Those of KEDA, and those of prometheus-adapter with the documented rules."""
    by = {"gateway": {"by": "Keda", "maxReplicas": 2}, "talker": {"by": "Keda", "maxReplicas": 2}}
    spec = {stage: {"autoscaling": each} for stage, each in by.items()}
    spec["tuning"] = {"prometheus": {"url": prom.url}}
    scaled = autoscalers(OWNER, resolve(pipeline(spec)), OBSERVED)
    queries = {
        f"{each['metadata']['name']} {trigger['metadata']['threshold']}": trigger["metadata"]["query"]
        for each in scaled
        for trigger in each["spec"]["triggers"]
    }
    assert len(queries) == 3
    text = (Path(__file__).parents[2] / "docs" / "operating" / "pipelines.md").read_text()
    matchers = f'namespace="{NAMESPACE}",pipeline="{OWNER.name}"'
    for metric, query in re.findall(r"seriesQuery: '(\w+)\{.*\n.*\n\s+metricsQuery: '(.*)'", text):
        queries[metric] = query.replace("<<.Series>>", metric).replace("<<.LabelMatchers>>", matchers)
    assert {STREAMS_METRIC, WAIT_METRIC} <= queries.keys()
    await prom.wait_for_data(queries)
