"""Requests to the stages' settings and admin ports."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import msgspec
import pytest
from aiohttp import web

from syrinx_operator.cluster.objects.names import OWN
from syrinx_operator.cluster.objects.state import Replica, Settings
from syrinx_operator.cluster.watch import stage_api
from syrinx_operator.cluster.watch.api import Api
from syrinx_operator.cluster.watch.lease import LeaseLost
from syrinx_operator.cluster.watch.stage_api import DesiredSettings, StageAccess, StageApi, StageError
from syrinx_operator.cluster.watch.telemetry import Telemetry
from syrinx_operator.tuner.builder import OVERRIDE_TTL_SECONDS
from syrinx_stages.contract.settings import ReportedSettings
from syrinx_stages.contract.stages import Stage

TOKEN = "of-the-secret"

pytestmark = pytest.mark.virtual


class FakeStage:
    """A fake stage with a configurable answer to requests for its settings."""

    def __init__(self) -> None:
        self.answer: web.Response | float = web.json_response(
            {"generation": 1, "settings": {"rows": 1}, "base": {"rows": 1}}
        )
        self.put: list[dict] = []
        self.requests: list[tuple[str, str | None]] = []
        """Path and token of each request."""

    async def settings_port(self, request: web.Request) -> web.Response:
        if request.headers.get("X-Syrinx-Token") != TOKEN:
            return web.Response(status=401)
        return await self._settings(request)

    async def admin_port(self, request: web.Request) -> web.Response:
        if request.path == "/metrics":
            return web.Response(body=b"x" * 2000)
        if request.path == "/readyz":
            return web.Response(status=503, text="the user may not run xadd\nwarning: another thing\n")
        return web.Response(status=404)

    async def _settings(self, request: web.Request) -> web.Response:
        self.requests.append((request.path, request.headers.get("X-Syrinx-Token")))
        if request.method == "PUT":
            self.put.append(await request.json())
            return web.json_response({"base": {"rows": 1}, **self.put[-1]})
        if isinstance(self.answer, float):
            await asyncio.sleep(self.answer)
            return web.Response()
        return web.Response(status=self.answer.status, body=self.answer.body)


def addresses() -> list[str]:
    with socket.socket(socket.AF_INET6) as test:
        try:
            test.bind(("::1", 0))
        except OSError:
            return ["127.0.0.1"]
    return ["127.0.0.1", "::1"]


def listen_at(monkeypatch: pytest.MonkeyPatch, settings: int, admin: int) -> None:
    """Makes the ports of replicas other ones than in pods."""
    monkeypatch.setattr(stage_api, "place", lambda _: OWN._replace(settings_port=settings, admin_port=admin))


@pytest.fixture
async def replica(request, stage, monkeypatch) -> AsyncIterator[Replica]:
    address = getattr(request, "param", "127.0.0.1")
    async with contextlib.AsyncExitStack() as cleanup:
        ports = []
        for handle in (stage.settings_port, stage.admin_port):
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", handle)
            runner = web.AppRunner(app)
            await runner.setup()
            cleanup.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, address, 0).start()
            ports.append(runner.addresses[0][1])
        listen_at(monkeypatch, *ports)
        yield Replica(name="demo-codec-0", component=Stage.CODEC, template="t", ready=True, address=address)


@pytest.fixture
def stage() -> FakeStage:
    return FakeStage()


@pytest.fixture
async def stages() -> AsyncIterator[StageApi]:
    telemetry = Telemetry()
    async with StageApi(Api(telemetry), StageAccess.DIRECT, telemetry) as api:
        yield api


async def read(stages, replica, token=TOKEN):
    (found,) = await stages.read_settings("default", [replica], token)
    return found


@pytest.mark.parametrize("replica", addresses(), indirect=True)
async def test_reads_the_settings_of_a_ready_replica(stages, replica, stage):
    found = await read(stages, replica)
    assert found.reported == ReportedSettings(1, {"rows": 1}, {"rows": 1})
    assert stage.requests == [("/settings/codec", TOKEN)]


async def test_a_replica_that_is_not_ready_says_why(stages, replica, stage):
    unready = msgspec.structs.replace(replica, ready=False)
    found = await read(stages, unready)
    assert found == msgspec.structs.replace(unready, unready="the user may not run xadd")
    assert stage.requests == []


@pytest.mark.parametrize("fields", [{"terminating": True}, {"problem": "ErrImagePull: it"}, {"address": ""}])
async def test_a_replica_that_does_not_run_is_not_asked(stages, replica, fields):
    unready = msgspec.structs.replace(replica, ready=False, **fields)
    assert await read(stages, unready) == unready


async def test_a_replica_with_another_token_has_no_reported_settings(stages, replica):
    assert await read(stages, replica, "of-a-deleted-secret") == replica


@pytest.mark.parametrize(
    "answer",
    [
        web.Response(status=500, body=b"internal error"),
        web.Response(body=b"ok"),
        web.Response(body=b"[]"),
        web.Response(body=b'{"generation": "one", "settings": {}, "base": {}}'),
        2 * stage_api.TIMEOUT,
    ],
)
async def test_an_invalid_or_missing_answer_leaves_the_replica_without_reported_settings(
    stages, replica, stage, answer
):
    stage.answer = answer
    assert await read(stages, replica) == replica


async def test_a_too_large_answer_is_refused(stages, replica, monkeypatch):
    monkeypatch.setattr(stage_api, "MAX_ANSWER_BYTES", 1000)
    with pytest.raises(StageError, match="larger than 1000 bytes"):
        await stages.scrape("default", replica)


async def test_an_unreachable_replica_has_no_reported_settings(stages, replica, monkeypatch):
    listen_at(monkeypatch, 1, 1)
    assert await read(stages, replica) == replica


def base(generation, rows):
    return Settings(generation, {"rows": rows})


async def push(stages, replica, reported, wanted, fence=lambda: None):
    has = msgspec.structs.replace(replica, reported=reported)
    (pushed,) = await stages.push_settings("default", [has], lambda _: wanted, fence, TOKEN)
    return pushed


OVERRIDES = {"rows": 8}
OVERRIDE_BODY = {"generation": 1, "settings": OVERRIDES, "seconds": OVERRIDE_TTL_SECONDS}
PLAIN, OVERRIDDEN = ReportedSettings(1, {"rows": 1}, {"rows": 1}), ReportedSettings(1, OVERRIDES, {"rows": 1}, 31.0)


def body(generation, rows):
    return {"generation": generation, "settings": {"rows": rows}}


@pytest.mark.parametrize(
    ("reported", "wanted", "sent"),
    [
        pytest.param(PLAIN, DesiredSettings(base(1, 1)), [], id="it has them"),
        pytest.param(PLAIN, DesiredSettings(base(0, 9)), [], id="it has newer ones"),
        pytest.param(PLAIN, DesiredSettings(base(2, 1)), [body(2, 1)], id="it has older ones"),
        pytest.param(PLAIN, DesiredSettings(base(1, 2)), [body(1, 2)], id="it has other ones"),
        pytest.param(PLAIN, DesiredSettings(base(1, 1), OVERRIDES), [OVERRIDE_BODY], id="overrides"),
        pytest.param(OVERRIDDEN, DesiredSettings(base(1, 1), OVERRIDES), [OVERRIDE_BODY], id="overrides are renewed"),
        pytest.param(OVERRIDDEN, DesiredSettings(base(1, 1)), [body(1, 1)], id="overrides are ended"),
        pytest.param(
            ReportedSettings(1, {"rows": 5}, {"rows": 5}),
            DesiredSettings(base(2, 1), OVERRIDES),
            [body(2, 1), {**OVERRIDE_BODY, "generation": 2}],
            id="the base before overrides",
        ),
        pytest.param(
            ReportedSettings(2, {"rows": 1}, {"rows": 1}),
            DesiredSettings(base(1, 1), OVERRIDES),
            [],
            id="overrides of an older base",
        ),
        pytest.param(None, DesiredSettings(base(1, 1), OVERRIDES), [], id="no report"),
    ],
)
async def test_what_a_replica_lacks_is_sent(stages, replica, stage, reported, wanted, sent):
    pushed = await push(stages, replica, reported, wanted)
    assert stage.put == sent
    if sent:
        last = sent[-1]
        assert (pushed.reported.generation, pushed.reported.settings) == (last["generation"], last["settings"])
        assert "seconds" not in last or pushed.reported.base == {"rows": 1}


async def test_settings_that_an_earlier_or_later_image_does_not_know_are_left_alone(stages, replica, stage):
    newer = Settings(2, {"rows": 1, "pitch": 3})
    earlier = ReportedSettings(1, {"rows": 1}, {"rows": 1})
    pushed = await push(stages, replica, earlier, DesiredSettings(newer))
    assert stage.put == [{"generation": 2, "settings": {"rows": 1}}] and pushed.has_confirmed(2)
    await push(stages, replica, pushed.reported, DesiredSettings(newer))
    assert len(stage.put) == 1, "it has what it can have"
    later = ReportedSettings(1, {}, {"rows": 1, "mode": "fast"})
    await push(stages, replica, later, DesiredSettings(base(1, 1)))
    assert len(stage.put) == 1


async def test_every_write_is_fenced(stages, replica, stage):
    def lost():
        raise LeaseLost("over")

    with pytest.raises(LeaseLost):
        await push(stages, replica, OVERRIDDEN, DesiredSettings(base(1, 1)), lost)
    assert stage.put == []
