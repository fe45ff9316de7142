"""A request's body: read within bounds, then as strict JSON."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from starlette.requests import ClientDisconnect, Request

from syrinx_stages.gateway.errors import ApiError, bad, shown, too_large, unavailable

MAX_BODY = 24 * 2**20
"""Bytes: room for the largest reference as base64."""
LARGE_BODY = 2**20
"""Bytes from which a body counts as large: it holds reference audio."""
LARGE_BODIES = 8
"""Large bodies held at once, so that many clients together cannot fill the memory."""
BODY_SECONDS = 60.0
"""The whole body must arrive within this time."""
LINGER_SECONDS = 5.0
"""A body that is too large is thrown away for this long, so that its sender finishes and reads the answer."""


async def read_body(http: Request, large: asyncio.Semaphore, held: contextlib.ExitStack) -> bytes:
    """The body. A large one takes a place of `large` until `held` is closed.

    Raises 413 past `MAX_BODY` (it never holds more), 408 if it is too slow, 503 if no place is left, 400 for another
    type.
    """
    content_type = http.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise bad(None, f"Content-Type is {shown(content_type)}; send application/json", "invalid_content_type")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in http.stream():
                if len(body) < LARGE_BODY <= len(body) + len(chunk):
                    await _take_place(large, held)
                body += chunk
                if len(body) > MAX_BODY:
                    break
            else:
                return bytes(body)
    except TimeoutError:
        message = f"the body did not arrive within {BODY_SECONDS:.0f} seconds"
        raise ApiError(408, message, code="body_timeout") from None
    except ClientDisconnect:
        raise bad(None, "the client left before the body was complete", "client_left") from None
    await _discard(http)
    raise too_large(None, f"the body is larger than {MAX_BODY // 2**20} MB")


async def _take_place(large: asyncio.Semaphore, held: contextlib.ExitStack) -> None:
    if large.locked():
        raise unavailable("too many large requests are being received; send it again", 1)
    await large.acquire()
    held.callback(large.release)


async def _discard(http: Request) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + LINGER_SECONDS
    while (left := deadline - loop.time()) > 0:
        try:
            message = await asyncio.wait_for(http.receive(), left)
        except TimeoutError:
            return
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return


def parse_json(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`. Raises 400, naming the field where there is one."""
    try:
        value = json.loads(body.decode(), object_pairs_hook=_object, parse_constant=_NoNumber)
    except UnicodeDecodeError as error:
        raise bad(None, f"the body is not UTF-8 (byte {error.start})", "invalid_json") from None
    except RecursionError:
        raise bad(None, "the body is nested too deeply", "invalid_json") from None
    except ValueError as error:
        raise bad(None, f"the body is not JSON: {error}", "invalid_json") from None
    if not isinstance(value, dict):
        raise bad(None, "the body is not a JSON object", "invalid_json")
    return value


class _NoNumber(str):
    """NaN, Infinity or -Infinity: Python reads them, JSON does not have them."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if problem := _surrogate(name):
            raise bad(None, f"a field's name: {problem}")
        if isinstance(value, str) and (problem := _surrogate(value)):
            raise bad(name[:100], problem)
        if isinstance(value, _NoNumber):
            raise bad(name[:100], f"{value} is not a JSON number", "invalid_json")
        if name in fields:
            raise bad(name[:100], "stands twice in the body", "invalid_json")
        fields[name] = value
    return fields


def _surrogate(text: str) -> str | None:
    """What is wrong with a text that is no Unicode: JSON can escape half of a character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"character {error.start + 1} is half of a surrogate pair (\\u{ord(text[error.start]):04x})"
    return None
