"""The admin and settings ports of a stage: who may use which, and how metrics are exported."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from syrinx_stages.contract import metrics as m
from syrinx_stages.contract.settings import TalkerSettings
from syrinx_stages.contract.stages import Stage
from syrinx_stages.runtime.http.admin import create_admin
from syrinx_stages.runtime.http.settings_api import create_settings_api
from syrinx_stages.runtime.settings import LiveSettings
from syrinx_stages.runtime.telemetry.exposition import Exposition
from syrinx_stages.runtime.telemetry.metrics import Metrics, series_labels

TOKEN = "a-token-of-the-operator"
HEADERS = {"X-Syrinx-Token": TOKEN}
PLAIN = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = 30.0


class FakeStage:
    """The part of a stage that its ports use."""

    def __init__(self, reason: str | None = None) -> None:
        self.live = LiveSettings(TalkerSettings(), 1, 32)
        self._reason = reason

    def ready(self) -> str | None:
        return self._reason

    def warnings(self) -> tuple[str, ...]:
        return ("Redis evicts",)

    def settings_changed(self) -> None:
        pass


def client_of(app: ASGIApp, **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://stage", **options)


def admin(stage: FakeStage) -> ASGIApp:
    return create_admin(stage.ready, Exposition(Metrics(CollectorRegistry())))


@pytest.mark.parametrize("token", [None, "", TOKEN[:-1], f"{TOKEN}x", TOKEN.upper(), "ÿ".encode()])
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "POST"])
async def test_settings_can_neither_be_read_nor_changed_without_the_token(method, token):
    stage = FakeStage()
    headers = {"Authorization": f"Bearer {TOKEN}"} if token is None else {"X-Syrinx-Token": token}
    async with client_of(create_settings_api(Stage.TALKER, stage, TOKEN)) as http:
        answer = await http.request(method, "/settings/talker", headers=headers, content=b'{"settings": {}}')
    assert answer.status_code == 401
    assert TOKEN not in answer.text and stage.live.generation == 1


async def test_the_holder_of_the_token_reads_and_changes_settings():
    stage = FakeStage()
    app = create_settings_api(Stage.TALKER, stage, TOKEN)
    async with client_of(app, headers=HEADERS) as http:
        changed = await http.put("/settings/talker", json={"settings": {"max_num_seqs": 3}})
        assert changed.status_code == 200 and stage.live.current.max_num_seqs == 3
        assert (await http.get("/settings/talker")).json() == changed.json()
        assert changed.json()["warnings"] == ["Redis evicts"]
        for method in ("GET", "PUT"):
            other = await http.request(method, "/settings/gateway", json={"settings": {}})
            assert other.status_code == 404, "a stage of another process"
            assert "it serves /settings/talker" in other.json()["error"]["message"]


async def test_the_admin_port_has_no_settings_and_changes_nothing():
    async with client_of(admin(FakeStage()), headers=HEADERS) as http:
        for path in ("/settings", "/settings/talker"):
            for method in ("GET", "PUT"):
                assert (await http.request(method, path)).status_code == 404
        for path in ("/healthz", "/readyz", "/metrics"):
            for method in ("PUT", "POST", "DELETE"):
                assert (await http.request(method, path)).status_code == 405


@pytest.mark.parametrize(("reason", "status"), [(None, 200), ("warming up", 503)])
async def test_a_process_is_ready_when_its_stage_is(reason, status):
    async with client_of(admin(FakeStage(reason))) as http:
        answer = await http.get("/readyz")
    assert (answer.status_code, answer.text) == (status, f"{reason or 'ready'}\n")


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("*/*", PLAIN),
        ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", PLAIN),
        ("application/openmetrics-text;version=1.0.0,text/plain;q=0.3", "application/openmetrics-text; version=1.0.0"),
        ("application/openmetrics-text;version=one", PLAIN),
    ],
)
async def test_metrics_have_the_format_that_the_scraper_accepts(accept, content_type):
    metrics = Metrics(CollectorRegistry())
    metrics[m.REDIS_ERRORS].labels("talker").inc(3)
    async with client_of(create_admin(FakeStage().ready, Exposition(metrics))) as http:
        answer = await http.get("/metrics", headers={"Accept": accept})
    assert answer.headers["Content-Type"].startswith(content_type)
    assert 'syrinx_redis_errors_total{stage="talker"} 3.0' in answer.text
    assert answer.text.endswith("# EOF\n") == content_type.startswith("application/openmetrics-text")


@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text"])
async def test_every_series_names_its_pipeline(accept):
    """With only the scrape annotations of the pods, dashboards and alerts could not tell pipelines apart otherwise."""
    metrics = Metrics(CollectorRegistry())
    metrics[m.LIVE_STREAMS].set(1)
    metrics[m.TTFA].labels("CustomVoice").observe(0.05, {"trace_id": "abc"})
    async with client_of(create_admin(FakeStage().ready, Exposition(metrics, series_labels("demo")))) as http:
        text = (await http.get("/metrics", headers={"Accept": accept})).text
    samples = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert 'syrinx_live_streams{pipeline="demo"} 1.0' in samples
    assert len(samples) > 10 and all('pipeline="demo"' in line for line in samples)
    assert ('trace_id="abc"' in text) == (accept == "application/openmetrics-text")


async def test_a_scrape_does_not_delay_the_event_loop():
    """The exposition waits until the event loop has run, which it never would if the loop itself encoded."""
    ran = threading.Event()

    class Slow(Exposition):
        def encode(self, accept: str) -> tuple[bytes, str]:
            assert ran.wait(SECONDS)
            return super().encode(accept)

    metrics = Metrics(CollectorRegistry())
    metrics[m.LIVE_STREAMS].set(1)
    async with client_of(create_admin(FakeStage().ready, Slow(metrics))) as http:
        scrape = asyncio.create_task(http.get("/metrics"))
        assert (await http.get("/healthz")).status_code == 200
        ran.set()
        assert "syrinx_live_streams 1.0" in (await scrape).text


async def test_series_may_be_added_during_a_scrape():
    metrics = Metrics(CollectorRegistry())
    async with client_of(create_admin(FakeStage().ready, Exposition(metrics))) as http:
        for number in range(50):
            scrape = asyncio.create_task(http.get("/metrics"))
            for each in range(20):
                metrics[m.TTFA].labels(f"task-{number}-{each}").observe(0.05)
                await asyncio.sleep(0)
            assert (await scrape).status_code == 200
        text = (await http.get("/metrics")).text
    assert text.count("syrinx_ttfa_seconds_count{") == 50 * 20
