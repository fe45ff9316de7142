"""Speaks one text on a WebSocket: admits a request for it, sends the audio, and reports how it ended."""

import time
import uuid
from typing import Any

from msgspec import structs
from starlette.requests import HTTPConnection

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import EndReason, Segment, SpeechRequest
from syrinx_stages.gateway.audio.encoders import AudioFormat, AudioOptions
from syrinx_stages.gateway.clients.access import use_allowance
from syrinx_stages.gateway.clients.client import client_key
from syrinx_stages.gateway.errors import ApiError, bad_request
from syrinx_stages.gateway.service import GatewayService
from syrinx_stages.gateway.socket.sender import Sender
from syrinx_stages.gateway.socket.stream_messages import Place, SessionConfig, audio_start, error_message
from syrinx_stages.gateway.speech.live_text import LiveText
from syrinx_stages.gateway.speech.request import ParsedRequest, lexicon_of, traced
from syrinx_stages.gateway.speech.speech import SpeechStream
from syrinx_stages.gateway.speech.submission import Resumption
from syrinx_stages.gateway.speech.texts import check_respelled
from syrinx_stages.gateway.speech.trace import SpeechSpan
from syrinx_stages.gateway.voices.kept_voices import Cloned
from syrinx_stages.normalization.lexicon import Respelled
from syrinx_stages.normalization.plain import has_words
from syrinx_stages.runtime.clock import monotonic

BINARY_BYTES = 512 * 1024
"""Bytes of a binary message, at most: clients' libraries accept 1 MiB by default."""
_RESUMABLE = AudioOptions(AudioFormat.PCM)
"""The audio of utterances that another connection may continue: its samples are those of the model."""


async def check_config(service: GatewayService, http: HTTPConnection, config: SessionConfig) -> SpeechRequest:
    """Returns how a configuration's texts are read, see `LiveText`. Raises `ApiError` if none can be spoken with it."""
    # Its lexicon is for the texts that come.
    fields = structs.replace(config.fields, input="Hello.", lexicon=None)
    with config.sent.naming():
        parsed, _ = await service.parse(fields, "check", time.time(), client_key(http))
        if config.request_id is not None:
            _check_resumable(parsed.audio)
    return structs.replace(parsed.request, lexicon=lexicon_of(config.fields, service.catalog))


def _check_resumable(audio: AudioOptions) -> None:
    """Raises `ApiError` 400 for audio whose samples are not those of the model."""
    for field, name in (("response_format", "format"), ("sample_rate", "rate"), ("speed", "speed")):
        if getattr(audio, name) != getattr(_RESUMABLE, name):
            message = f"an utterance with a request_id needs pcm at {FAMILY.sample_rate:,} Hz and speed 1"
            raise bad_request(field, message)


class Utterance:
    """One text: whole, or a `LiveText`. `run` sends `audio.start`, the audio and `audio.done`."""

    def __init__(
        self,
        service: GatewayService,
        http: HTTPConnection,
        sender: Sender,
        place: Place,
        config: SessionConfig,
        text: str | LiveText,
        resumption: Resumption | None = None,
    ) -> None:
        """`resumption`: of a request which may be continued on another connection, or is."""
        self._service = service
        self._http = http
        self._sender = sender
        self._place = place
        self._config = config
        self.text = text
        self._resumption = resumption or Resumption()
        self._request: SpeechRequest | None = None
        self._stream: SpeechStream | None = None
        self._spelling: Respelled | None = None
        """How a whole text is spelled."""
        self._first_segment: int | None = None
        """The first one of which this connection has audio."""
        self._segments = 0
        """Those whose places the client knows, with those before the first one."""
        self._started = self._finished = False
        self._bytes = 0

    async def run(self) -> None:
        """Speaks the text. An error is reported to the client and not raised."""
        span: SpeechSpan | None = None
        try:
            if isinstance(self.text, LiveText):
                await self.text.wait_startable()
                if not has_words(self.text.text):
                    return
            with use_allowance(self._service.api_keys):
                if self._service.tracer is not None:
                    span = SpeechSpan(self._service.tracer, self._http.scope)
                await self._speak(span)
        except ApiError as error:
            if span is not None:
                span.set_status(error.status)
            await self.failed(error)
        finally:
            if span is not None:
                span.end()

    def discard(self) -> None:
        """Makes the release of its request immediate: the client does not come back for it."""
        self._resumption.is_discarded = True

    async def failed(self, error: ApiError) -> None:
        """Reports an error. If it is not that of `run`, `run` was cancelled before."""
        await self._start()
        await self._sender.json(error_message(error, self._place))
        await self._done("error")

    async def cancelled(self) -> None:
        """Reports that the client has cancelled the utterance; `run` was cancelled before."""
        if self._finished:
            return
        await self._start()
        await self._done("canceled")

    @property
    def _text_so_far(self) -> str:
        return self.text.text if isinstance(self.text, LiveText) else self.text

    async def _speak(self, span: SpeechSpan | None) -> None:
        accepted, text = monotonic(), self.text if isinstance(self.text, LiveText) else None
        if (continued := self._resumption.queued) is not None:
            request, audio, voice = continued.request, _RESUMABLE, None
        else:
            with self._service.counting_refusals(live=True):
                parsed, voice = await self._prepare(span)
            request, audio = parsed.request, parsed.audio
            if text is None:
                self._spelling = parsed.spelling
            else:
                text.restart(len(request.text))
        self._request = request
        async with self._service.open_stream(
            request, voice, accepted, audio.speed, span, text, self._resumption
        ) as stream:
            self._stream = stream
            await (self._send_stream(stream, audio) if self._config.stream_audio else self._send_whole(stream, audio))

    async def _prepare(self, span: SpeechSpan | None) -> tuple[ParsedRequest, Cloned | None]:
        """Returns the request. Raises `ApiError`, also for a client that was refused just now."""
        service = self._service
        service.check_open()
        if (refusal := service.refusals.recent(client_key(self._http), monotonic())) is not None:
            raise refusal.error
        text, request_id = self._text_so_far, self._resumption.request_id or uuid.uuid4().hex
        fields = structs.replace(self._config.fields, input=text)
        if isinstance(self.text, LiveText):
            fields = structs.replace(fields, lexicon=None)
        with self._config.sent.naming():
            parsed, kept = await service.parse(fields, request_id, time.time(), client_key(self._http))
            if isinstance(self.text, LiveText):
                check_respelled(self.text.respelled)
                # The talker respells and divides it as it arrives.
                parsed = parsed.with_fields(text=text, lexicon=self.text.request.lexicon, streams_text=True)
            return await service.clone(self._config.fields, traced(parsed, span, service.catalog.model), kept)

    async def _send_whole(self, stream: SpeechStream, audio: AudioOptions) -> None:
        file, _ = await stream.file(audio)
        await self._start(audio)
        await self._send_binary(b"".join(file))
        stream.listener.complete()
        await self._done(stream.end.reason)

    async def _send_stream(self, stream: SpeechStream, audio: AudioOptions) -> None:
        async for data, chunk in stream.encoded(audio):
            await self._start(audio)
            if chunk is not None:
                await self._send_places(stream, audio.speed)
            await self._send_binary(data)
        await self._send_places(stream, audio.speed)
        stream.listener.complete()
        await self._done(stream.end.reason)

    async def _send_binary(self, data: bytes) -> None:
        for start in range(0, len(data), BINARY_BYTES):
            piece = data[start : start + BINARY_BYTES]
            await self._sender.binary(piece)
            self._bytes += len(piece)

    async def _start(self, audio: AudioOptions | None = None) -> None:
        """Sends `audio.start`, unless it was sent. Without audio, in the case of an error, it has no format."""
        if self._started:
            return
        self._started = True
        if audio is None or self._request is None:
            await self._sender.json(self._place.message("audio.start", sentence_text=self._text_so_far))
        else:
            message = audio_start(self._place, self._text_so_far, audio, self._request.seed)
            if self._resumption.token and self._stream is not None:
                message["offset"] = self._stream.offset
            await self._sender.json(message)

    async def _send_places(self, stream: SpeechStream, speed: float) -> None:
        """Sends the place in the text of the segment whose audio comes, unless the client has it.

        That of the first segment of a `LiveText` is sent once its end is known, at the latest before the second one.
        """
        if (segment := stream.segment) is None or self._request is None or not self._request.is_divided:
            return
        if self._first_segment is None:
            self._first_segment = self._segments = segment.number
        start_ms = round(1000 * stream.listener.samples / FAMILY.sample_rate / speed)
        for number in range(self._segments, segment.number + 1):
            if (place := self._place_of(number, segment)) is None:
                return
            self._segments = number + 1
            content: dict[str, Any] = {"text_range": place, "start_ms": start_ms}
            if number == self._first_segment:
                content["start_ms"] = 0
            elif self._resumption.token:
                content["offset"] = stream.segment_offset
            await self._sender.json(self._place.message("audio.segment", **content))

    def _place_of(self, number: int, segment: Segment) -> tuple[int, int] | None:
        if isinstance(self.text, LiveText):
            return self.text.place(number)
        assert self._spelling is not None
        (place,) = self._spelling.places([(segment.start, segment.end)])
        return place

    async def _done(self, reason: str) -> None:
        self._finished = True
        frames = 0 if self._stream is None else self._stream.listener.frames
        content: dict[str, Any] = {"total_bytes": self._bytes, "error": reason == "error", "finish_reason": reason}
        if isinstance(self.text, LiveText):
            content |= {"frames": frames, "spoken_characters": self._spoken_characters(self.text, reason, frames)}
        await self._sender.json(self._place.message("audio.done", **content))

    def _spoken_characters(self, text: LiveText, reason: str, frames: int) -> int:
        """Returns up to which character the text is spoken with the frames that the client has got."""
        if reason in (EndReason.STOP, EndReason.INCOMPLETE):
            return len(text.text)
        return text.spoken_characters(frames, None if self._stream is None else self._stream.segment)
