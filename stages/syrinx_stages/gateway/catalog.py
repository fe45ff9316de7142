"""What clients of this gateway may name: models and voices, with aliases for the names of OpenAI's API."""

from functools import cached_property
from typing import Any

from msgspec import Struct

from syrinx_stages.contract.settings import ApiConfig
from syrinx_stages.model.describe import Description

OPENAI_VOICES = (
    "alloy", "ash", "ballad", "coral", "echo", "fable", "marin", "cedar", "nova", "onyx", "sage", "shimmer", "verse"
)  # fmt: skip
OPENAI_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
DEFAULT_VOICE = "default"
"""A voice name for clients that must send one: the checkpoint's first voice, or none if it has none."""


class Catalog(Struct, frozen=True, dict=True):
    """The models and voices of a gateway, and their aliases."""

    checkpoint: Description
    model: str
    """The name of the served model."""
    api: ApiConfig = ApiConfig()

    @cached_property
    def model_aliases(self) -> tuple[str, ...]:
        """Other names of the model."""
        openai = OPENAI_MODELS if self.api.openai_names else ()
        return tuple(name for name in dict.fromkeys((*self.api.model_aliases, *openai)) if name != self.model)

    @cached_property
    def voice_aliases(self) -> dict[str, str | None]:
        """The voice of each alias, in lower case; None for a checkpoint without voices.

        OpenAI's names are distributed over the voices in order. A voice's own name is no alias.
        """
        voices = self.checkpoint.voices or (None,)
        names = OPENAI_VOICES if self.api.openai_names else ()
        aliases: dict[str, str | None] = {name: voices[i % len(voices)] for i, name in enumerate(names)}
        aliases[DEFAULT_VOICE] = voices[0]
        aliases |= {alias.lower(): self._spelled(name) for alias, name in self.api.voice_aliases.items()}
        own = {name.lower() for name in self.checkpoint.voices}
        return {alias: voice for alias, voice in aliases.items() if alias not in own}

    def _spelled(self, name: str) -> str | None:
        found = next((voice for voice in self.checkpoint.voices if voice.lower() == name.lower()), None)
        if found is None:
            accepted = ", ".join(self.checkpoint.voices) or "none"
            raise ValueError(f"voice_aliases: {name!r} is not a voice of the checkpoint; accepted: {accepted}")
        return found

    def has_model(self, name: str) -> bool:
        """Whether `name` is the model or an alias of it."""
        return name == self.model or name in self.model_aliases

    def has_voice(self, name: str) -> bool:
        """Whether `name` is a voice or an alias of one, ignoring case."""
        return name.lower() in self.voice_aliases or name.lower() in (each.lower() for each in self.checkpoint.voices)

    def voice(self, name: str) -> str | None:
        """The checkpoint's voice with this name or alias, ignoring case. Raises `KeyError`."""
        if name.lower() in self.voice_aliases:
            return self.voice_aliases[name.lower()]
        return {each.lower(): each for each in self.checkpoint.voices}[name.lower()]

    def voice_list(self) -> dict[str, Any]:
        """The body of `GET /v1/audio/voices`."""
        checkpoint = self.checkpoint
        own = [{"id": name, "object": "voice", "name": name} for name in checkpoint.voices]
        aliases = [
            {"id": alias, "object": "voice", "name": alias, "alias_of": voice}
            for alias, voice in self.voice_aliases.items()
        ]
        return {
            "object": "list",
            "data": own + aliases,
            "voices": own + aliases,
            "names": list(checkpoint.voices),
            "default": checkpoint.voices[0] if checkpoint.voices else None,
            "languages": list(checkpoint.languages),
            "task_types": [checkpoint.task_type],
            "instructions": checkpoint.supports_instructions,
        }

    def model_list(self, created: int) -> list[dict[str, Any]]:
        """The cards of `GET /v1/models`. `created` is in Unix seconds."""
        card = {"object": "model", "created": created, "owned_by": "syrinx"}
        aliases = [{"id": alias, **card, "alias_of": self.model} for alias in self.model_aliases]
        return [{"id": self.model, **card}, *aliases]
