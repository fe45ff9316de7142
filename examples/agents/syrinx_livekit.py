"""Text-to-speech of LiveKit Agents with Syrinx: the words of an LLM are spoken while it writes them."""

import asyncio
from typing import Any, Literal, NamedTuple

import aiohttp
from livekit.agents import (
    DEFAULT_API_CONNECT_OPTIONS,
    APIConnectionError,
    APIConnectOptions,
    APIStatusError,
    APITimeoutError,
    tts,
    utils,
)
from syrinx_utterance import SAMPLE_RATE, SpeechError, Utterance


class Interrupted(NamedTuple):
    """The argument of the event `interrupted`: a stream was closed before its end."""

    text: str
    """All text that was pushed."""
    spoken_characters: int
    """Up to which character of `text` the received audio goes, to within a few words."""


class TTS(tts.TTS[Literal["interrupted"]]):
    """Speaks with Syrinx.

    base_url: as for OpenAI's clients, with `/v1`. fields: those of a speech request, such as `voice` and `language`.
    """

    def __init__(
        self,
        *,
        base_url: str = "http://localhost:8000/v1",
        api_key: str | None = None,
        http_session: aiohttp.ClientSession | None = None,
        **fields: Any,
    ) -> None:
        capabilities = tts.TTSCapabilities(streaming=True)
        super().__init__(capabilities=capabilities, sample_rate=SAMPLE_RATE, num_channels=1)
        self._base_url = base_url
        self._api_key = api_key
        self._http_session = http_session
        self._fields = fields

    @property
    def model(self) -> str:
        """The model's name in LiveKit's metrics."""
        return str(self._fields.get("model") or "default")

    @property
    def provider(self) -> str:
        """The name in LiveKit's metrics."""
        return "Syrinx"

    def update_options(self, **fields: Any) -> None:
        """Changes fields of the next streams, such as `voice`."""
        self._fields |= fields

    def stream(self, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS) -> "SynthesizeStream":
        """Returns a stream that speaks text while it is pushed, up to a flush."""
        return SynthesizeStream(tts=self, conn_options=conn_options)

    def synthesize(
        self, text: str, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS
    ) -> tts.ChunkedStream:
        """Returns the audio of a complete text."""
        return self._synthesize_with_stream(text, conn_options=conn_options)

    def utterance(self) -> Utterance:
        """Returns a new utterance with the current fields."""
        session = self._http_session or utils.http_context.http_session()
        return Utterance(session, self._base_url, self._api_key, self._fields)


class SynthesizeStream(tts.SynthesizeStream):
    """Speaks one segment. Closing it before the end stops the speech and its generation."""

    _tts: TTS

    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        """Raises `APIError`. The SDK then runs this again with the same text, unless there was audio."""
        segment = utils.shortuuid()
        output_emitter.initialize(
            request_id=segment, sample_rate=SAMPLE_RATE, num_channels=1, mime_type="audio/pcm", stream=True
        )
        output_emitter.start_segment(segment_id=segment)
        utterance = self._tts.utterance()
        reading = asyncio.create_task(self._read(utterance))

        async def emit(audio: bytes) -> None:
            output_emitter.push(audio)

        try:
            await utterance.speak(emit)
        except asyncio.CancelledError:
            self._tts.emit("interrupted", Interrupted(utterance.text, utterance.spoken_characters))
            raise
        except SpeechError as error:
            raise APIStatusError(str(error), status_code=error.status) from error
        except TimeoutError as error:
            raise APITimeoutError("the gateway did not answer") from error
        except OSError as error:
            raise APIConnectionError(str(error)) from error
        finally:
            await utils.aio.cancel_and_wait(reading)

    async def _read(self, utterance: Utterance) -> None:
        """Passes on the text up to a flush."""
        async for data in self._input_ch:
            if not isinstance(data, str):
                break
            self._mark_started()
            utterance.feed(data)
        utterance.end()
