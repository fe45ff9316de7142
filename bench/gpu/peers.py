"""Other services of the same models, measured with the same loads on the same GPU if their package is installed.

For a peer that is not installed, the report only quotes its published figures, separately from measured ones. The mock
service (`python -m gpu.peers PORT`) streams noise at once, so that all its latency is the load generator's.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import random
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence

import httpx
from aiohttp import web
from msgspec import Struct

from gpu.plan import EARLY_RAMP
from syrinx_operator.local import die_with_parent
from syrinx_stages.contract.family import FAMILY

START_SECONDS = 900.0
"""Compiling and capturing graphs may take minutes."""
MOCK_SPEED = 4.0
"""Audio seconds per second that the mock service streams."""
_NOISE = random.Random(0).randbytes(EARLY_RAMP[-1] * FAMILY.frame_bytes)


class PeerFailed(Exception):
    """A peer did not become ready."""


class Peer(Struct, frozen=True):
    """How to detect and start a peer."""

    name: str
    package: str
    command: Sequence[str]
    """With placeholders `MODEL` and `PORT`."""
    ready: str
    """Path that returns 200 when the peer is ready."""

    @property
    def installed(self) -> bool:
        """Whether the peer's package is installed."""
        return importlib.util.find_spec(self.package) is not None


_VLLM = ("vllm", "serve", "MODEL", "--omni", "--port", "PORT", "--trust-remote-code")
_NARI = ("nari-qwen3-tts-server", "--model", "MODEL", "--profile", "ttfa", "--port", "PORT", "--local-files-only")
PEERS = (
    Peer("vllm-omni", "vllm_omni", _VLLM, "/health"),
    Peer("nari-qwen3-tts", "nari_qwen3_tts", _NARI, "/ready"),
)
MOCK = Peer("mock", "gpu", (sys.executable, "-m", "gpu.peers", "PORT"), "/health")


@contextlib.asynccontextmanager
async def start_peer(peer: Peer, model: str) -> AsyncIterator[str]:
    """Yields the peer's URL when it is ready. Raises `PeerFailed` with the end of its log."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    command = [{"MODEL": model, "PORT": port}.get(word, word) for word in peer.command]
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, die_with_parent.__file__, str(os.getpid()), *command), stdout=log, stderr=log
        )
        try:
            url = f"http://127.0.0.1:{port}"
            if not await _is_ready(url + peer.ready, process):
                log.seek(0)
                raise PeerFailed(f"{peer.name} did not start: {log.read()[-2000:].decode('utf-8', 'replace')}")
            yield url
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 30)
            except TimeoutError:
                process.kill()
                await process.wait()


async def _is_ready(url: str, process: asyncio.subprocess.Process) -> bool:
    deadline = time.monotonic() + START_SECONDS
    async with httpx.AsyncClient(timeout=5.0, trust_env=False) as http:
        while process.returncode is None and time.monotonic() < deadline:
            with contextlib.suppress(httpx.HTTPError):
                if (await http.get(url)).status_code == httpx.codes.OK:
                    return True
            await asyncio.sleep(0.5)
    return False


async def _health(request: web.Request) -> web.Response:
    return web.Response()


async def _speech(request: web.Request) -> web.StreamResponse:
    frames = (await request.json())["max_new_tokens"]
    response = web.StreamResponse(headers={"content-type": "audio/pcm"})
    await response.prepare(request)
    sizes = iter(EARLY_RAMP)
    while frames:
        size = min(next(sizes, EARLY_RAMP[-1]), frames)
        frames -= size
        await response.write(_NOISE[: size * FAMILY.frame_bytes])
        await asyncio.sleep(size * FAMILY.frame_seconds / MOCK_SPEED)
    return response


if __name__ == "__main__":
    app = web.Application()
    app.add_routes([web.get("/health", _health), web.post("/v1/audio/speech", _speech)])
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
