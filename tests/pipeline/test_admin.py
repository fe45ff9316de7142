"""Settings of a real talker or codec for a limited time, and what its metrics show of them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx
import numpy as np
import pytest

from support.stages import Pipeline, pipeline, receive, request, submit, synthesize
from support.waiting import DEADLINE, until
from support.writing import Owner, codes_entry
from syrinx_stages.connector.base import StreamEntry
from syrinx_stages.contract.keys import END_SEQUENCE, Position, StreamKind
from syrinx_stages.contract.messages import Codes, End, EndReason
from syrinx_stages.contract.settings import TOKEN_HEADER
from syrinx_stages.runtime.server import HttpServer
from syrinx_stages.runtime.settings_api import create_settings_api
from syrinx_stages.runtime.worker import Worker

pytestmark = pytest.mark.virtual

FINISHED = "syrinx_requests_finished_total"


TOKEN = "a-token-of-the-operator"


class Admin:
    """A replica's admin and settings ports."""

    def __init__(self, worker: Worker, http: httpx.AsyncClient) -> None:
        self._worker, self._http = worker, http
        self.path = f"/settings/{worker.stage}"

    async def put(self, settings: dict[str, object], **fields: object) -> dict[str, object]:
        answer = await self._http.put(self.path, json={"settings": settings, **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def get(self) -> dict[str, object]:
        return (await self._http.get(self.path)).json()

    def metric(self, name: str, **labels: str) -> float | None:
        """Returns a metric's value without a request that could update it."""
        return self._worker.metrics.registry.get_sample_value(name, labels)


@contextlib.asynccontextmanager
async def admin_of(worker: Worker) -> AsyncIterator[Admin]:
    app = create_settings_api({worker.stage: worker}, TOKEN)
    transport, headers = httpx.ASGITransport(app), {TOKEN_HEADER: TOKEN}
    async with httpx.AsyncClient(transport=transport, base_url="http://stage", headers=headers) as http:
        yield Admin(worker, http)


@contextlib.asynccontextmanager
async def alone(stage: str, **settings: object) -> AsyncIterator[tuple[Pipeline, Admin]]:
    """Starts one replica without other stages, and its ports."""
    stages = Pipeline()
    try:
        worker = await (stages.talker(**settings) if stage == "talker" else stages.codec(**settings))
        async with admin_of(worker) as admin:
            yield stages, admin
    finally:
        await stages.close()


# Settings for a limited time -------------------------------------------------------------------------------------


async def test_expiry_of_temporary_settings_wakes_the_stage() -> None:
    """The codec sleeps, because four frames are less than a chunk of 64, until the expiry wakes it."""
    async with alone("codec", chunk_ramp=(2, 2)) as (stages, admin):
        await admin.put({"chunk_ramp": [64]}, seconds=0.5)
        connector = stages.connector()
        await submit(connector, request("a"))
        frames = codes_entry(np.zeros((4, 16), "<i2").tobytes(), talker="talker-0")
        assert await Owner(connector).append([StreamEntry("a", StreamKind.CODES, Position(4), frames)]) == [None]
        received = await receive(connector, "a", until_frames=2)
        assert "seconds" not in await admin.get()
    assert received.chunks == [2]


# Metrics ---------------------------------------------------------------------------------------------------------


async def test_metrics_show_the_ramp_and_capture_pairs_in_force() -> None:
    async with alone("codec", chunk_ramp=(1, 2, 4), capture_pairs=((1, 2), (2, 2))) as (_, admin):

        def shown() -> tuple[list[float | None], float | None]:
            return [admin.metric("syrinx_chunk_ramp_frames", position=str(at)) for at in range(4)], admin.metric(
                "syrinx_codec_captured_shapes"
            )

        assert shown() == ([1, 2, 4, None], 2)
        await admin.put({"chunk_ramp": [8], "capture_pairs": []}, seconds=0.2)
        assert shown() == ([8, None, None, None], 0)
        await until(lambda: shown() == ([1, 2, 4, None], 2), "the base is in force again")


async def test_call_seconds_are_labeled_with_shape_and_result() -> None:
    async with pipeline() as stages, admin_of(stages.workers[1]) as admin:
        await admin.put({"chunk_ramp": [4], "capture_pairs": [[1, 4]]})
        await synthesize(stages.connector(), request("a"))
        shape = {"rows": "1", "frames": "4", "result": "hit"}
        assert admin.metric("syrinx_codec_calls_total", **shape) >= 1
        hit = admin.metric("syrinx_codec_call_seconds_total", **shape)
        families = list(stages.workers[1].metrics.registry.collect())
        of_steps, of_calls = (
            sum(sample.value for family in families for sample in family.samples if sample.name == name)
            for name in ("syrinx_step_seconds_sum", "syrinx_codec_call_seconds_total")
        )
        assert 0 < hit <= of_calls
        assert np.isclose(of_calls, of_steps)


async def test_engine_time_is_counted_as_prefills_and_steps() -> None:
    async with pipeline() as stages, admin_of(stages.workers[0]) as admin:
        await synthesize(stages.connector(), request("a"))
        assert admin.metric("syrinx_prepare_seconds_count", task_type="CustomVoice") == 1
        assert admin.metric("syrinx_prefill_seconds_count", stage="talker") == 1
        assert admin.metric("syrinx_prefill_seconds_sum", stage="talker") > 0
        assert admin.metric("syrinx_step_seconds_sum", stage="talker", rows="1") > 0


async def counted(admin: Admin, stage: str, reason: str) -> None:
    await until(lambda: admin.metric(FINISHED, stage=stage, reason=reason) == 1, f"{reason} was counted")


@pytest.mark.parametrize("stage", ["talker", "codec"])
async def test_a_replica_counts_its_failed_requests(monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("out of memory")

    async with pipeline() as stages:
        worker = next(worker for worker in stages.workers if worker.stage == stage)
        monkeypatch.setattr(worker.engine, "launch", failing)
        async with admin_of(worker) as admin:
            assert admin.metric(FINISHED, stage=stage, reason="error") == 0, "the counter exists"
            assert (await synthesize(stages.connector(), request("a"))).end.reason is EndReason.ERROR
            await counted(admin, stage, "error")


@pytest.mark.parametrize(
    ("at", "entry"),
    [
        (Position(0, END_SEQUENCE), End(EndReason.ERROR, "the talker failed to process this request")),
        (Position(1), Codes(b"\1\0")),
    ],
    ids=["an error", "undecodable codes"],
)
async def test_a_codec_does_not_count_failures_of_a_talker(at: Position, entry: End | Codes) -> None:
    async with alone("codec") as (stages, admin):
        connector = stages.connector()
        await submit(connector, request("a"))
        await Owner(connector).append([StreamEntry("a", StreamKind.CODES, at, entry)])
        assert (await receive(connector, "a")).end.reason is EndReason.ERROR
        await counted(admin, "codec", "upstream")
        assert admin.metric(FINISHED, stage="codec", reason="error") == 0


async def test_a_talker_does_not_count_invalid_requests_as_errors() -> None:
    async with alone("talker") as (stages, admin):
        await submit(stages.connector(), request("nobody", voice="nobody"))
        await counted(admin, "talker", "invalid")
        assert admin.metric(FINISHED, stage="talker", reason="error") == 0


async def test_a_settings_update_that_does_not_arrive_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("syrinx_stages.runtime.settings_api.BODY_SECONDS", 0.1)

    async with alone("talker") as (stages, _):
        server = HttpServer(create_settings_api({"talker": stages.workers[0]}, TOKEN), "127.0.0.1", 0)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(server.url).port)
            writer.write(f"PUT /settings/talker HTTP/1.1\r\nHost: x\r\n{TOKEN_HEADER}: {TOKEN}\r\n".encode())
            writer.write(b"Content-Length: 9\r\n\r\n{")
            status = await asyncio.wait_for(reader.readline(), DEADLINE)
            assert status.startswith(b"HTTP/1.1 408")
            writer.close()
        finally:
            await server.close()
