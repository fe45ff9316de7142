"""What clients of this gateway may name: models and voices, with aliases for the names of OpenAI's API."""

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from msgspec import Struct

from syrinx_stages.contract.settings import ApiConfig, SharedVoice
from syrinx_stages.model.describe import Description
from syrinx_stages.runtime.errors import StartError

OPENAI_VOICES = (
    "alloy", "ash", "ballad", "coral", "echo", "fable", "marin", "cedar", "nova", "onyx", "sage", "shimmer", "verse"
)  # fmt: skip
OPENAI_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
_DATED = re.compile(r"-(\d{4}|\d{4}-\d{2}-\d{2})$", re.ASCII)
"""The end of the name of a snapshot: `tts-1-1106`, `gpt-4o-mini-tts-2025-12-15`."""
DEFAULT_VOICE = "default"
"""The voice of requests without one, also for clients that must send a name: the checkpoint's first voice, unless an
alias says otherwise, or none if it has none."""


class Catalog(Struct, frozen=True, dict=True):
    """The models and voices of a gateway, and their aliases. Raises `StartError` if a voice or an alias is invalid."""

    checkpoint: Description
    model: str
    """The name of the served model."""
    api: ApiConfig = ApiConfig()
    shared: tuple[SharedVoice, ...] = ()
    """The resource's voices, for a checkpoint that has none of its own."""

    def __post_init__(self) -> None:
        if self.shared and self.checkpoint.embedding_size is None:
            raise StartError(f"voices: they need a Base checkpoint; this one does {self.checkpoint.task_type}")
        if len(self._own_voices) < len(self.voices):
            raise StartError(f"voices: two have the same name: {', '.join(self.voices)}")
        for alias, name in self.api.voice_aliases.items():
            if alias in self._own_voices:
                raise StartError(f"voiceAliases: {alias!r} is itself a voice of this service; choose another alias")
            if name.lower() not in self._own_voices:
                voices = f"its voices: {', '.join(self.voices)}" if self.voices else "it has none"
                raise StartError(
                    f"voiceAliases: {alias!r} stands for {name!r}, which is not a voice of this service; {voices}"
                )

    @property
    def voices(self) -> Sequence[str]:
        """The names of the voices that every client may use."""
        return (*self.checkpoint.voices, *(each.name for each in self.shared))

    @cached_property
    def model_aliases(self) -> tuple[str, ...]:
        """Other names of the model."""
        openai = OPENAI_MODELS if self.api.openai_names else ()
        return tuple(name for name in dict.fromkeys((*self.api.model_aliases, *openai)) if name != self.model)

    @cached_property
    def voice_aliases(self) -> dict[str, str | None]:
        """The voice of each alias, in lower case; None for a service without voices.

        OpenAI's names are distributed over the voices in order. A voice's own name is no alias.
        """
        voices = self.voices or (None,)
        names = OPENAI_VOICES if self.api.openai_names else ()
        aliases: dict[str, str | None] = {name: voices[i % len(voices)] for i, name in enumerate(names)}
        aliases[DEFAULT_VOICE] = voices[0]
        aliases |= {alias: self._own_voices[name.lower()] for alias, name in self.api.voice_aliases.items()}
        return {alias: voice for alias, voice in aliases.items() if alias not in self._own_voices}

    @cached_property
    def _own_voices(self) -> dict[str, str]:
        """The voices by their names in lower case."""
        return {name.lower(): name for name in self.voices}

    def has_model(self, name: str) -> bool:
        """Whether `name` is the model or an alias of it, ignoring case. OpenAI's may have the date of a snapshot."""
        found, names = name.strip().lower(), {each.lower() for each in (self.model, *self.model_aliases)}
        undated = _DATED.sub("", found)
        return found in names or (self.api.openai_names and undated in OPENAI_MODELS)

    def has_voice(self, name: str) -> bool:
        """Whether `name` is a voice or an alias of one, ignoring case."""
        return name.lower() in self.voice_aliases or name.lower() in self._own_voices

    def voice(self, name: str) -> str | None:
        """The voice with this name or alias, ignoring case. Raises `KeyError`."""
        if name.lower() in self.voice_aliases:
            return self.voice_aliases[name.lower()]
        return self._own_voices[name.lower()]

    @cached_property
    def _voice_cards(self) -> dict[str, dict[str, Any]]:
        """The voices and their aliases as the API shows them, by their names in lower case."""
        consents = {each.name: {"consent": each.consent} for each in self.shared}
        own = {name: {"id": name, "object": "voice", "name": name, **consents.get(name, {})} for name in self.voices}
        aliases = {
            alias: {"id": alias, "object": "voice", "name": alias, "alias_of": voice}
            for alias, voice in self.voice_aliases.items()
        }
        return {name.lower(): card for name, card in (own | aliases).items()}

    def voice_card(self, name: str) -> dict[str, Any] | None:
        """The voice or alias with this name as the API shows it, ignoring case; None if there is none."""
        return self._voice_cards.get(name.lower())

    def voice_list(self, uploaded: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        """The body of `GET /v1/audio/voices`. `uploaded` are the client's own voices."""
        checkpoint = self.checkpoint
        voices = [*self._voice_cards.values(), *uploaded]
        return {
            "object": "list",
            "data": voices,
            "voices": voices,
            "names": [*self.voices, *(voice["name"] for voice in uploaded)],
            "uploaded_voices": list(uploaded),
            "default": self.voice(DEFAULT_VOICE),
            "languages": list(checkpoint.languages),
            "task_types": [checkpoint.task_type],
            "instructions": checkpoint.supports_instructions,
        }

    def model_list(self, created: int) -> list[dict[str, Any]]:
        """The cards of `GET /v1/models`. `created` is in Unix seconds."""
        return [self.model_card(name, created) for name in (self.model, *self.model_aliases)]

    def model_card(self, name: str, created: int) -> dict[str, Any]:
        """The card of a model that `has_model` finds. `created` is in Unix seconds."""
        alias = {} if name == self.model else {"alias_of": self.model}
        return {"id": name, "object": "model", "created": created, "owned_by": "syrinx", **alias}
