"""Stages' admin ports, reached directly."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from syrinx_operator.cluster import stage_api
from syrinx_operator.cluster.api import Api
from syrinx_operator.cluster.config import Access
from syrinx_operator.cluster.stage_api import StageApi, StageError
from syrinx_operator.cluster.state import Component, Replica, Reported
from syrinx_operator.cluster.telemetry import Telemetry


class Admin:
    """A stage's admin port that answers as told."""

    def __init__(self) -> None:
        self.answer: web.Response | float = web.json_response({"generation": 1, "settings": {"rows": 1}})
        self.put: list[dict] = []

    async def handle(self, request: web.Request) -> web.Response:
        if request.method == "PUT":
            self.put.append(await request.json())
            return web.json_response(self.put[-1])
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


@pytest.fixture(params=addresses())
async def replica(request, admin, monkeypatch) -> AsyncIterator[Replica]:
    app = web.Application()
    app.router.add_route("*", "/{path}", admin.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, request.param, 0)
    await site.start()
    monkeypatch.setattr(stage_api, "ADMIN_PORT", runner.addresses[0][1])
    yield Replica(name="demo-codec-0", component=Component.CODEC, template="t", ready=True, address=request.param)
    await runner.cleanup()


@pytest.fixture
def admin() -> Admin:
    return Admin()


@pytest.fixture
async def stages(monkeypatch) -> AsyncIterator[StageApi]:
    monkeypatch.setattr(stage_api, "TIMEOUT", 0.5)
    telemetry = Telemetry()
    async with StageApi(Api(telemetry), Access.DIRECT, telemetry) as api:
        yield api


async def test_a_ready_replica_says_what_it_has_in_force(stages, replica):
    (found,) = await stages.read_settings("default", [replica])
    assert found.reported == Reported(1, {"rows": 1})


@pytest.mark.parametrize(
    "answer",
    [
        web.Response(status=500, body=b"not now"),
        web.Response(body=b"ok"),
        web.Response(body=b"[]"),
        web.Response(body=b'{"generation": "one", "settings": {}}'),
        5.0,
    ],
)
async def test_one_that_answers_oddly_or_never_has_nothing_to_report(stages, replica, admin, answer):
    admin.answer = answer
    async with asyncio.timeout(3):
        (found,) = await stages.read_settings("default", [replica])
    assert found == replica


async def test_an_endless_answer_is_given_up(stages, replica, admin, monkeypatch):
    monkeypatch.setattr(stage_api, "MAX_ANSWER", 1000)
    admin.answer = web.Response(body=b"x" * 2000)
    with pytest.raises(StageError, match="larger than 1000 bytes"):
        await stages.scrape("default", replica)


async def test_nobody_there(stages, replica, monkeypatch):
    monkeypatch.setattr(stage_api, "ADMIN_PORT", 1)
    assert await stages.read_settings("default", [replica]) == (replica,)


async def test_older_settings_are_replaced_and_newer_ones_left(stages, replica, admin):
    (reporting,) = await stages.read_settings("default", [replica])
    for wanted in (Reported(1, {"rows": 1}), Reported(0, {"rows": 9})):
        assert await stages.push_settings("default", [reporting], {Component.CODEC: wanted}) == (reporting,)
    assert admin.put == []
    for wanted in (Reported(2, {"rows": 1}), Reported(1, {"rows": 2})):
        (pushed,) = await stages.push_settings("default", [reporting], {Component.CODEC: wanted})
        assert pushed.reported == wanted
    assert admin.put == [{"generation": 2, "settings": {"rows": 1}}, {"generation": 1, "settings": {"rows": 2}}]
