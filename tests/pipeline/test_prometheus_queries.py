"""Everything that is asked of a Prometheus is answered by one that scrapes a pipeline that speaks, and its operator."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import time
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest
import pytest_asyncio

from support.prometheus import find_prometheus, scraping
from support.queries import DASHBOARDS, asked_by_dashboards, groups, parts, rules, substituted, variables
from support.tuning import update_telemetry
from syrinx_operator.cluster import prometheus
from syrinx_operator.cluster.state import Owner
from syrinx_operator.cluster.telemetry import HealthServer, Telemetry
from syrinx_operator.cluster.workqueue import Outcome
from syrinx_operator.local.pipeline import LocalPipeline
from syrinx_operator.resource import knobs as tuner
from syrinx_operator.resource.spec import TTSPipeline
from syrinx_operator.tuner.snapshot import WANTED_METRICS
from syrinx_stages.contract import metrics

PROGRAM = find_prometheus()
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(PROGRAM is None, reason="no prometheus on this machine; `make test` fetches one"),
]

SECONDS = 60.0
"""How long anything may take on a busy machine."""
NAMESPACE = "speech"
"""Of the pipeline and of the operator: that which the chart is rendered for."""
OWNER = Owner("demo", NAMESPACE, "u-1", generation=1)
PODS = {"gateway": "demo-gateway-5f7c9-aaaaa", "talker": "demo-talker-0", "codec": "demo-codec-0"}
"""The stages' only pods, with names as on Kubernetes."""
RESOURCE = {
    "apiVersion": "syrinx.dev/v1alpha1",
    "kind": "TTSPipeline",
    "metadata": {"name": OWNER.name},
    # Of the ramp's chunks the first is such a shape, the next fits one, and the last fits none.
    "spec": {"codec": {"chunkRamp": [2, 4, 12], "capturePairs": [{"rows": 1, "frames": 2}, {"rows": 4, "frames": 8}]}},
}
GRAFANA = {"__rate_interval": "15s", "__range": "1m"}
CHOICES = {
    "all": {**GRAFANA, "namespace": ".*", "pipeline": ".*", "objective": "0.5"},
    "one": {**GRAFANA, "namespace": NAMESPACE, "pipeline": OWNER.name, "objective": "10.0"},
}
"""What the dashboards' variables are set to."""
EMPTY = {
    "SyrinxOperatorDown": "there is an operator",
    "SyrinxRequestErrors": "no request ended in an error, so there is no series of them",
    "tuner: annotation Taken back": "what was decided was a promotion",
    "tuner: annotation No verdict": "what was decided was a promotion",
    "tuner: Capture time: A": "on a CPU nothing is captured",
    "tuner: Memory of captured shapes: A": "on a CPU nothing is captured",
}
"""The questions to which no answer is the right one here, with the reason."""


class Operator:
    """The operator's own metrics, served by its own server, as after some looks at the pipeline."""

    def __init__(self) -> None:
        self.telemetry = Telemetry()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.work()

    def server(self) -> HealthServer:
        return HealthServer(
            self.port, self.telemetry, healthy=lambda: None, ready=lambda: None, before_scrape=self.work
        )

    def work(self) -> None:
        """Two looks, one of them in vain, and the end of a trial."""
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


class Asked:
    """A Prometheus that scrapes both, while somebody listens to the pipeline."""

    def __init__(self, url: str, client: httpx.AsyncClient) -> None:
        self.url = url
        self._client = client

    async def get(self, path: str, **parameters: str) -> Any:
        answer = (await self._client.get(f"/api/v1/{path}", params=parameters)).json()
        assert answer["status"] == "success", f"{parameters}: {answer['error']}"
        return answer["data"]

    async def values(self, query: str) -> list[float]:
        """The values that a query has now. Fails if Prometheus does not take it."""
        found = (await self.get("query", query=query))["result"]
        return [float(value) for one in found for _, value in one.get("values") or [one["value"]]]

    async def labels(self, query: str) -> list[dict[str, str]]:
        """The labels of a query's series."""
        return [one["metric"] for one in (await self.get("query", query=query))["result"]]

    async def unanswered(self, queries: Mapping[str, str]) -> dict[str, str]:
        """Those of the queries that have no finite value, or an infinite one.

        NaN is the right answer for a series that did not move lately, as steps of a number of rows that was rare.
        """
        answers = await asyncio.gather(*(self.values(query) for query in queries.values()))
        return {
            name: f"{query} = {values}"
            for (name, query), values in zip(queries.items(), answers, strict=True)
            if not any(map(math.isfinite, values)) or any(map(math.isinf, values))
        }

    async def all_but_the_empty_are_answered(self, queries: Mapping[str, str]) -> None:
        """Until exactly those queries have no answer that are known to have none."""
        deadline = time.monotonic() + SECONDS
        expected = EMPTY.keys() & queries.keys()
        while (left := await self.unanswered(queries)).keys() != expected:
            if time.monotonic() > deadline:
                without = "\n".join(f"{name}: {query}" for name, query in left.items() if name not in expected)
                raise AssertionError(f"no answer to\n{without}\nunexpected answers to {expected - left.keys()}")
            await asyncio.sleep(0.5)
        for name in expected:
            assert await self.values(queries[name]) == [], f"{name}: an answer that is no number"


async def listen(url: str) -> None:
    """One listener after the other."""
    body = {"input": "The farmer found two heavy bags.", "voice": "us", "response_format": "pcm", "stream": True}
    async with httpx.AsyncClient(base_url=url, timeout=SECONDS) as client:
        while True:
            (await client.post("/v1/audio/speech", json=body)).raise_for_status()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def asked() -> AsyncIterator[Asked]:
    assert PROGRAM
    operator = Operator()
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(operator.server())
        local = await stack.enter_async_context(LocalPipeline(msgspec.convert(RESOURCE, TTSPipeline), port=0))
        targets = {
            urlsplit(child.admin_url).netloc: {"namespace": NAMESPACE, "pipeline": OWNER.name, "pod": PODS[child.stage]}
            for child in local.processes
        }
        targets[f"127.0.0.1:{operator.port}"] = {"namespace": NAMESPACE, "pod": "syrinx-operator-0"}
        url = await stack.enter_async_context(scraping(PROGRAM, targets, {"groups": groups()}))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=SECONDS, trust_env=False))
        listeners = [asyncio.create_task(listen(local.gateway_url)) for _ in range(2)]
        try:
            yield Asked(url, client)
            assert not [task for task in listeners if task.done()], "a listener was turned away"
        finally:
            for task in listeners:
                task.cancel()
            await asyncio.gather(*listeners, return_exceptions=True)


@pytest.mark.parametrize("choice", CHOICES)
async def test_every_dashboard_is_filled(asked: Asked, choice: str) -> None:
    await asked.all_but_the_empty_are_answered(dict(asked_by_dashboards(**CHOICES[choice])))


@pytest.mark.parametrize("name", DASHBOARDS)
async def test_every_variable_of_a_dashboard_has_its_choices(asked: Asked, name: str) -> None:
    choices = {
        variable: await asked.get(f"label/{label}/values", **{"match[]": substituted(series, **CHOICES["all"])})
        for variable, series, label, _ in variables(DASHBOARDS[name])
    }
    expected = {"namespace": [NAMESPACE], "pipeline": [OWNER.name]}
    for variable, values in choices.items():
        assert values == expected[variable] if variable in expected else "0.5" in values, variable


async def test_every_alert_has_numbers_to_go_by(asked: Asked) -> None:
    """Whatever is compared in an alert has a value also when all is well: else it could never fire."""
    asks = {}
    for name, rule in rules().items():
        operands = parts(rule["expr"])
        asks |= {name if len(operands) == 1 else f"{name}: {n}": part for n, part in enumerate(operands)}
    await asked.all_but_the_empty_are_answered(asks)


async def test_prometheus_evaluates_every_rule(asked: Asked) -> None:
    async def evaluated() -> dict[str, str]:
        data = await asked.get("rules")
        return {rule["name"]: rule["health"] for group in data["groups"] for rule in group["rules"]}

    async with asyncio.timeout(SECONDS):
        while "unknown" in (found := await evaluated()).values():
            await asyncio.sleep(0.2)
    assert found == dict.fromkeys(rules(), "ok")


@pytest.mark.parametrize(
    "apart", [(), ("codec",), ("talker", "codec")], ids=lambda stages: " and ".join(stages) or "none"
)
async def test_the_tuners_own_questions_are_answered(asked: Asked, apart: tuple[str, ...]) -> None:
    """With the stages' replicas told apart or not: every counter that is wanted of a stage is there."""
    question = prometheus.counters_query(OWNER, 10, frozenset(map(tuner.Stage, apart)))
    await asked.all_but_the_empty_are_answered({"clock": prometheus.clock_query(), "counters": question})
    got: dict[str, set[str]] = {}
    for labels in await asked.labels(question):
        got.setdefault(labels["pod"], set()).add(labels["__name__"])
    captures = {metrics.CAPTURE_SECONDS.name, metrics.CAPTURE_BYTES.name}
    wanted = {PODS[stage]: set(names) - captures for stage, names in WANTED_METRICS.items()}
    assert {pod: names & wanted[pod] for pod, names in got.items()} == wanted


async def test_the_tuner_reads_every_replica(asked: Asked) -> None:
    found = await prometheus.read(
        asked.url, OWNER, 30, frozenset(tuner.Stage), prometheus.DEFAULT_ACCESS, lambda: datetime.now(UTC)
    )
    assert {snapshot.stage: snapshot.replica for snapshot in found} == PODS


async def test_a_question_that_is_none_would_be_noticed(asked: Asked) -> None:
    with pytest.raises(AssertionError, match="parse error"):
        await asked.values("sum by (")
    assert await asked.unanswered({"none": "syrinx_nothing", "zero": "0 / 0 * max(syrinx_info)"})


async def test_what_may_have_no_answer_is_still_asked() -> None:
    assert EMPTY.keys() <= {name for name, _ in asked_by_dashboards(**CHOICES["all"])} | rules().keys()
