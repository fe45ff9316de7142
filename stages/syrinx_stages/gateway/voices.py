"""The lists that clients see: voices and models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from syrinx_stages.model.describe import Description

DEFAULT_VOICE = "default"
"""A name for clients that must send one: the same as no voice, which is the checkpoint's first if it has any."""


def find(name: str, names: Iterable[str]) -> str | None:
    """`name` as the checkpoint spells it, whatever its case; None if it is not there."""
    return next((known for known in names if known.lower() == name.lower()), None)


def voice_names(checkpoint: Description) -> tuple[str, ...]:
    """The voices of a CustomVoice checkpoint, the default first; none for the other kinds."""
    return tuple(speaker.name for speaker in checkpoint.speakers)


def voice_list(checkpoint: Description) -> dict[str, Any]:
    """The body of `GET /v1/audio/voices`."""
    names = voice_names(checkpoint)
    return {
        "object": "list",
        "voices": list(names),
        "default": names[0] if names else None,
        "languages": list(checkpoint.languages),
        "task_types": [checkpoint.task_type],
        "instructions": checkpoint.supports_instructions,
    }


def model_card(name: str, created: int) -> dict[str, Any]:
    """One entry of `GET /v1/models`; `created` is in Unix seconds."""
    return {"id": name, "object": "model", "created": created, "owned_by": "syrinx"}
