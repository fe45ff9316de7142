"""How a request's audio goes out: whole, as raw bytes or as server-sent events, until the client has it or leaves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from base64 import b64encode
from collections.abc import Coroutine
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.gateway.encoders import MEDIA_TYPES, Format, encode, stream_header
from syrinx_stages.gateway.errors import ApiError
from syrinx_stages.gateway.order import Delivery, Order
from syrinx_stages.gateway.service import GatewayService
from syrinx_stages.gateway.speech import Speech
from syrinx_stages.gateway.speed import stretch

log = logging.getLogger(__name__)

SEND_SECONDS = 60.0
"""A client that takes nothing for this long has left."""
PIECE_BYTES = 64 * 1024
"""Of a whole file that is sent at once."""


class Framing(Protocol):
    """How a stream's PCM is wrapped. `first` is true for the first piece."""

    media_type: str

    def audio(self, pcm: bytes, first: bool) -> bytes:
        """One chunk."""

    def done(self, frames: int) -> bytes:
        """What follows the last chunk."""

    def error(self, error: ApiError) -> bytes | None:
        """What says that it failed half-way; None if the format has no words for it."""


class RawFraming:
    """The file's own bytes. A failure can only be told by cutting the transfer off."""

    def __init__(self, form: Format) -> None:
        self.media_type = MEDIA_TYPES[form]
        self._header = stream_header(form)

    def audio(self, pcm: bytes, first: bool) -> bytes:
        """Header and PCM."""
        return self._header + pcm if first else pcm

    def done(self, frames: int) -> bytes:
        """Nothing."""
        return b""

    def error(self, error: ApiError) -> bytes | None:
        """No words."""
        return None


class SseFraming:
    """OpenAI's events; the decoded deltas one after the other are the file."""

    media_type = "text/event-stream"

    def __init__(self, form: Format, input_tokens: int) -> None:
        self._header = stream_header(form)
        self._input_tokens = input_tokens

    def audio(self, pcm: bytes, first: bool) -> bytes:
        """`speech.audio.delta`."""
        data = self._header + pcm if first else pcm
        # Base64 needs no escapes: looking for some would take longer than all the rest.
        return b'data: {"type": "speech.audio.delta", "audio": "' + b64encode(data) + b'"}\n\n'

    def done(self, frames: int) -> bytes:
        """`speech.audio.done`: text tokens in, frames out."""
        total = self._input_tokens + frames
        usage = {"input_tokens": self._input_tokens, "output_tokens": frames, "total_tokens": total}
        return _event({"type": "speech.audio.done", "usage": usage})

    def error(self, error: ApiError) -> bytes | None:
        """`speech.audio.error`."""
        return _event({"type": "speech.audio.error", "error": error.body()})


def _event(content: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(content)}\n\n".encode()


class ClientLeft(Exception):
    """Nobody is there to send to."""


class Client:
    """The other end of one HTTP exchange."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._left = False

    async def serve(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work`, and cancels it as soon as the client has left. Raises what else `work` raises."""
        working = asyncio.create_task(work)
        leaving = asyncio.create_task(self._watch())
        try:
            await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                with contextlib.suppress(ClientLeft):
                    working.result()
        finally:
            working.cancel()
            leaving.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)

    async def start(self, headers: dict[str, str]) -> None:
        """Sends the status line and the headers."""
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": raw})

    async def body(self, data: bytes) -> None:
        """Returns when the transport has taken the bytes. Raises `ClientLeft`, also if it takes nothing for long."""
        await self._body(data, more=True)
        # The server drops what is sent to a lost connection without a word, and the watcher learns of it only now.
        await asyncio.sleep(0)
        if self._left:
            raise ClientLeft

    async def finish(self, data: bytes) -> None:
        """Sends the last bytes. Raises `ClientLeft` if the client takes nothing for long."""
        await self._body(data, more=False)

    async def _body(self, data: bytes, more: bool) -> None:
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await self._send({"type": "http.response.body", "body": data, "more_body": more})
        except TimeoutError:
            raise ClientLeft from None

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._left = True


class SpeechResponse(Response):
    """Submits the order once the server is ready to send, and delivers what comes.

    Nothing is sent before the first audio has arrived, so that a failure until then is an ordinary error response.
    """

    def __init__(self, service: GatewayService, order: Order, reference: bytes | None, accepted: float) -> None:
        super().__init__()
        self._service = service
        self._order = order
        self._reference = reference
        self._accepted = accepted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves the request. Raises `ApiError` if it fails before anything was sent."""
        client = Client(receive, send)
        async with self._service.speak(self._order.request, self._reference, self._accepted) as speech:
            if self._order.delivery is Delivery.WHOLE:
                await client.serve(self._whole(speech, client))
            else:
                await client.serve(self._stream(speech, client))

    def _identity(self) -> dict[str, str]:
        request = self._order.request
        return {"X-Request-Id": request.id, "X-Seed": str(request.seed)}

    async def _whole(self, speech: Speech, client: Client) -> None:
        pcm = bytearray()
        async for chunk in speech.audio():
            pcm += chunk.pcm
            speech.handed(chunk)
        seconds, body = await asyncio.to_thread(self._render, bytes(pcm))
        assert speech.reason is not None
        facts = {"X-Finish-Reason": speech.reason, "X-Audio-Seconds": f"{seconds:.3f}"}
        kind = {"Content-Type": MEDIA_TYPES[self._order.form], "Content-Length": str(len(body))}
        await client.start({**self._identity(), **facts, **kind})
        for start in range(0, len(body), PIECE_BYTES):
            await client.body(body[start : start + PIECE_BYTES])
        await client.finish(b"")
        speech.complete()

    def _render(self, pcm: bytes) -> tuple[float, bytes]:
        if self._order.speed != 1.0:
            pcm = stretch(pcm, self._order.speed)
        return len(pcm) / 2 / FAMILY.sample_rate, encode(pcm, self._order.form)

    def _framing(self) -> Framing:
        if self._order.delivery is Delivery.SSE:
            return SseFraming(self._order.form, self._service.input_tokens(self._order.request))
        return RawFraming(self._order.form)

    async def _stream(self, speech: Speech, client: Client) -> None:
        framing = self._framing()
        started = False
        try:
            async for chunk in speech.audio():
                if not started:
                    await client.start(self._stream_headers(framing))
                data = framing.audio(chunk.pcm, first=not started)
                started = True
                await client.body(data)
                speech.handed(chunk)
            await client.finish(framing.done(speech.frames))
            speech.complete()
        except ApiError as error:
            if not started:
                raise
            log.warning("request %s failed after %d frames: %s", self._order.request.id, speech.frames, error)
            # Without a last piece the server closes the connection: the client sees a transfer cut short.
            if (words := framing.error(error)) is not None:
                await client.finish(words)

    def _stream_headers(self, framing: Framing) -> dict[str, str]:
        return {**self._identity(), "Content-Type": framing.media_type, "Cache-Control": "no-store"}
