"""Sends the audio of a request to its client: as one body, as raw bytes or as server-sent events."""

import asyncio
import contextlib
import json
import logging
import math
from base64 import b64encode
from collections.abc import Coroutine, Sequence
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from syrinx_stages.contract import logs
from syrinx_stages.contract.messages import EndReason
from syrinx_stages.gateway.errors import ApiError
from syrinx_stages.gateway.speech.request import Delivery, ParsedRequest
from syrinx_stages.gateway.speech.speech import SpeechStream
from syrinx_stages.runtime.clock import monotonic

log = logging.getLogger(__name__)

SEND_SECONDS = 60.0
"""A client that accepts no data for this long counts as disconnected."""
SLOWEST = 4.0
"""So does one that is this long behind an even rate: this many seconds for a second of audio."""
EVENT_STREAM = "text/event-stream"
PIECE_BYTES = 64 * 1024
"""Bytes that are sent at once."""


class ClientDisconnected(Exception):
    """The client has closed the connection or accepts no data."""


class ClientConnection:
    """The client's end of one HTTP exchange."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._disconnected = False
        self._patience = SEND_SECONDS
        """Seconds that the client may take to accept the next data."""
        # One timer checks all sends: most never wait, and a timeout for each would cost more than the send.
        self._sending: asyncio.Task[Any] | None = None
        self._due = math.inf
        """When the send in progress takes too long, in the event loop's time."""
        self._timer: asyncio.Handle | None = None
        self._checked_at = math.inf
        """When the timer fires."""
        self._expired = False

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` and cancels it when the client disconnects. Raises the exceptions of `work`."""
        working = asyncio.create_task(work)
        watching = asyncio.create_task(self._watch())
        try:
            await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                with contextlib.suppress(ClientDisconnected):
                    working.result()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            working.cancel()
            watching.cancel()
            await asyncio.gather(working, watching, return_exceptions=True)

    async def start(self, headers: dict[str, str]) -> None:
        """Sends the status line and the headers."""
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": raw})

    async def send(self, data: bytes, seconds: float = math.inf) -> None:
        """Returns when the transport has taken the data, `seconds` of audio. Raises `ClientDisconnected`."""
        for start in range(0, len(data), PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            await self._send_body(piece, more=True, seconds=seconds * len(piece) / len(data))
            # The server silently drops what is sent to a closed connection; `_watch` learns of it in this turn.
            await asyncio.sleep(0)
            if self._disconnected:
                raise ClientDisconnected

    async def finish(self, data: bytes) -> None:
        """Sends the last data. Raises `ClientDisconnected` if the client does not accept it in time."""
        await self._send_body(data, more=False)

    async def _send_body(self, data: bytes, more: bool, seconds: float = math.inf) -> None:
        loop, began = asyncio.get_running_loop(), monotonic()
        self._sending, self._due = asyncio.current_task(), loop.time() + self._patience
        if self._due < self._checked_at:
            self._arm(loop)
        try:
            await self._send({"type": "http.response.body", "body": data, "more_body": more})
        except asyncio.CancelledError:
            if not self._expired:
                raise
            assert self._sending is not None
            self._sending.uncancel()
            raise ClientDisconnected from None
        finally:
            self._sending = None
        waited = monotonic() - began
        self._patience = min(SEND_SECONDS, self._patience - waited + SLOWEST * seconds)

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._checked_at = self._due
        late = self._due <= loop.time()
        self._timer = loop.call_soon(self._check_send) if late else loop.call_at(self._due, self._check_send)

    def _check_send(self) -> None:
        """Cancels the send in progress if it takes too long."""
        self._timer, self._checked_at = None, math.inf
        if self._sending is None:
            return
        if self._due > (loop := asyncio.get_running_loop()).time():
            self._arm(loop)
        else:
            self._expired = True
            self._sending.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._disconnected = True


class SpeechResponse(Response):
    """Delivers the audio of a submitted request.

    Nothing is sent before the first audio arrives, so a failure until then is an ordinary error response.
    """

    def __init__(
        self, speech: SpeechStream, parsed: ParsedRequest, input_tokens: int, submitted: contextlib.AsyncExitStack
    ) -> None:
        """input_tokens: those of the texts, for server-sent events. submitted: closed when the response is complete."""
        super().__init__()
        self._speech = speech
        self._parsed = parsed
        self._input_tokens = input_tokens
        self._submitted = submitted
        self._fixed_headers = {"X-Sample-Rate": str(parsed.audio.rate), "X-Seed": str(parsed.request.seed)}
        if parsed.warnings:
            self._fixed_headers["Warning"] = ", ".join(f"299 - {json.dumps(each)}" for each in parsed.warnings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the response. Raises `ApiError` if the request fails before anything was sent."""
        client = ClientConnection(receive, send)
        async with self._submitted:
            whole = self._parsed.delivery is Delivery.WHOLE
            await client.run(self._send_whole(client) if whole else self._stream(client))

    async def _send_whole(self, client: ClientConnection) -> None:
        file, seconds = await self._speech.file(self._parsed.audio)
        size, end = sum(map(len, file)), self._speech.end
        headers = {
            **self._fixed_headers,
            "X-Finish-Reason": end.reason,
            "X-Retries": str(end.retries),
            "X-Audio-Seconds": f"{seconds:.3f}",
            "Content-Type": self._parsed.audio.media_type,
            "Content-Length": str(size),
        }
        if places := self._parsed.spelling.places(end.incomplete):
            headers["X-Incomplete"] = ", ".join(f"{start}-{stop}" for start, stop in places)
        await client.start(headers)
        for part in file:
            await client.send(part, seconds * len(part) / size)
        await client.finish(b"")
        self._speech.listener.complete()

    async def _stream(self, client: ClientConnection) -> None:
        speech, listener, audio = self._speech, self._speech.listener, self._parsed.audio
        sse, spelling, started = self._parsed.delivery is Delivery.SSE, self._parsed.spelling, False
        media_type = EVENT_STREAM if sse else audio.media_type
        try:
            async for data, chunk in speech.encoded(audio):
                if not started:
                    await client.start({**self._fixed_headers, "Content-Type": media_type, "Cache-Control": "no-store"})
                    started = True
                if sse:
                    ranges = () if speech.segment is None else ((speech.segment.start, speech.segment.end),)
                    data = _delta(data, spelling.places(ranges))
                await client.send(data, math.inf if chunk is None else chunk.seconds)
            done = b""
            if sse:
                numbers = usage(self._input_tokens, listener.frames)
                done = _done(speech.end.reason, numbers, spelling.places(speech.end.incomplete))
            await client.finish(done)
            listener.complete()
        except ApiError as error:
            if not started:
                raise
            request = self._parsed.request
            fields = logs.of_request(request.id, request.traceparent)
            log.warning("request %s failed after %d frames: %s", request.id, listener.frames, error, extra=fields)
            # Without a final chunk the server closes the connection, and the client sees an incomplete transfer.
            if sse:
                await client.finish(error_event(error))


# The events of OpenAI's API. The decoded deltas, concatenated, are the file.


def _event(content: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(content)}\n\n".encode()


def error_event(error: ApiError) -> bytes:
    """The event that ends a stream which failed."""
    return _event({"type": "speech.audio.error", "error": error.body()})


def _delta(data: bytes, places: Sequence[tuple[int, int]]) -> bytes:
    # Base64 needs no JSON escapes, and scanning for them would take longer than everything else here.
    place = b"".join(b', "text_range": [%d, %d]' % each for each in places)
    return b'data: {"type": "speech.audio.delta", "audio": "' + b64encode(data) + b'"' + place + b"}\n\n"


def usage(input_tokens: int, frames: int) -> dict[str, int]:
    """Returns the numbers of text tokens and of frames, as OpenAI's API reports them."""
    return {"input_tokens": input_tokens, "output_tokens": frames, "total_tokens": input_tokens + frames}


def _done(reason: EndReason, numbers: dict[str, int], incomplete: Sequence[tuple[int, int]]) -> bytes:
    places = {"incomplete": incomplete} if incomplete else {}
    return _event({"type": "speech.audio.done", "finish_reason": reason, "usage": numbers, **places})
