"""An utterance of Syrinx: text goes in while it is written, and audio comes out. For the adapters beside this file."""

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

import aiohttp

SAMPLE_RATE = 24_000
"""Samples per second of the audio: 16-bit PCM, mono."""
CONNECT_SECONDS = 10.0
HEARTBEAT_SECONDS = 10.0
CANCEL_SECONDS = 1.0
"""How long to wait for the answer to `cancel`."""
RESUME_SECONDS, RETRY_SECONDS = 7.0, 0.2
"""How long a lost connection can be replaced: the gateway keeps 7 s of audio. And the pause between attempts."""
MAX_LOSSES = 3
"""Connections of an utterance that may be lost."""
STATUS = {"idle_timeout": 408, "text_too_long": 413, "invalid_request_error": 400, "requests": 429}
"""HTTP status by the code or type of an error; that of others is 503."""


class SpeechError(Exception):
    """The gateway has refused the utterance, or failed to speak it. `status` is the HTTP status of such an error."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Utterance:
    """Text that is spoken on a connection of its own.

    base_url: as for OpenAI's clients, with `/v1`. fields: those of a speech request, such as `voice` and `language`.
    """

    def __init__(
        self, session: aiohttp.ClientSession, base_url: str, api_key: str | None, fields: Mapping[str, Any]
    ) -> None:
        self.text = ""
        """All text so far."""
        self.spoken_characters = 0
        """After a cancellation: up to which character the audio goes that was received."""
        self._session = session
        self._url = f"{base_url.rstrip('/')}/audio/speech/stream"
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._can_resume = fields.get("speed") in (None, 1)
        name = {"request_id": uuid.uuid4().hex} if self._can_resume else {}
        self._config = {**fields, **name, "type": "session.config", "text_mode": "tokens", "response_format": "pcm"}
        self._ended = asyncio.Event()
        self._changed = asyncio.Event()
        self._next_sample = 0

    def feed(self, text: str) -> None:
        """Adds text: words with their spaces."""
        self.text += text
        self._changed.set()

    def end(self) -> None:
        """Ends the text."""
        self._ended.set()
        self._changed.set()

    async def wait_end(self) -> None:
        """Waits for the end of the text."""
        await self._ended.wait()

    async def speak(self, on_audio: Callable[[bytes], Awaitable[None]]) -> None:
        """Calls `on_audio` with the audio as it arrives, and returns when all of the text is spoken.

        A lost connection is replaced, and the audio continues at the next sample. When this is cancelled, the gateway
        stops the generation. Raises `SpeechError`, `TimeoutError` or another `OSError`.
        """
        socket = await self._connect()
        losses = 0
        while True:
            try:
                return await self._speak_on(socket, on_audio, is_resumed=losses > 0)
            except ConnectionError:
                losses += 1
                if not self._can_resume or losses > MAX_LOSSES:
                    raise
            socket = await self._reconnect()

    async def _connect(self) -> aiohttp.ClientWebSocketResponse:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await self._session.ws_connect(self._url, headers=self._headers, heartbeat=HEARTBEAT_SECONDS)
        except aiohttp.WSServerHandshakeError as error:
            reason = f"{self._url} answered {error.status} {HTTPStatus(error.status).phrase}"
            raise SpeechError(reason, error.status) from error
        except aiohttp.ClientError as error:
            raise ConnectionError(f"there is no connection to {self._url}: {error}") from error

    async def _reconnect(self) -> aiohttp.ClientWebSocketResponse:
        end = time.monotonic() + RESUME_SECONDS
        while True:
            await asyncio.sleep(RETRY_SECONDS)
            try:
                return await self._connect()
            except OSError:
                if time.monotonic() > end:
                    raise

    async def _speak_on(
        self, socket: aiohttp.ClientWebSocketResponse, on_audio: Callable[[bytes], Awaitable[None]], is_resumed: bool
    ) -> None:
        """Raises `ConnectionError` if the connection is lost."""
        sending: asyncio.Task[None] | None = None
        try:
            if (start := await self._begin(socket, is_resumed)) is not None:
                sending = asyncio.create_task(self._send(socket, start))
            await self._receive(socket, on_audio)
        except (asyncio.CancelledError, SpeechError) as error:
            if sending is not None:
                sending.cancel()
            # Without it the gateway would speak on for 15 s, for a client that comes back.
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(CANCEL_SECONDS):
                    await self._cancel(socket, wait=isinstance(error, asyncio.CancelledError))
            raise
        finally:
            if sending is not None:
                sending.cancel()
            await socket.close()

    async def _begin(self, socket: aiohttp.ClientWebSocketResponse, is_resumed: bool) -> int | None:
        """Configures the utterance. Returns how many characters of the text the gateway has; None if it has all."""
        if is_resumed:
            await socket.send_json({**self._config, "audio_offset": self._next_sample})
            answer = await _message(socket)
            if answer["type"] == "session.resumed":
                return None if answer["ended"] else int(answer["characters"])
            if answer.get("code") != "request_not_found" or self._next_sample:
                raise _speech_error(answer)
        await socket.send_json(self._config)
        return 0

    async def _send(self, socket: aiohttp.ClientWebSocketResponse, start: int) -> None:
        """Sends the text from a character on."""
        with contextlib.suppress(ConnectionError):  # `_receive` reports it.
            while True:
                self._changed.clear()
                if piece := self.text[start:]:
                    await socket.send_json({"type": "input.text", "text": piece})
                    start += len(piece)
                if self._ended.is_set():
                    return await socket.send_json({"type": "input.done"})
                await self._changed.wait()

    async def _receive(
        self, socket: aiohttp.ClientWebSocketResponse, on_audio: Callable[[bytes], Awaitable[None]]
    ) -> None:
        while (message := await _message(socket))["type"] != "session.done":
            if message["type"] == "audio":
                self._next_sample += len(message["pcm"]) // 2
                await on_audio(message["pcm"])
            elif message["type"] in ("audio.start", "audio.segment"):
                self._next_sample = message.get("offset", self._next_sample)
            elif message["type"] == "error":
                raise _speech_error(message)

    async def _cancel(self, socket: aiohttp.ClientWebSocketResponse, wait: bool) -> None:
        await socket.send_json({"type": "cancel"})
        while wait and (message := await _message(socket))["type"] not in ("session.done", "error"):
            self.spoken_characters = message.get("spoken_characters", self.spoken_characters)


async def _message(socket: aiohttp.ClientWebSocketResponse) -> dict[str, Any]:
    """Returns the next message; audio has the type `audio`. Raises `ConnectionError` if the connection is lost."""
    message = await socket.receive()
    if message.type is aiohttp.WSMsgType.BINARY:
        return {"type": "audio", "pcm": message.data}
    if message.type is not aiohttp.WSMsgType.TEXT:
        raise ConnectionError("the connection to the gateway was lost")
    content: dict[str, Any] = json.loads(message.data)
    return content


def _speech_error(message: dict[str, Any]) -> SpeechError:
    by_type = STATUS.get(message["error_type"], 503)
    return SpeechError(message["message"], STATUS.get(message["code"], by_type))
