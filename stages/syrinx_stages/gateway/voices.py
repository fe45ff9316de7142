"""What the served checkpoint can do, and the lists that clients see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import Struct

import syrinx_stages
from syrinx_stages.contract.messages import TaskType
from syrinx_stages.model.config import ModelType, read_model_config

DEFAULT_VOICE = "default"
"""A name that clients may send where they have to send one: means the same as no voice."""
MAX_FRAMES = 4096
"""The longest speech that can be asked for: 5 minutes and 27 seconds."""

_TASKS = {
    ModelType.BASE: TaskType.BASE,
    ModelType.CUSTOM_VOICE: TaskType.CUSTOM_VOICE,
    ModelType.VOICE_DESIGN: TaskType.VOICE_DESIGN,
}
_NO_INSTRUCTIONS = ("0b6", "tiny")
"""Sizes that were trained without instructions."""


class Checkpoint(Struct, frozen=True):
    """What requests are checked against."""

    task_type: TaskType
    voices: tuple[str, ...]
    """Lower case, the default first; empty unless CustomVoice."""
    languages: tuple[str, ...]
    """Lower case; `auto` first."""
    takes_instructions: bool
    max_frames: int
    """Half the positions at the most: the prompt needs the others."""


def read_checkpoint(model: str) -> Checkpoint:
    """Describes the checkpoint in a directory, or the `bundled` one. Raises `CheckpointError`."""
    directory = Path(syrinx_stages.__file__).parent / "voice" if model == "bundled" else Path(model)
    config = read_model_config(directory)
    task = _TASKS[config.tts_model_type]
    talker = config.talker_config
    return Checkpoint(
        task_type=task,
        voices=tuple(name.lower() for name in talker.speakers) if task is TaskType.CUSTOM_VOICE else (),
        # A dialect is not asked for: it comes with its speaker.
        languages=("auto", *(name.lower() for name in talker.codec_language_id if "dialect" not in name)),
        takes_instructions=task is not TaskType.BASE and config.tts_model_size not in _NO_INSTRUCTIONS,
        max_frames=min(MAX_FRAMES, talker.max_position_embeddings // 2),
    )


def voice_list(checkpoint: Checkpoint) -> dict[str, Any]:
    """The body of `GET /v1/audio/voices`."""
    return {
        "object": "list",
        "voices": list(checkpoint.voices),
        "default": checkpoint.voices[0] if checkpoint.voices else None,
        "languages": list(checkpoint.languages),
        "task_types": [checkpoint.task_type],
        "instructions": checkpoint.takes_instructions,
    }


def model_card(name: str, created: int) -> dict[str, Any]:
    """One entry of `GET /v1/models`; `created` is in Unix seconds."""
    return {"id": name, "object": "model", "created": created, "owned_by": "syrinx"}
