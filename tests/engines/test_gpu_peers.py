"""The benchmark of other services: request schemas, real HTTP, starting a service, the result."""

import argparse
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gpu import mock, peers, report
from gpu.gathered import gather, summary
from gpu.peers import PeersRun
from syrinx_operator.local.machine import Machine

MACHINE = Machine(cpu="a processor", cores=16, memory_gib=128, system="Linux", python="3.12", packages={})
COMMON: Mapping[str, Any] = {
    "input": str, "voice": str, "response_format": str, "stream": bool, "seed": int, "max_new_tokens": int
}  # fmt: skip
DECLARED: Mapping[str, Mapping[str, Any]] = {
    "nari": {**COMMON, "non_streaming_mode": bool},
    "vllm-omni": {**COMMON, "non_streaming_mode": bool, "stream_format": str},
    # It does not declare non_streaming_mode, and ignores it.
    "sglang-omni": {**COMMON, "non_streaming_mode": bool},
}
"""The fields of the requests that each service's public code declares, see `gpu.peers`."""


def declared(name: str) -> type[msgspec.Struct]:
    return msgspec.defstruct("Request", list(DECLARED[name].items()), forbid_unknown_fields=True)


@pytest.mark.parametrize("name", DECLARED)
def test_requests_have_only_fields_that_a_service_declares(name: str) -> None:
    script = peers.script_of(name, ("ryan", "vivian"), fixed_lengths=True)
    for number in range(200):
        body = script.body(number)
        msgspec.convert(body, declared(name), strict=True)
        assert body["response_format"] == "pcm" and body["stream"] is True
        assert 1 <= body["max_new_tokens"] <= 32 * 1024 and body["seed"] >= 0


def test_all_services_get_the_same_requests() -> None:
    def essence(name: str) -> list[tuple[object, ...]]:
        script = pickle.loads(pickle.dumps(peers.script_of(name, ("ryan", "vivian"), fixed_lengths=True)))
        fields = ("input", "voice", "seed", "max_new_tokens", "non_streaming_mode")
        return [tuple(script.body(number)[field] for field in fields) for number in range(100)]

    assert essence("syrinx") == essence("nari") == essence("vllm-omni") == essence("sglang-omni")
    assert {peer.name for peer in peers.PEERS} == set(DECLARED)


def strict_service(name: str) -> web.Application:
    """The mock service, with a service's schema."""

    @web.middleware
    async def validate(request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            msgspec.convert(await request.json(), declared(name), strict=True)
        except msgspec.ValidationError as error:
            return web.json_response({"error": {"message": str(error)}}, status=422)
        response: web.StreamResponse = await handler(request)
        return response

    app = mock.application()
    app.middlewares.append(validate)
    return app


def arguments(*given: str) -> argparse.Namespace:
    return peers.parse(["--device", "cpu", "--generators", "1", *given])


def a_run() -> PeersRun:
    return PeersRun(
        created="2026-11-26", command="", revision=None, machine=MACHINE, gpu=None, driver=None, model="1.7B"
    )


@pytest.mark.night
async def test_a_service_with_a_strict_schema_accepts_its_requests_and_no_other(tmp_path: Path) -> None:
    bench = peers.Bench(arguments(), tmp_path / "cpu_peers.json", a_run())
    async with TestServer(strict_service("nari")) as server:
        for name in ("nari", "vllm-omni"):
            await bench.measure(name, [str(server.make_url("/"))], ("ryan",), started=False)
    gathered = gather(tmp_path, "cpu")
    assert gathered.peers is not None
    assert "| nari |" in " ".join(report.report(gathered, summary(gathered), [], "").split())
    run = gathered.peers
    nari, other = run.services
    assert [(point.loop, point.load) for point in nari.points] == [("open", 1), ("closed", 1)]
    assert all(point.ttfa is not None and not point.errors for point in nari.points)
    assert all(sum(point.errors.values()) == point.requests for point in other.points)
