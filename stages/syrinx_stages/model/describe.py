"""What a checkpoint can do, told from its configs alone: for the gateway, which imports no torch."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..contract.messages import TaskType
from .config import ModelConfig, ModelType, read_model_config, read_speech_tokenizer_config

BUNDLED = "bundled"
"""The name of the checkpoint that is part of this package."""

_TASKS = {
    ModelType.BASE: TaskType.BASE,
    ModelType.CUSTOM_VOICE: TaskType.CUSTOM_VOICE,
    ModelType.VOICE_DESIGN: TaskType.VOICE_DESIGN,
}


class Speaker(msgspec.Struct, frozen=True):
    """A voice of a CustomVoice checkpoint."""

    name: str
    dialect: str | None
    """The dialect it speaks when the language is `auto` or `chinese`."""


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """What requests a checkpoint serves."""

    task_type: TaskType
    size: str
    speakers: tuple[Speaker, ...]
    languages: tuple[str, ...]
    """Accepted values of `language`, `auto` first."""
    sample_rate: int
    supports_instructions: bool
    supports_reference: bool
    """Reference audio: needed by Base, refused by the others."""
    max_positions: int
    """Prompt and frames together."""


def checkpoint_directory(name: str) -> Path:
    """The directory `name` means: a path, or `bundled`. Nothing is downloaded."""
    return Path(__file__).parents[1] / "voice" if name == BUNDLED else Path(name)


def task_of(kind: ModelType) -> TaskType:
    """The one task a kind of checkpoint was trained for."""
    return _TASKS[kind]


def supports_instructions(config: ModelConfig) -> bool:
    """Whether it was trained to follow instructions: VoiceDesign and 1.7B CustomVoice were, the others were not."""
    if config.tts_model_type is ModelType.CUSTOM_VOICE:
        return config.tts_model_size == "1b7"
    return config.tts_model_type is ModelType.VOICE_DESIGN


def languages(config: ModelConfig) -> tuple[str, ...]:
    """Accepted values of `language`; dialects are chosen by their speaker, not by name."""
    return ("auto", *(key for key in config.talker_config.codec_language_id if "dialect" not in key))


def describe(name: str) -> Description:
    """Reads a checkpoint's configs. Raises `CheckpointError` naming file and field."""
    directory = checkpoint_directory(name)
    config = read_model_config(directory)
    talker = config.talker_config
    return Description(
        task_type=task_of(config.tts_model_type),
        size=config.tts_model_size,
        speakers=tuple(Speaker(key, talker.dialect(key)) for key in talker.speakers),
        languages=languages(config),
        sample_rate=read_speech_tokenizer_config(directory).output_sample_rate,
        supports_instructions=supports_instructions(config),
        supports_reference=config.tts_model_type is ModelType.BASE,
        max_positions=talker.max_position_embeddings,
    )
