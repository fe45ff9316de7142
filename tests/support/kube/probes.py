"""Probes of a running container."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp

from support.kube.store import Object

Execute = Callable[[list[str], float], Awaitable[int]]
"""Runs a command in the container with a timeout in seconds; returns its exit status."""


def port_number(container: Object, port: int | str) -> int:
    if isinstance(port, int):
        return port
    found: int = next(each["containerPort"] for each in container["ports"] if each.get("name") == port)
    return found


async def passes(probe: Object, container: Object, address: str, execute: Execute) -> bool:
    """Returns whether one probe succeeds."""
    seconds = float(probe["timeoutSeconds"])
    try:
        async with asyncio.timeout(seconds):
            if "httpGet" in probe:
                get = probe["httpGet"]
                url = f"http://{address}:{port_number(container, get['port'])}{get['path']}"
                async with aiohttp.ClientSession() as session, session.get(url) as answer:
                    return 200 <= answer.status < 400
            if "tcpSocket" in probe:
                number = port_number(container, probe["tcpSocket"]["port"])
                _, writer = await asyncio.open_connection(address, number)
                writer.close()
                return True
            return await execute(probe["exec"]["command"], seconds) == 0
    except (TimeoutError, OSError, aiohttp.ClientError):
        return False


async def until(wanted: bool, attempts: int, period: float, attempt: Callable[[], Awaitable[bool]]) -> None:
    """Waits until `threshold` probes in a row have the desired result."""
    row = 0
    while True:
        row = row + 1 if await attempt() is wanted else 0
        if row >= attempts:
            return
        await asyncio.sleep(period)
