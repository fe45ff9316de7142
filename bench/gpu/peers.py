"""Other services of the same models, measured with the same loads on the same GPU if their package is installed.

For a peer that is not installed, the report only quotes its published figures, separately from measured ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence

import httpx
from msgspec import Struct

from syrinx_operator.local import die_with_parent

START_SECONDS = 900.0
"""Compiling and capturing graphs may take minutes."""


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


PEERS = (
    Peer(
        "vllm-omni",
        "vllm_omni",
        ("vllm", "serve", "MODEL", "--omni", "--port", "PORT", "--trust-remote-code"),
        "/health",
    ),
    Peer(
        "nari-qwen3-tts",
        "nari_qwen3_tts",
        ("nari-qwen3-tts-server", "--model", "MODEL", "--profile", "ttfa", "--port", "PORT", "--local-files-only"),
        "/ready",
    ),
)


@contextlib.asynccontextmanager
async def start_peer(peer: Peer, model: str) -> AsyncIterator[str]:
    """Yields the peer's URL when it is ready. Raises `PeerFailed` with the end of its log."""
    with socket.socket() as probe, tempfile.TemporaryFile() as log:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
        probe.close()
        command = [{"MODEL": model, "PORT": port}.get(word, word) for word in peer.command]
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
    deadline = asyncio.get_running_loop().time() + START_SECONDS
    async with httpx.AsyncClient(timeout=5.0, trust_env=False) as http:
        while process.returncode is None and asyncio.get_running_loop().time() < deadline:
            with contextlib.suppress(httpx.HTTPError):
                if (await http.get(url)).status_code == httpx.codes.OK:
                    return True
            await asyncio.sleep(0.5)
    return False
