"""A pipeline whose user of Redis has few rights."""

import contextlib
from collections.abc import AsyncIterator, Iterator

import httpx
import msgspec
import pytest
from prometheus_client import CollectorRegistry
from redis import Redis

from support.cloning import Cloning, gateway_of
from support.stages import Pipeline
from support.waiting import until
from syrinx_stages.connector.server import RedisServer
from syrinx_stages.connector.servers.check import CHECKING, COMMANDS, OPTIONAL
from syrinx_stages.contract.settings import TOKEN_HEADER, ReportedSettings
from syrinx_stages.contract.stages import Stage
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.runtime import storage
from syrinx_stages.runtime.http.admin import Service, create_admin
from syrinx_stages.runtime.http.settings_api import create_settings_api
from syrinx_stages.runtime.telemetry.exposition import Exposition
from syrinx_stages.runtime.telemetry.metrics import Metrics

DOCUMENTED = ("-@all", *(f"+{name}" for name in (*COMMANDS, *OPTIONAL, *CHECKING)))
NOT_DANGEROUS = ("+@all", "-@dangerous", "+info")


class Server:
    """A Redis, and the user of a pipeline."""

    def __init__(self, server: RedisServer) -> None:
        self.url = f"redis://stages:own@127.0.0.1:{server.port}"
        self.admin = Redis(port=server.port, password=server.password, protocol=2)

    def allow(self, *rules: str) -> None:
        self.admin.execute_command("ACL", "SETUSER", "stages", "reset", "on", ">own", "~{test-*", *rules)


@pytest.fixture
def server() -> Iterator[Server]:
    with RedisServer() as it:
        yield Server(it)


@contextlib.asynccontextmanager
async def running(server: Server, base: Checkpoint) -> AsyncIterator[tuple[Pipeline, Cloning]]:
    """Starts a talker, a codec and a gateway, ready or not."""
    stages = Pipeline(checkpoint=base, url=server.url)
    try:
        await stages.talker()
        await stages.codec()
        async with gateway_of(stages) as gateway:
            yield stages, gateway
    finally:
        await stages.close()


async def reported(service: Service) -> ReportedSettings:
    """Returns what the settings port of a stage reports to the operator."""
    app = create_settings_api(Stage.TALKER, service, "token")
    options = {"base_url": "http://stage", "headers": {TOKEN_HEADER: "token"}}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), **options) as http:
        answer = await http.get(f"/settings/{Stage.TALKER}")
        return msgspec.json.decode(answer.content, type=ReportedSettings)


async def readyz(service: Service) -> httpx.Response:
    """Returns the answer of a stage's admin port."""
    app = create_admin(service.ready, Exposition(Metrics(CollectorRegistry())), service.warnings)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://stage") as http:
        return await http.get("/readyz")


async def test_the_documented_rights_are_all_that_a_pipeline_needs(server: Server, base: Checkpoint):
    server.allow(*DOCUMENTED)
    async with running(server, base) as (stages, gateway):
        for service in (*stages.workers, gateway.service):
            await until(lambda: service.ready() is None, "all are ready")  # noqa: B023
            assert not service.warnings(), service.warnings()
        assert (await gateway.upload("anna")).status_code == 200
        assert (await gateway.say(voice="anna")).status_code == 200
        assert (await gateway.http.get("/v1/audio/voices")).json()["uploaded_voices"] != []
        body = {"input": "Hello.", "voice": "anna", "max_new_tokens": 200}
        async with gateway.http.stream("POST", "/v1/audio/speech", json=body) as response:
            await anext(response.aiter_bytes())
        await stages.talker("talker-1")
        await stages.worker("talker").drain(60.0)
        assert (await gateway.say(voice="anna")).status_code == 200
        assert (await gateway.http.delete("/v1/audio/voices/anna")).status_code == 200
    assert server.admin.execute_command("ACL", "LOG") == []


async def test_a_stage_without_a_right_is_not_ready_until_it_has_it(
    server: Server, base: Checkpoint, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(storage, "OBSTACLE_SECONDS", 0.0)
    monkeypatch.setattr(storage, "CHECK_SECONDS", 0.01)
    server.allow(*NOT_DANGEROUS)
    async with running(server, base) as (stages, gateway):
        for service in (*stages.workers, gateway.service):
            answer = await readyz(service)
            assert answer.status_code == 503
            assert "the user may not run client|" in answer.text
            assert "allow it with ACL SETUSER USER +client|" in answer.text
        server.allow(*NOT_DANGEROUS, "+client|id", "+client|unblock")
        for service in (*stages.workers, gateway.service):
            await until(lambda: service.ready() is None, "the right is noticed")  # noqa: B023
        assert (await gateway.upload("anna")).status_code == 200


async def test_a_stage_whose_redis_evicts_is_ready_with_a_warning(server: Server, base: Checkpoint):
    server.admin.config_set("maxmemory-policy", "allkeys-lru")
    server.allow(*DOCUMENTED)
    async with running(server, base) as (stages, gateway):
        for service in (*stages.workers, gateway.service):
            await until(lambda: service.ready() is None, "all are ready")  # noqa: B023
            answer = await readyz(service)
            assert answer.status_code == 200
            state, warning = answer.text.splitlines()
            assert state == "ready"
            assert warning.startswith("warning: Redis at 127.0.0.1:")
            assert "maxmemory-policy is allkeys-lru" in warning
            assert (await reported(service)).warnings == (warning.removeprefix("warning: "),)
