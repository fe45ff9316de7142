"""Text-to-speech of Pipecat with Syrinx: the words of an LLM are spoken while it writes them."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
from pipecat.frames.frames import Frame, TTSAudioRawFrame
from pipecat.services.settings import TTSSettings
from pipecat.services.tts_service import TextAggregationMode, TTSService
from pipecat.transcriptions.language import Language
from syrinx_utterance import SAMPLE_RATE, SpeechError, Utterance

PAUSE_SECONDS = 35.0
"""How long a context waits for audio: the gateway ends an utterance that gets no text for 30 s."""
LANGUAGES = {
    "de": "German",
    "en": "English",
    "es": "Spanish",
    "fr": "French",
    "it": "Italian",
    "ja": "Japanese",
    "ko": "Korean",
    "pt": "Portuguese",
    "ru": "Russian",
    "zh": "Chinese",
}


class SyrinxTTSService(TTSService):
    """Speaks each turn of an LLM as one utterance, on a connection of its own.

    The event `on_interrupted(service, context_id, text, spoken_characters)` reports up to which character of the text
    the received audio goes, to within a few words.

    base_url: as for OpenAI's clients, with `/v1`. settings: `extra` may have other fields of a speech request.
    """

    Settings = TTSSettings
    _settings: TTSSettings

    def __init__(
        self,
        *,
        base_url: str = "http://localhost:8000/v1",
        api_key: str | None = None,
        session: aiohttp.ClientSession | None = None,
        settings: TTSSettings | None = None,
        **kwargs: Any,
    ) -> None:
        values = TTSSettings(model=None, voice=None, language=None)
        if settings is not None:
            values.apply_update(settings)
        super().__init__(
            settings=values,
            sample_rate=SAMPLE_RATE,
            text_aggregation_mode=TextAggregationMode.TOKEN,
            push_start_frame=True,
            push_stop_frames=True,
            stop_frame_timeout_s=PAUSE_SECONDS,
            **kwargs,
        )
        self._base_url = base_url
        self._api_key = api_key
        self._session = session
        self._owns_session = session is None
        self._speaking: dict[str, tuple[Utterance, asyncio.Task[None]]] = {}
        """By context."""
        self._register_event_handler("on_interrupted")

    def can_generate_metrics(self) -> bool:
        """Returns True: the time to the first byte is measured."""
        return True

    def language_to_service_language(self, language: Language) -> str | None:
        """Returns the name of a language of Qwen3-TTS; None for others."""
        return LANGUAGES.get(language.value.partition("-")[0])

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        """Adds text to the utterance of a context. Its audio goes to the context."""
        if context_id not in self._speaking:
            # The handshake takes place while the LLM writes the first words.
            utterance = Utterance(self._http(), self._base_url, self._api_key, self._fields())
            task = self.create_task(self._speak(context_id, utterance))
            self._speaking[context_id] = utterance, task
            task.add_done_callback(lambda _: self._speaking.pop(context_id))
        self._speaking[context_id][0].feed(text)
        yield None

    async def flush_audio(self, context_id: str | None = None) -> None:
        """Ends the text of a context."""
        if context_id in self._speaking:
            self._speaking[context_id][0].end()
        else:
            # After a permanent error Pipecat passes on no text.
            await self.remove_audio_context(context_id)

    async def on_audio_context_interrupted(self, context_id: str) -> None:
        """Stops the speech of a context and its generation, without waiting for it."""
        await self.stop_all_metrics()
        if context_id in self._speaking:
            self._speaking[context_id][1].cancel()

    async def cleanup(self) -> None:
        """Stops all speech."""
        for _, task in list(self._speaking.values()):
            await self.cancel_task(task)
        if self._owns_session and self._session is not None:
            await self._session.close()
            self._session = None
        await super().cleanup()

    def _http(self) -> aiohttp.ClientSession:
        self._session = self._session or aiohttp.ClientSession()
        return self._session

    def _fields(self) -> dict[str, Any]:
        return {name: value for name, value in self._settings.given_fields().items() if value is not None}

    async def _speak(self, context_id: str, utterance: Utterance) -> None:
        async def push(audio: bytes) -> None:
            await self.append_to_audio_context(
                context_id, TTSAudioRawFrame(audio, SAMPLE_RATE, num_channels=1, context_id=context_id)
            )

        try:
            await utterance.speak(push)
        except asyncio.CancelledError:
            spoken = utterance.text, utterance.spoken_characters
            await self._call_event_handler("on_interrupted", context_id, *spoken)
            raise
        except (SpeechError, OSError) as error:
            await self.push_error(f"Syrinx: {str(error) or 'the gateway did not answer'}", exception=error)
            # Words that still come belong to this context.
            await utterance.wait_end()
        await self.remove_audio_context(context_id)
