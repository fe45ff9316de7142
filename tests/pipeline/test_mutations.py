"""Mutated requests to a real pipeline: each is answered, and nothing of any remains. `make fuzz` sends 10,000."""

import asyncio
import json
import os
import re
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
import redis

from support.local_pipeline import local_pipeline
from support.mutations import mutated_request
from support.waiting import DEADLINE, until
from syrinx_operator.resource.spec import TTSPipeline
from syrinx_stages.connector.server import RedisServer

CASES = int(os.environ.get("SYRINX_TEST_MUTATIONS", "300"))
CONCURRENCY = 16
PASSWORD_ENV = "SYRINX_TEST_REDIS_PASSWORD"
MORE_FILES = 8
"""Files that the gateway may open in addition: its pool of connections to Redis grows with the concurrency."""
MAX_GROWTH = 64
"""MB of memory that the gateway may take in addition to what it has after the first requests."""


class Fuzzed:
    """A gateway process that gets mutated requests."""

    def __init__(self, url: str, pid: int, store: redis.Redis) -> None:
        self._port = urlsplit(url).port
        self._store = store
        self._proc = Path(f"/proc/{pid}")
        self.statuses: dict[int, int] = {}
        self.unexpected: list[str] = []

    async def send(self, seeds: range) -> None:
        """Sends the requests of all seeds."""
        waiting = iter(seeds)

        async def client() -> None:
            for seed in waiting:
                await self._send(seed)

        await asyncio.gather(*(client() for _ in range(CONCURRENCY)))

    async def _send(self, seed: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            async with asyncio.timeout(DEADLINE):
                writer.write(mutated_request(seed))
                response = await reader.read()
        except (TimeoutError, ConnectionError) as error:
            self.unexpected.append(f"seed {seed}: {error!r}")
            return
        finally:
            writer.transport.abort()
        final = response.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
        head, _, body = final.partition(b"\r\n\r\n")
        found = re.match(rb"HTTP/1\.1 (\d+) ", head)
        status = int(found[1]) if found else 0
        self.statuses[status] = self.statuses.get(status, 0) + 1
        documented = status == 503 and b"retry-after: " in head.lower()
        if not (200 <= status < 500 or status == 501 or documented):
            self.unexpected.append(f"seed {seed}: {final[:500]!r}")
        elif status >= 400 and b"content-length: 0" not in head.lower() and body:
            assert json.loads(body)["error"].keys() == {"message", "type", "param", "code"}, seed

    def connections(self) -> int:
        """Returns the number of connections that clients have, or that the gateway has not closed."""
        lines = [line.split() for line in (self._proc / "net" / "tcp").read_text().splitlines()[1:]]
        return sum(line[1].endswith(f":{self._port:04X}") and line[3] in ("01", "08") for line in lines)

    def files(self) -> int:
        return len(list((self._proc / "fd").iterdir()))

    def megabytes(self) -> int:
        [size] = re.findall(r"VmRSS:\s+(\d+) kB", (self._proc / "status").read_text())
        return int(size) // 1024

    def keys_of_requests(self) -> list[str]:
        """Returns the keys whose name has a request id: {pipeline:generation:cell}:<id>:codes."""
        names = [key.decode() for key in self._store.scan_iter(count=1000)]
        return [name for name in names if name.count(":") > 3 and ":inbox:" not in name]


async def test_mutated_requests_are_answered_and_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    server = RedisServer()
    monkeypatch.setenv(PASSWORD_ENV, server.password)
    resource = {
        "apiVersion": "syrinx.dev/v1beta1",
        "kind": "TTSPipeline",
        "metadata": {"name": "fuzzed"},
        "spec": {"connector": {"url": server.url, "passwordEnv": PASSWORD_ENV}},
    }
    try:
        async with local_pipeline(msgspec.convert(resource, TTSPipeline)) as local:
            [gateway] = [child for child in local.processes if child.stage == "gateway"]
            fuzzed = Fuzzed(local.gateway_url, gateway.pid, redis.Redis.from_url(server.url_with_password))
            await fuzzed.send(range(-40, 0))
            await until(lambda: not fuzzed.keys_of_requests(), "the first requests are released")
            files, megabytes = fuzzed.files(), fuzzed.megabytes()
            await fuzzed.send(range(CASES))
            print(fuzzed.statuses)
            assert fuzzed.unexpected == []
            assert fuzzed.statuses[200] > CASES // 20 and fuzzed.statuses[400] > CASES // 5
            await until(lambda: not fuzzed.keys_of_requests(), f"keys remain: {fuzzed.keys_of_requests()}")
            await until(lambda: fuzzed.connections() == 0, f"{fuzzed.connections()} connections are open")
            assert fuzzed.files() <= files + MORE_FILES
            assert fuzzed.megabytes() < megabytes + MAX_GROWTH
    finally:
        server.stop()
