"""Reads a request's body, with bounds on its size and time."""

import asyncio
import contextlib

from starlette.requests import ClientDisconnect, Request

from syrinx_stages.gateway.errors import ApiError, bad_request, quoted, too_large, unavailable

MAX_BODY = 24 * 2**20
"""Bytes: enough for the largest reference as base64."""
LARGE_BODY = 2**20
"""Bytes from which a body counts as large, because it holds reference audio."""
MAX_LARGE_BODIES = 8
"""Large bodies held at once, to bound the memory that all clients together can take."""
BODY_SECONDS = 60.0
"""Time limit for receiving a body."""
DISCARD_SECONDS = 5.0
"""How long the rest of an oversized body is read and discarded, so that the client gets to read the response."""


async def read_body(http: Request, large_bodies: asyncio.Semaphore, releases: contextlib.ExitStack) -> bytes:
    """Returns the body. A large one acquires `large_bodies` until `releases` is closed.

    Raises `ApiError`: 400 for a content type other than JSON, 408 if the body is late, 413 above `MAX_BODY` (never more
    is buffered), 503 if too many large bodies are held.
    """
    content_type = http.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise bad_request(
            None, f"Content-Type is {quoted(content_type)}; send application/json", "invalid_content_type"
        )
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in http.stream():
                if len(body) < LARGE_BODY <= len(body) + len(chunk):
                    if large_bodies.locked():
                        raise unavailable("too many large requests are in progress; try again", 1)
                    await large_bodies.acquire()
                    releases.callback(large_bodies.release)
                body += chunk
                if len(body) > MAX_BODY:
                    break
            else:
                return bytes(body)
    except TimeoutError:
        message = f"the body did not arrive within {BODY_SECONDS:.0f} seconds"
        raise ApiError(408, message, code="body_timeout") from None
    except ClientDisconnect:
        message = "the client disconnected before the body was complete"
        raise bad_request(None, message, "client_disconnected") from None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_SECONDS):
            while (part := await http.receive())["type"] != "http.disconnect" and part.get("more_body", False):
                pass
    raise too_large(None, f"the body is larger than {MAX_BODY // 2**20} MB")
