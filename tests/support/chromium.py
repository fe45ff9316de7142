"""Chromium without a window, driven over its DevTools protocol."""

import asyncio
import contextlib
import itertools
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from support.required import require
from support.waiting import DEADLINE

PLAYWRIGHTS = sorted(Path.home().glob(".cache/ms-playwright/chromium-*/chrome-linux*/chrome"))
BINARY = shutil.which("chromium") or shutil.which("google-chrome") or (str(PLAYWRIGHTS[-1]) if PLAYWRIGHTS else None)
"""None: it is not installed."""
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--remote-debugging-port=0",
        "--no-proxy-server",
    ),
)


class Page:
    """A page of a browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.events: list[dict[str, Any]] = []
        self._socket = socket
        self._ids = itertools.count(1)

    async def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Runs a command of the protocol and returns its result; collects events that arrive meanwhile."""
        number = next(self._ids)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json(timeout=DEADLINE)
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

    async def open(self, url: str) -> None:
        """Navigates to a page, and records its requests and its problems."""
        for domain in ("Network", "Log", "Runtime", "Page"):
            await self.command(f"{domain}.enable")
        await self.command("Page.navigate", url=url)

    async def run(self, script: str) -> Any:
        """Returns the value of an expression, which is awaited, as if the user had caused it."""
        options = {"awaitPromise": True, "returnByValue": True, "userGesture": True}
        result = await self.command("Runtime.evaluate", expression=script, **options)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def until(self, script: str) -> Any:
        """Evaluates an expression until it is true, and returns its value."""
        async with asyncio.timeout(DEADLINE):
            while not (value := await self.run(script)):
                await asyncio.sleep(0.05)
        return value

    def requests(self) -> list[str]:
        """The URLs that the page has requested."""
        sent = (each["params"] for each in self.events if each["method"] == "Network.requestWillBeSent")
        return [each["request"]["url"] for each in sent]

    def problems(self) -> list[str]:
        """Errors and warnings of the page, among them violations of its Content-Security-Policy."""
        logged = (each["params"]["entry"] for each in self.events if each["method"] == "Log.entryAdded")
        thrown = (each for each in self.events if each["method"] == "Runtime.exceptionThrown")
        return [each["text"] for each in logged if each["level"] in ("error", "warning")] + [
            json.dumps(each) for each in thrown
        ]


@contextlib.asynccontextmanager
async def browser(profile: Path) -> AsyncIterator[Page]:
    """Starts the browser with a new profile and yields its page."""
    require(BINARY, "there is no Chromium: make .venv/.browses")
    process = await asyncio.create_subprocess_exec(
        BINARY,
        *FLAGS,
        f"--user-data-dir={profile}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(DEADLINE):
            while not (file := profile / "DevToolsActivePort").exists() or len(file.read_text().split()) < 2:
                await asyncio.sleep(0.05)
        address = f"http://127.0.0.1:{file.read_text().split()[0]}"
        async with aiohttp.ClientSession() as http:
            async with http.get(f"{address}/json/list") as response:
                [target] = [each for each in await response.json() if each["type"] == "page"]
            async with http.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                yield Page(socket)
    finally:
        process.terminate()
        await process.wait()
