"""`/v1/audio/speech/ws`: the WebSocket of Nari's server, as tts-bench calls it, in the messages of `SpeechSockets`.

A connection has one utterance, whose text arrives in numbered pieces that are acknowledged.
"""

import json
import re
from typing import Any

import msgspec
from msgspec import Struct
from starlette.types import Message, Receive, Scope, Send

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import EndReason
from syrinx_stages.gateway.audio.encoders import AudioFormat
from syrinx_stages.gateway.errors import ApiError, bad_request, quoted, too_large
from syrinx_stages.gateway.fields.json_objects import decode
from syrinx_stages.gateway.socket import stream_messages
from syrinx_stages.gateway.socket.sender import NORMAL, POLICY, Sender
from syrinx_stages.gateway.socket.stream_messages import MAX_TEXT_MESSAGE, SESSION_FIELDS
from syrinx_stages.gateway.socket.websocket import SpeechSockets

PROTOCOL = "nari.speech.v1"
_ENCODINGS = {AudioFormat.PCM: "pcm_s16le"}
_ONE = "a connection has one utterance"
_START, _APPEND, _END, _CANCEL = "request.start", "input_text.append", "input_text.end", "response.cancel"
_LEFT_OUT = ("type", "error_type", "utterance_index", "sentence_index")
"""Of our errors: what a connection with one utterance does not need, and what `_translated_error` writes itself."""
_OURS = {_APPEND: "input.text", _END: "input.done", _CANCEL: "cancel"}
_THEIRS = {"session.config": _START, "input.text": _APPEND, "input.done": _END}
_OUR_MESSAGE = re.compile(rf"(?<!['\"])\b(?:{'|'.join(map(re.escape, _THEIRS))})\b")
"""In the text of an error, unless it quotes the client."""
_NO_FIELDS = (*SESSION_FIELDS, "stream", "stream_format")
"""Fields that `request.start` does not have: audio is always streamed."""


class NariSockets:
    """The ASGI application of the path."""

    def __init__(self) -> None:
        self._app = SpeechSockets()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs one connection."""
        connection = _Connection(scope["state"]["request"].id, receive, send)
        await self._app(scope, connection.receive, connection.send)


class _Sent(Struct, frozen=True):
    """A client's message; of `request.start` only its type."""

    type: str
    sequence: int | None = None
    text: str | None = None


class _Connection:
    """Translates the messages of one connection."""

    def __init__(self, request_id: str, receive: Receive, send: Send) -> None:
        self._id = request_id
        self._receive = receive
        self._sender = Sender(send)
        self._answer: dict[str, Any] | None = None
        """To the message that is being handled, if no error is."""
        self._pieces: int | None = None
        """Of the text so far; None before `request.start`."""
        self._ended = False
        """The text is complete."""
        self._chunks = 0
        self._reason: str = EndReason.STOP
        """As it is of a text without words."""

    async def receive(self) -> Message:
        """Returns the next message of the client. The one before has been handled, and is acknowledged."""
        await self._acknowledge()
        message = await self._receive()
        if (text := message.get("text")) is None:
            return message
        try:
            return {"type": "websocket.receive", "text": self._translated(text)}
        except ApiError as error:
            await self._fail(stream_messages.error_message(error))
            return await self._receive()

    async def send(self, message: Message) -> None:
        """Sends a message of ours in the client's terms."""
        if message["type"] == "websocket.accept":
            await self._sender.message({**message, "subprotocol": PROTOCOL})
            await self._sender.json({"type": "session.created", "protocol": PROTOCOL, "audio": _audio()})
        elif (text := message.get("text")) is not None:
            await self._send(json.loads(text))
        else:
            self._chunks += message.get("bytes") is not None
            await self._sender.message(message)

    async def _acknowledge(self) -> None:
        if self._answer is not None:
            answer, self._answer = self._answer, None
            await self._sender.json(answer)

    def _translated(self, data: str) -> str:
        if len(data) > MAX_TEXT_MESSAGE:
            raise too_large("message", f"is larger than {MAX_TEXT_MESSAGE // 1024} KB; keep the voice, and name it")
        sent = decode(data.encode(), _Sent, "message")
        if sent.type == _START:
            if self._pieces is not None:
                raise bad_request("type", f"{_START} was sent before; {_ONE}", "utterance_in_progress")
            self._pieces, self._answer = 0, {"type": "request.configured", "request_id": self._id}
            fields = decode(data.encode(), dict[str, Any], "message")
            named = (each for each in _NO_FIELDS if fields.get(each) is not None and fields[each] is not False)
            if (name := next(named, None)) is not None:
                raise bad_request(name, f"is not a field of {_START}; leave it out", "unknown_field")
            return json.dumps({**fields, "type": "session.config", "text_mode": "tokens"})
        if sent.type not in _OURS:
            accepted = ", ".join((_START, *_OURS))
            raise bad_request("type", f"{quoted(sent.type)} is unknown; accepted: {accepted}")
        if self._pieces is None:
            raise bad_request("type", f"the first message must be {_START}", "not_configured")
        if sent.type != _CANCEL:
            if self._ended:
                raise bad_request("type", f"the text has ended; {_ONE}", "closing")
            if sent.sequence is None:
                raise bad_request("sequence", f"is required; the next one is {self._pieces}", "missing_field")
            if sent.sequence != self._pieces:
                raise bad_request("sequence", f"is {sent.sequence}; the next one is {self._pieces}")
            self._answer = {"type": "input_text.ack", "event": sent.type, "sequence": self._pieces}
            self._pieces += 1
            self._ended = sent.type == _END
        return msgspec.json.encode({"type": _OURS[sent.type], "text": sent.text}).decode()

    async def _send(self, ours: dict[str, Any]) -> None:
        match ours["type"]:
            case "audio.start" if "format" in ours:
                audio = _audio(AudioFormat(ours["format"]), ours["sample_rate"])
                await self._sender.json({"type": "response.started", "request_id": self._id, "audio": audio})
            case "warning" if self._answer is not None:
                self._answer.setdefault("warnings", []).append(ours["message"])
            case "audio.done":
                self._reason = ours["finish_reason"]
            case "session.done":
                # A text without words ends before the next message is awaited.
                await self._acknowledge()
                done = {"type": "response.done", "request_id": self._id, "stop_reason": self._reason}
                await self._sender.json({**done, "audio_chunks": self._chunks})
                await self._sender.close(NORMAL)
            case "error":
                await self._fail(ours)

    async def _fail(self, error: dict[str, Any]) -> None:
        self._answer = None
        await self._sender.json(_translated_error(error))
        await self._sender.close(POLICY, error["code"] or "")


def error_message(error: ApiError) -> dict[str, Any]:
    """Returns the message that reports an error."""
    return _translated_error(stream_messages.error_message(error))


def _translated_error(ours: dict[str, Any]) -> dict[str, Any]:
    named = {name: value for name, value in ours.items() if name not in _LEFT_OUT}
    message = _OUR_MESSAGE.sub(lambda found: _THEIRS[found[0]], ours["message"])
    return {"type": "error", "error": {**named, "message": message, "type": ours["error_type"]}}


def _audio(encoding: AudioFormat = AudioFormat.PCM, rate: int = FAMILY.sample_rate) -> dict[str, Any]:
    """Returns how the audio is encoded."""
    return {"encoding": _ENCODINGS.get(encoding, encoding), "sample_rate": rate, "channels": 1}
