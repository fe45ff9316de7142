"""What a checkpoint can do, read from its configuration files alone. Imports no torch, because the gateway uses it."""

from pathlib import Path

import msgspec

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import Sampling, TaskType
from syrinx_stages.model.config import ModelConfig, ModelType, read_model_config, read_speech_tokenizer_config
from syrinx_stages.model.generation import default_sampling, read_generation_config
from syrinx_stages.normalization.durations import Durations
from syrinx_stages.normalization.reading import Reading

BUNDLED = "bundled"
"""The name of the checkpoint that is part of this package."""

TASK_TYPES = {
    ModelType.BASE: TaskType.BASE,
    ModelType.CUSTOM_VOICE: TaskType.CUSTOM_VOICE,
    ModelType.VOICE_DESIGN: TaskType.VOICE_DESIGN,
}
"""The task type that each type of checkpoint was trained for."""


SIZES_WITHOUT_INSTRUCTIONS = ("0b6", "tiny")
"""Values of `tts_model_size`: the one that the official package excepts, and that of the bundled voice."""


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """The requests that a checkpoint can serve."""

    task_type: TaskType
    size: str
    voices: tuple[str, ...]
    """Speakers of a CustomVoice checkpoint, the default first; empty for the other task types."""
    languages: tuple[str, ...]
    """Accepted values of `language`, `auto` first."""
    supports_instructions: bool
    max_positions: int
    """Positions of the prompt and the frames together."""
    sampling: Sampling = Sampling()
    """Sampling parameters of a request that sets none."""
    embedding_size: int | None = None
    """Numbers of a speaker embedding; None if the checkpoint does not clone voices."""
    max_new_tokens: int = FAMILY.default_frames
    """Frames of a request that sets no limit; the model may have fewer positions."""
    normalize: bool = False
    """Whether texts are better spoken with numbers, dates and the like as words."""
    reading: Reading = Reading()


def checkpoint_directory(name: str) -> Path:
    """The directory of a checkpoint given by path or as `bundled`."""
    return Path(__file__).parents[1] / "voice" if name == BUNDLED else Path(name)


def supports_instructions(config: ModelConfig) -> bool:
    """Whether the checkpoint follows instructions: VoiceDesign does, and CustomVoice except for small models."""
    if config.tts_model_type is ModelType.CUSTOM_VOICE:
        return config.tts_model_size not in SIZES_WITHOUT_INSTRUCTIONS
    return config.tts_model_type is ModelType.VOICE_DESIGN


def languages(config: ModelConfig) -> tuple[str, ...]:
    """Accepted values of `language`. Dialects are left out: they are selected by their speaker."""
    return ("auto", *(key for key in config.talker_config.codec_language_id if "dialect" not in key))


def _embedding_size(config: ModelConfig) -> int | None:
    return config.speaker_encoder_config.enc_dim if config.tts_model_type is ModelType.BASE else None


def describe(name: str) -> Description:
    """Describes a checkpoint given by path or as `bundled`. Raises `CheckpointError` naming file and field."""
    directory = checkpoint_directory(name)
    config = read_model_config(directory)
    generation = read_generation_config(directory)
    read_speech_tokenizer_config(directory)  # so that an invalid one is found before any stage loads it
    return Description(
        task_type=TASK_TYPES[config.tts_model_type],
        size=config.tts_model_size,
        voices=tuple(config.talker_config.speakers),
        languages=languages(config),
        supports_instructions=supports_instructions(config),
        max_positions=config.talker_config.max_position_embeddings,
        sampling=default_sampling(generation),
        embedding_size=_embedding_size(config),
        max_new_tokens=generation.max_new_tokens or FAMILY.default_frames,
        normalize=bool(generation.normalize),
        reading=Reading(
            segment_size=generation.segment_size or FAMILY.segment_size,
            single_sentences=bool(generation.single_sentences),
            durations=generation.durations or Durations(),
        ),
    )
