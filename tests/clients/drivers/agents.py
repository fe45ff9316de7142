"""What the drivers of voice agents share. They run with the adapters of examples/agents, and write OUT/report.json."""

import asyncio
import contextlib
import json
import os
import re
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

BASE_URL, TEXT, TALKER_URL = os.environ["BASE_URL"], os.environ["TEXT"], os.environ["TALKER_URL"]
OUT = Path(os.environ["OUT"])
FIELDS = {"voice": "us", "seed": int(os.environ["SEED"])}
WORD_SECONDS = 0.03
TOO_LONG = "word " * 1000
"""More than the 4,096 characters that an utterance may have."""
LONG = " ".join([TEXT] * 4)
"""Longer than the lead of the audio over playback, so that it is spoken when it is interrupted."""


async def words() -> AsyncIterator[str]:
    """What an LLM writes: a word with its space every 30 ms."""
    for word in re.findall(r"\S+\s*", TEXT):
        await asyncio.sleep(WORD_SECONDS)
        yield word


class Cases:
    """What happened in each case, by its name."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, Any]] = {}

    def add(self, name: str, audio: bytes | None = None, **content: Any) -> None:
        """Reports a case; the audio goes into a file."""
        if audio is not None:
            content["file"] = f"{len(self._found)}.pcm"
            (OUT / content["file"]).write_bytes(audio)
        self._found[name] = content

    def write(self) -> None:
        """Writes the report."""
        (OUT / "report.json").write_text(json.dumps(self._found))


def resident() -> float:
    """Rows of the talker that are held."""
    text = urllib.request.urlopen(f"{TALKER_URL}/metrics").read().decode()
    return sum(float(value) for value in re.findall(r'^syrinx_rows_resident\{.*stage="talker".*\} (\S+)', text, re.M))


async def seconds_until_free() -> float:
    """Waits until the talker holds no row. Returns for how long."""
    began = time.monotonic()
    while await asyncio.to_thread(resident):
        assert time.monotonic() - began < 10, "the row is held"
        await asyncio.sleep(0.005)
    return time.monotonic() - began


class Relay:
    """Relays connections to the gateway, and aborts the first one within its audio."""

    url = ""
    connections = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        address = urlsplit(BASE_URL)
        from_gateway, to_gateway = await asyncio.open_connection(address.hostname, address.port)
        limit = 60_000 if self.connections == 1 else None

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter, limit: int | None) -> None:
            copied = 0
            while (piece := await source.read(4096)) and (limit is None or copied < limit):
                target.write(piece)
                copied += len(piece)
                await target.drain()
            for each in (writer, to_gateway):
                each.transport.abort()

        await asyncio.gather(copy(reader, to_gateway, None), copy(from_gateway, writer, limit), return_exceptions=True)


@contextlib.asynccontextmanager
async def relay() -> AsyncIterator[Relay]:
    """Runs a relay."""
    running = Relay()
    async with await asyncio.start_server(running._serve, "127.0.0.1", 0) as server:
        running.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        yield running
