"""`/v1/audio/speech/stream`: a WebSocket on which text arrives in pieces and audio is sent. The shell of `Session`."""

import asyncio
import contextlib
import logging
import uuid
from collections import deque

from starlette.requests import HTTPConnection
from starlette.types import Message, Receive, Scope, Send

from syrinx_stages.contract.messages import SpeechRequest
from syrinx_stages.gateway.cells.cell import Queued
from syrinx_stages.gateway.clients.access import KEY_PROTOCOL
from syrinx_stages.gateway.clients.client import voice_owner
from syrinx_stages.gateway.clients.origins import check_origin
from syrinx_stages.gateway.errors import ApiError, bad_request, error_response, internal_error
from syrinx_stages.gateway.http.active_requests import ActiveRequest
from syrinx_stages.gateway.http.delivery import ClientDisconnected
from syrinx_stages.gateway.service import GatewayService
from syrinx_stages.gateway.socket.sender import INTERNAL, NORMAL, POLICY, RESTART, Sender
from syrinx_stages.gateway.socket.session import Action, Begin, Done, EndText, Feed, Session, Speak
from syrinx_stages.gateway.socket.stream_messages import (
    SessionConfig,
    TextMode,
    error_message,
    message_type,
    parse_config,
    parse_message,
    session_configured,
    session_done,
    session_resumed,
)
from syrinx_stages.gateway.socket.utterance import Utterance, check_config
from syrinx_stages.gateway.speech.live_text import LiveText
from syrinx_stages.gateway.speech.submission import Resumption
from syrinx_stages.runtime.clock import monotonic

log = logging.getLogger(__name__)

IDLE_SECONDS = 30.0
"""How long a connection may be without a message while nothing is spoken, and an utterance without text."""
POLL_SECONDS = 0.05
"""How often a connection that is to be closed checks whether everything is spoken."""
SMALL_MESSAGE = 64 * 1024
"""Bytes of a message that is parsed in the event loop."""
PART_CHARACTERS = 4096
"""Characters that are divided into sentences at once."""
LIVE_CHARACTERS = 32
"""Characters of a `LiveText` that are read at once: a number takes some 0.3 ms."""
MAX_WAITING = 256
"""Sentences and ends of utterances that wait, at most."""


def _full_id(name: str) -> str:
    """Returns the id of the request that a client calls by a name: those of different API keys do not meet."""
    return f"named-{voice_owner()}-{name}"


class SpeechSockets:
    """The ASGI application of the path."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs one connection."""
        service: GatewayService = scope["state"]["service"]
        http = HTTPConnection(scope)
        try:
            check_origin(http, service.cors_origins)
        except ApiError as error:
            return await error_response(error)(scope, receive, send)
        # A browser requires one of the subprotocols that it has offered.
        offered = [each for each in scope.get("subprotocols", ()) if not each.startswith(KEY_PROTOCOL)]
        await send({"type": "websocket.accept", "subprotocol": offered[0] if offered else None})
        await _Connection(service, http, scope["state"]["request"], receive, send).run()


class _Connection:
    """One connection: a loop that receives messages, and a task that speaks one utterance after the other."""

    def __init__(
        self, service: GatewayService, http: HTTPConnection, request: ActiveRequest, receive: Receive, send: Send
    ) -> None:
        self._service = service
        self._http = http
        self._request = request
        self._receive = receive
        self._session = Session()
        self._sender = Sender(send)
        self._work: deque[Utterance | Done] = deque()
        """What is to be spoken and reported, in order."""
        self._work_added = asyncio.Event()
        self._speaking: tuple[Utterance, asyncio.Task[None]] | None = None
        self._text: LiveText | None = None
        """Of the utterance that the client is sending."""
        self._live: SpeechRequest | None = None
        """How texts are read with `TextMode.TOKENS`, see `LiveText`; None without."""
        self._closing = False
        """The client wants the connection closed."""
        self._token = uuid.uuid4().hex
        self._last_message = monotonic()

    @property
    def _busy(self) -> bool:
        """Whether anything is to be spoken."""
        return bool(self._speaking or self._work)

    async def run(self) -> None:
        """Runs until the client or the gateway closes the connection."""
        speaker = asyncio.create_task(self._speak_all())
        receiver = asyncio.create_task(self._receive_all())
        try:
            await asyncio.wait((speaker, receiver), return_when=asyncio.FIRST_COMPLETED)
            code, reason = receiver.result() if receiver.done() else (INTERNAL, "")
            if speaker.done():
                speaker.result()
            await self._sender.close(code, reason)
        except ClientDisconnected:
            pass
        except Exception:
            log.exception("connection %s failed", self._request.id)
            with contextlib.suppress(ClientDisconnected):
                await self._sender.json(error_message(internal_error("the gateway failed to process this connection")))
                await self._sender.close(INTERNAL)
        finally:
            tasks = [speaker, receiver, *((self._speaking[1],) if self._speaking else ())]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # Receiving ---------------------------------------------------------------------------------------------------

    async def _receive_all(self) -> tuple[int, str]:
        """Handles messages. Returns the code and the reason with which to close the connection."""
        receiving: asyncio.Future[Message] | None = None
        drain = asyncio.create_task(self._service.requests.drain_started.wait())
        try:
            while True:
                receiving = receiving or asyncio.ensure_future(self._receive())
                waiting = (receiving,) if drain.done() else (receiving, drain)
                await asyncio.wait(waiting, timeout=self._patience(), return_when=asyncio.FIRST_COMPLETED)
                if receiving.done():
                    message, receiving = receiving.result(), None
                    await self._handle(message)
                if self._closing and not self._busy:
                    return NORMAL, ""
                if self._service.requests.draining and not (self._busy or self._session.is_open):
                    return RESTART, "the gateway is shutting down"
                if self._is_idle():
                    return await self._end_idle()
        finally:
            drain.cancel()
            if receiving is not None:
                receiving.cancel()

    def _patience(self) -> float:
        """Returns for how many seconds to wait for a message before the other conditions are checked."""
        left = max(0.0, self._last_message + IDLE_SECONDS - monotonic()) + 0.01
        return min(left, POLL_SECONDS) if self._closing or self._service.requests.draining else left

    def _is_idle(self) -> bool:
        if monotonic() - self._last_message < IDLE_SECONDS:
            return False
        if self._busy and self._text is None:
            self._last_message = monotonic()
            return False
        return True

    async def _end_idle(self) -> tuple[int, str]:
        reason = f"no message for {IDLE_SECONDS:.0f} s"
        if self._session.is_open:
            reason = f"no text for {IDLE_SECONDS:.0f} s; end an utterance with input.done"
        await self._cancel_speech(error=bad_request("text", reason, "idle_timeout"))
        if not self._session.is_open:
            await self._sender.json(error_message(ApiError(408, reason, code="idle_timeout")))
        return POLICY, reason

    async def _handle(self, message: Message) -> None:
        """Handles one message. Raises `ClientDisconnected`."""
        if message["type"] == "websocket.disconnect":
            raise ClientDisconnected
        if message["type"] == "websocket.connect":
            return
        try:
            data = message.get("text")
            if data is None:
                raise bad_request(None, "binary messages are not accepted; send JSON as text", "invalid_json")
            await self._handle_text(data)
        except ApiError as error:
            await self._sender.json(error_message(error))

    async def _handle_text(self, data: str) -> None:
        large = len(data) > SMALL_MESSAGE
        kind = await asyncio.to_thread(message_type, data) if large else message_type(data)
        if kind == "session.config":
            await self._configure(data)
            self._last_message = monotonic()
            return
        message = parse_message(data)
        if self._closing and message.type != "cancel":
            raise bad_request("type", "the connection closes after what is being spoken", "closing")
        if len(self._work) >= MAX_WAITING and message.type in ("input.text", "input.done"):
            raise bad_request(
                "type", f"{len(self._work):,} utterances wait; wait for session.done", "too_many_utterances"
            )
        match message.type:
            case "input.text":
                await self._add_text(message.text or "")
            case "input.done":
                self._act(self._session.finish())
                if self._session.config is not None and self._session.config.is_single:
                    await self._begin_close()
            case "cancel":
                await self._cancel()
            case _:
                await self._begin_close()
        if self._text is None or message.text:
            # Within an utterance only text counts: its row is held meanwhile.
            self._last_message = monotonic()

    async def _begin_close(self) -> None:
        """Lets what is complete be spoken, and drops the rest."""
        self._closing = True
        if self._text is not None:
            self._text = None
            await self._cancel_speech()

    async def _add_text(self, text: str) -> None:
        """Adds text in parts: dividing a large one holds the event loop."""
        self._session.check_text(text)
        size = PART_CHARACTERS if self._live is None else LIVE_CHARACTERS
        for start in range(0, len(text), size):
            self._act(self._session.add_text(text[start : start + size]))
            await asyncio.sleep(0)

    async def _configure(self, data: str) -> None:
        self._session.check_between()
        large = len(data) > SMALL_MESSAGE
        config = await asyncio.to_thread(parse_config, data) if large else parse_config(data)
        live = await check_config(self._service, self._http, config)
        if config.audio_offset is None:
            self._session.configure(config)
        else:
            await self._resume(config)
        self._live = live if config.text_mode is TextMode.TOKENS else None
        if config.is_single:
            await self._sender.json(session_configured(self._request.id, config))
        for warning in config.sent.warnings:
            await self._sender.json({"type": "warning", "message": warning})

    async def _resume(self, config: SessionConfig) -> None:
        """Continues an utterance that began on another connection. Raises `ApiError`."""
        assert config.request_id is not None
        if (found := await self._service.attach(_full_id(config.request_id), self._token)) is None:
            message = "there is no such utterance in progress; send its text again, without audio_offset"
            raise ApiError(404, f"request_id: {message}", param="request_id", code="request_not_found")
        queued, text = found
        self._session.configure(config)
        [begin, *done] = self._session.resume(len(text.text), text.ended)
        assert isinstance(begin, Begin)
        await self._sender.json(session_resumed(config.request_id, len(text.text), text.ended))
        self._text = None if text.ended else text
        self._add(begin, text, queued)
        self._act(done)

    def _add(self, begin: Begin, text: LiveText, queued: Queued | None = None) -> None:
        """Adds an utterance that is spoken while its text arrives. queued: if it began on another connection."""
        resumption = Resumption()
        if begin.request_id is not None:
            first_sample = begin.config.audio_offset or 0
            resumption = Resumption(self._token, _full_id(begin.request_id), queued, first_sample)
        self._work.append(
            Utterance(self._service, self._http, self._sender, begin.place, begin.config, text, resumption)
        )

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Begin():
                    assert self._live is not None
                    self._text = self._service.open_text(self._live)
                    self._add(action, self._text)
                case Speak(place, config, text):
                    self._work.append(Utterance(self._service, self._http, self._sender, place, config, text))
                case Feed(text):
                    assert self._text is not None
                    self._text.feed(text)
                case EndText():
                    assert self._text is not None
                    self._text.end()
                    self._text = None
                case _:
                    self._work.append(action)
        if self._work:
            # A drain lets it finish.
            self._service.requests.set_received(self._request)
        self._work_added.set()

    # Speaking ----------------------------------------------------------------------------------------------------

    async def _speak_all(self) -> None:
        """Speaks and reports what is to be, in order."""
        while True:
            await self._work_added.wait()
            self._work_added.clear()
            while self._work:
                work = self._work.popleft()
                if isinstance(work, Done):
                    await self._sender.json(session_done(work.utterance, work.sentences))
                    self._last_message = monotonic()
                else:
                    await self._run(work)

    async def _run(self, utterance: Utterance) -> None:
        self._forget(utterance)
        task = asyncio.create_task(utterance.run())
        self._speaking = utterance, task
        try:
            await asyncio.wait((task,))
            if not task.cancelled():
                task.result()
        finally:
            self._speaking = None

    def _forget(self, work: Utterance | Done) -> None:
        """Records that a sentence no longer waits."""
        if isinstance(work, Utterance) and isinstance(work.text, str):
            self._session.spoken(work.text)

    async def _cancel(self) -> None:
        """Stops what is being spoken, and drops what waits. Raises `ApiError` if there is nothing to cancel."""
        pending = [work for work in self._work if isinstance(work, Done)]
        actions = self._session.cancel()
        if not (self._speaking or pending or actions):
            raise bad_request("type", "nothing is being spoken", "nothing_to_cancel")
        for work in self._work:
            self._forget(work)
        self._work.clear()
        self._text = None
        await self._cancel_speech()
        self._work.extend(pending)
        self._act(actions)

    async def _cancel_speech(self, error: ApiError | None = None) -> None:
        """Stops what is being spoken, and reports it."""
        if self._speaking is None:
            if error is not None and self._session.is_open:
                await self._sender.json(error_message(error))
            return
        utterance, task = self._speaking
        if task.done():
            return
        utterance.discard()
        task.cancel()
        await (utterance.cancelled() if error is None else utterance.failed(error))
