"""Settings of a real talker or codec for a limited time, and what its metrics show of them."""

import asyncio

import httpx
import numpy as np
import pytest

from support.stages import pipeline, receive, request, submit, synthesize
from support.waiting import DEADLINE, until
from support.writing import Owner, codes_entry
from syrinx_stages.connector.base import StreamEntry
from syrinx_stages.contract.keys import END_SEQUENCE, Position, StreamKind
from syrinx_stages.contract.messages import Codes, End, EndReason
from syrinx_stages.contract.settings import TOKEN_HEADER
from syrinx_stages.contract.stages import Stage
from syrinx_stages.runtime.http.server import HttpServer
from syrinx_stages.runtime.http.settings_api import create_settings_api
from syrinx_stages.runtime.requests.worker import Worker

pytestmark = pytest.mark.virtual

TOKEN = "a-token-of-the-operator"


def metric(worker: Worker, name: str, **labels: str) -> float | None:
    return worker.metrics.registry.get_sample_value(name, labels)


async def settings_of(worker: Worker, method: str = "GET", **body: object) -> dict[str, object]:
    """Reads or changes settings through the settings port."""
    transport = httpx.ASGITransport(create_settings_api(worker.stage, worker, TOKEN))
    async with httpx.AsyncClient(transport=transport, base_url="http://stage", headers={TOKEN_HEADER: TOKEN}) as http:
        answer = await http.request(method, f"/settings/{worker.stage}", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()


# Settings for a limited time -------------------------------------------------------------------------------------


async def test_expiry_of_temporary_settings_wakes_the_stage() -> None:
    """The codec sleeps, because four frames are less than a chunk of 64, until the expiry wakes it."""
    async with pipeline(0, 0) as stages:
        codec = await stages.codec(chunk_ramp=(2, 2))
        await settings_of(codec, "PUT", settings={"chunk_ramp": [64]}, seconds=0.5)
        connector = stages.connector()
        await submit(connector, request("a"))
        frames = codes_entry(np.zeros((4, 16), "<i2").tobytes(), talker="talker-0")
        assert await Owner(connector).append([StreamEntry("a", StreamKind.CODES, Position(4), frames)]) == [None]
        received = await receive(connector, "a", until_frames=2)
        assert "seconds" not in await settings_of(codec)
    assert received.chunks == [2]


# Metrics ---------------------------------------------------------------------------------------------------------


async def test_metrics_show_the_ramp_and_capture_pairs_in_force() -> None:
    async with pipeline(0, 0) as stages:
        codec = await stages.codec(chunk_ramp=(1, 2, 4), capture_pairs=((1, 2), (2, 2)))

        def shown() -> tuple[list[float | None], float | None]:
            ramp = [metric(codec, "syrinx_chunk_ramp_frames", position=str(at)) for at in range(4)]
            return ramp, metric(codec, "syrinx_codec_captured_shapes")

        assert shown() == ([1, 2, 4, None], 2)
        await settings_of(codec, "PUT", settings={"chunk_ramp": [8], "capture_pairs": []}, seconds=0.2)
        assert shown() == ([8, None, None, None], 0)
        await until(lambda: shown() == ([1, 2, 4, None], 2), "the base is in force again")


async def test_call_seconds_are_labeled_with_shape_and_result() -> None:
    async with pipeline() as stages:
        codec = stages.worker("codec")
        await settings_of(codec, "PUT", settings={"chunk_ramp": [4], "capture_pairs": [[1, 4]]})
        await synthesize(stages.connector(), request("a"))
        shape = {"rows": "1", "frames": "4", "result": "hit"}
        assert metric(codec, "syrinx_codec_calls_total", **shape) >= 1
        hit = metric(codec, "syrinx_codec_call_seconds_total", **shape)
        families = list(codec.metrics.registry.collect())
        of_steps, of_calls = (
            sum(sample.value for family in families for sample in family.samples if sample.name == name)
            for name in ("syrinx_step_seconds_sum", "syrinx_codec_call_seconds_total")
        )
        assert 0 < hit <= of_calls
        assert np.isclose(of_calls, of_steps)


async def test_engine_time_is_counted_as_prefills_and_steps() -> None:
    async with pipeline() as stages:
        talker = stages.worker("talker")
        await synthesize(stages.connector(), request("a"))
        assert metric(talker, "syrinx_prepare_seconds_count", task_type="CustomVoice") == 1
        assert metric(talker, "syrinx_prefill_seconds_count", stage="talker") == 1
        assert metric(talker, "syrinx_prefill_seconds_sum", stage="talker") > 0
        assert metric(talker, "syrinx_step_seconds_sum", stage="talker", rows="1") > 0


def finished(worker: Worker, reason: str) -> float | None:
    return metric(worker, "syrinx_requests_finished_total", stage=worker.stage, reason=reason)


async def counted(worker: Worker, reason: str) -> None:
    await until(lambda: finished(worker, reason) == 1, f"{reason} was counted")


@pytest.mark.parametrize("stage", ["talker", "codec"])
async def test_a_replica_counts_its_failed_requests(monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("out of memory")

    async with pipeline() as stages:
        worker = stages.worker(stage)
        monkeypatch.setattr(worker.engine, "launch", failing)
        assert finished(worker, "error") == 0, "the counter exists"
        assert (await synthesize(stages.connector(), request("a"))).end.reason is EndReason.ERROR
        await counted(worker, "error")


@pytest.mark.parametrize(
    ("at", "entry"),
    [
        (Position(0, END_SEQUENCE), End(EndReason.ERROR, "the talker failed to process this request")),
        (Position(1), Codes(b"\1\0")),
    ],
    ids=["an error", "undecodable codes"],
)
async def test_a_codec_does_not_count_failures_of_a_talker(at: Position, entry: End | Codes) -> None:
    async with pipeline(0, 1) as stages:
        connector = stages.connector()
        await submit(connector, request("a"))
        await Owner(connector).append([StreamEntry("a", StreamKind.CODES, at, entry)])
        assert (await receive(connector, "a")).end.reason is EndReason.ERROR
        await counted(stages.worker("codec"), "upstream")
        assert finished(stages.worker("codec"), "error") == 0


async def test_a_talker_does_not_count_invalid_requests_as_errors() -> None:
    async with pipeline(1, 0) as stages:
        await submit(stages.connector(), request("nobody", voice="nobody"))
        await counted(stages.worker("talker"), "invalid")
        assert finished(stages.worker("talker"), "error") == 0


async def test_a_settings_update_that_does_not_arrive_is_refused() -> None:
    async with pipeline(1, 0) as stages:
        server = HttpServer(create_settings_api(Stage.TALKER, stages.workers[0], TOKEN), "127.0.0.1", 0)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(server.url).port)
            writer.write(f"PUT /settings/talker HTTP/1.1\r\nHost: x\r\n{TOKEN_HEADER}: {TOKEN}\r\n".encode())
            writer.write(b"Content-Length: 9\r\n\r\n{")
            status = await asyncio.wait_for(reader.readline(), DEADLINE)
            assert status.startswith(b"HTTP/1.1 408")
            writer.close()
        finally:
            await server.close()
