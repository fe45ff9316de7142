"""API keys, TLS and fair shares of a whole pipeline of real processes, and the commands that call it."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from msgspec import structs

from support.api_keys import Keys
from support.local_pipeline import local_pipeline
from support.tls import Authority
from support.up import Up, environment, example
from syrinx_operator.resource.gateway import ApiKeysSpec
from syrinx_operator.resource.spec import TTSPipeline, default_pipeline
from syrinx_operator.resource.stage_config import LocalError

DEADLINE = 240.0
SPEECH = "/v1/audio/speech"
LONG = "The old teacher found two heavy bags near the river. " * 10


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ca")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[tuple[Up, str]]:
    """`syrinx up` with TLS and a key, in files beside the resource's."""
    state = tmp_path_factory.mktemp("up")
    certificate, key = authority.server("DNS:localhost", "IP:127.0.0.1")
    (state / "tls.crt").write_bytes(certificate.read_bytes())
    (state / "tls.key").write_bytes(key.read_bytes())
    keys = Keys(state, alice={})
    tls = {"certificateFile": "tls.crt", "keyFile": "tls.key"}
    running = Up(state, example(state, apiKeys={"file": "keys.jsonl"}, tls=tls))
    running.url = running.wait_for(r"ready at (https://127\.0\.0\.1:\d+)")[1]
    yield running, keys.keys["alice"]
    running.process.terminate()
    assert running.process.wait(DEADLINE) == 0


def say(state: Path, output: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """`syrinx say` to the running pipeline."""
    inherited = {name: value for name, value in environment(state).items() if name != "SSL_CERT_FILE"}
    command = [sys.executable, "-m", "syrinx_operator", "say", "Hello.", "-o", str(output)]
    return subprocess.run(
        command, env=inherited | variables, capture_output=True, text=True, timeout=DEADLINE, check=False
    )


def test_say_calls_a_pipeline_with_tls_and_keys(up: tuple[Up, str], authority: Authority, tmp_path: Path) -> None:
    running, key = up
    output, trusted = tmp_path / "speech.wav", str(authority.ca_file)
    done = say(running.state, output, SYRINX_API_KEY=key, SSL_CERT_FILE=trusted)
    assert done.returncode == 0, done.stderr
    assert output.read_bytes().startswith(b"RIFF")
    unverified = say(running.state, output, SYRINX_API_KEY=key)
    assert unverified.returncode == 1 and "set SSL_CERT_FILE" in unverified.stderr, unverified.stderr
    keyless = say(running.state, output, SSL_CERT_FILE=trusted)
    assert keyless.returncode == 1 and "no API key" in keyless.stderr, keyless.stderr


def test_no_key_is_in_logs_and_configurations(up: tuple[Up, str]) -> None:
    running, key = up
    files = [file for file in running.state.rglob("*") if file.is_file()]
    assert len(files) > 5
    assert not [file for file in files if key.encode() in file.read_bytes()]


async def test_a_pipeline_whose_keys_are_invalid_does_not_start(tmp_path: Path) -> None:
    file = tmp_path / "keys.jsonl"
    file.write_text("{}\n")
    with pytest.raises(LocalError, match=f"syrinx gateway: API keys: {file}: line 1: "):
        async with local_pipeline(with_keys(file), directory=tmp_path):
            pass


def with_keys(file: Path, **fields: object) -> TTSPipeline:
    pipeline = default_pipeline()
    gateway = structs.replace(pipeline.spec.gateway, api_keys=ApiKeysSpec(file=str(file)), **fields)
    return structs.replace(pipeline, spec=structs.replace(pipeline.spec, gateway=gateway))


class Clients:
    """Clients of one pipeline, from one address."""

    def __init__(self, url: str, keys: Keys) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=DEADLINE, limits=httpx.Limits(max_connections=None))
        self._keys = keys

    async def say(self, name: str, text: str, frames: int) -> int:
        """Sends a request, receives its audio and returns its status."""
        body = {"input": text, "response_format": "pcm", "max_new_tokens": frames}
        return (await self._http.post(SPEECH, json=body, headers=self._keys.of(name))).status_code

    async def close(self) -> None:
        await self._http.aclose()


@pytest.fixture
async def crowded(tmp_path: Path) -> AsyncIterator[Clients]:
    """A pipeline in which at most four requests may wait, as long as it takes on this machine."""
    keys = Keys(tmp_path, greedy={}, modest={})
    pipeline = with_keys(keys.file, max_queue=4)
    async with local_pipeline(pipeline, directory=tmp_path) as running:
        clients = Clients(running.gateway_url, keys)
        try:
            yield clients
        finally:
            await clients.close()


async def test_a_client_with_many_requests_does_not_shut_out_another(crowded: Clients) -> None:
    statuses: list[int] = []

    async def insist() -> None:
        while True:
            statuses.append(await crowded.say("greedy", LONG, 15))
            await asyncio.sleep(0.2)

    greedy = [asyncio.create_task(insist()) for _ in range(30)]
    async with asyncio.timeout(DEADLINE):
        while statuses.count(503) < 30:
            await asyncio.sleep(0.01)
        before = len(statuses)
        modest = [await asyncio.gather(*(crowded.say("modest", "Hello.", 5) for _ in range(2))) for _ in range(3)]
    assert modest == [[200, 200]] * 3
    meanwhile = statuses[before:]
    assert meanwhile.count(503) > 10, "it was crowded all the time"
    assert 200 in meanwhile, "and nobody was shut out"
    for task in greedy:
        task.cancel()
    await asyncio.gather(*greedy, return_exceptions=True)
