"""Reads a request's body, with bounds on its size, its time and the memory of all bodies."""

import asyncio
import contextlib
import mmap
from collections.abc import Iterator

from starlette.requests import ClientDisconnect, Request

from syrinx_stages.gateway.errors import ApiError, bad_request, quoted, too_large, unavailable
from syrinx_stages.gateway.fields.json_objects import MAX_BODY, RawBody
from syrinx_stages.runtime.clock import monotonic

JSON, FORM = "application/json", "multipart/form-data"
"""The media types of bodies."""
MAX_REFERENCE_BODY = 24 * 2**20
"""Bytes of a body with reference audio: enough for the largest one as base64."""
MAX_UPLOADS = 8
"""Bodies above `MAX_BODY` in memory at the same time."""
BODY_SECONDS = 60.0
"""Time limit for receiving a body."""
IDLE_SECONDS = 10.0
"""Time limit for receiving its next bytes."""
EVICTABLE_SECONDS = 1.0
"""An upload that has taken this long makes room for another one if it is the slowest."""
DISCARD_SECONDS = 5.0
"""How long the rest of an oversized body is read and discarded, so that the client gets to read the response."""


_PIECE = 64 * 1024
"""Bytes."""


class Body:
    """A body in pieces. The event loop would wait while a large object is copied to grow, or is freed."""

    def __init__(self) -> None:
        self._pieces = [bytearray()]
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(self, chunk: bytes) -> None:
        """Adds the bytes that follow."""
        self._size += len(chunk)
        if len(self._pieces[-1]) + len(chunk) <= _PIECE:
            self._pieces[-1] += chunk
        else:
            self._pieces.append(bytearray(chunk))

    def take(self) -> RawBody:
        """Returns the bytes, and leaves the body empty. Runs in a thread if the body is large."""
        # The pages of a mapping come with each piece; a bytearray fills all of them at once, holding the GIL.
        whole = mmap.mmap(-1, self._size) if self._size > _PIECE else bytearray(self._size)
        end = self._size
        self._size = 0
        while self._pieces:
            piece = self._pieces.pop()
            whole[end - len(piece) : end] = piece
            end -= len(piece)
        return whole


class _Upload:
    """A body above `MAX_BODY`."""

    def __init__(self, limit: asyncio.Timeout) -> None:
        self.limit = limit
        self.started = monotonic()
        self.received = 0
        self.complete = False
        self.evicted = False

    def rate(self, now: float) -> float:
        """Bytes per second since its begin."""
        return self.received / (now - self.started)


class Uploads:
    """The large bodies in memory. A stalled upload cannot keep others out: the slowest one makes room."""

    def __init__(self) -> None:
        self._uploads: set[_Upload] = set()

    def __len__(self) -> int:
        """Number of large bodies in memory."""
        return len(self._uploads)

    @contextlib.contextmanager
    def hold(self, limit: asyncio.Timeout) -> Iterator[_Upload]:
        """Yields a new upload. `limit` is rescheduled to end it. Raises 503 if there is no room."""
        if len(self._uploads) >= MAX_UPLOADS:
            self._evict()
        upload = _Upload(limit)
        self._uploads.add(upload)
        try:
            yield upload
        finally:
            self._uploads.discard(upload)

    def _evict(self) -> None:
        now = monotonic()
        slow = [each for each in self._uploads if not each.complete and now - each.started > EVICTABLE_SECONDS]
        if not slow:
            raise unavailable("too many large requests are in progress; try again", 1)
        slowest = min(slow, key=lambda each: each.rate(now))
        slowest.evicted = True
        slowest.limit.reschedule(0.0)
        self._uploads.discard(slowest)


async def read_body(
    http: Request, max_bytes: int, uploads: Uploads, holding: contextlib.ExitStack, media_type: str = JSON
) -> Body:
    """Returns the body. One above `MAX_BODY` is one of `uploads` until `holding` is closed.

    Raises `ApiError`: 408 if the body is late, 413 above `max_bytes` (never more is buffered), 415 for another content
    type than `media_type` or an encoding, 503 if there is no room for a large body.
    """
    _check_type(http, media_type)
    body, upload = Body(), None
    try:
        async with asyncio.timeout(None) as limit:
            end = asyncio.get_running_loop().time() + BODY_SECONDS
            limit.reschedule(min(end, end - BODY_SECONDS + IDLE_SECONDS))
            async for chunk in http.stream():
                if upload is None and len(body) + len(chunk) > MAX_BODY and max_bytes > MAX_BODY:
                    upload = holding.enter_context(uploads.hold(limit))
                body.append(chunk)
                if len(body) > max_bytes:
                    break
                if upload is not None:
                    upload.received = len(body)
                if upload is None or not upload.evicted:
                    limit.reschedule(min(end, asyncio.get_running_loop().time() + IDLE_SECONDS))
            else:
                if upload is not None:
                    upload.complete = True
                return body
    except TimeoutError:
        raise _late(upload) from None
    except ClientDisconnect:
        message = "the client disconnected before the body was complete"
        raise bad_request(None, message, "client_disconnected") from None
    await _discard_rest(http)
    raise too_large(None, f"the body is larger than {max_bytes // 2**20} MB")


def _check_type(http: Request, media_type: str) -> None:
    content_type = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != media_type:
        found = quoted(content_type) if content_type else "missing"
        message = f"Content-Type is {found}; send {media_type}"
        raise ApiError(415, message, code="unsupported_media_type")
    encoding = http.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        message = f"Content-Encoding is {quoted(encoding)}; send the body without it"
        raise ApiError(415, message, code="unsupported_encoding")


def _late(upload: _Upload | None) -> ApiError:
    if upload is not None and upload.evicted:
        message = "the body arrived too slowly while others waited; try again"
    else:
        message = f"the body did not arrive within {BODY_SECONDS:.0f} seconds, or paused for {IDLE_SECONDS:.0f}"
    return ApiError(408, message, code="body_timeout")


async def _discard_rest(http: Request) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_SECONDS):
            while (part := await http.receive())["type"] != "http.disconnect" and part.get("more_body", False):
                pass
