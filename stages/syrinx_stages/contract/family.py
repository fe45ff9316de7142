"""The model family that Syrinx serves: the numbers and names that every process knows. Imports no torch.

`syrinx_stages.families` adds what needs torch. docs/model-families.md says what a second family would bring.
"""

from functools import cached_property
from typing import Final, Literal, get_args

from msgspec import Struct

from syrinx_stages.contract.api import SpeechFields

TaskName = Literal["CustomVoice", "VoiceDesign", "Base"]
"""The values of `messages.TaskType`, for schemas."""


class ModelFamily(Struct, frozen=True, kw_only=True, dict=True):
    """The facts of a model family that code outside `model/`, `kernels/` and the engines depends on."""

    name: str
    """`model_type` of a checkpoint's `config.json`."""
    sample_rate: int
    """Audio samples per second; audio is mono."""
    samples_per_frame: int
    """Audio samples per code frame."""
    code_groups: int
    """Codes per frame, one from each codebook."""
    special_ids: int
    """The last ids of the talker's vocabulary: languages, speakers and control tokens. Only EOS is ever sampled."""
    task_types: tuple[TaskName, ...]
    default_frames: int
    """Frames per request unless `max_new_tokens` says otherwise."""
    max_frames: int
    """Upper limit of `max_new_tokens`."""
    segment_size: int
    """Letters of a text that are spoken at once, at most, unless the checkpoint says otherwise: about 20 seconds."""
    request_fields: type[SpeechFields]
    """The body of `POST /v1/audio/speech`."""

    @cached_property
    def frame_seconds(self) -> float:
        """Seconds of audio per code frame."""
        return self.samples_per_frame / self.sample_rate

    @cached_property
    def frame_bytes(self) -> int:
        """Bytes of 16-bit PCM per code frame."""
        return 2 * self.samples_per_frame

    @cached_property
    def frames_per_second(self) -> float:
        """Code frames per second of audio."""
        return self.sample_rate / self.samples_per_frame


QWEN3_TTS: Final = ModelFamily(
    name="qwen3_tts",
    sample_rate=24_000,
    samples_per_frame=1_920,
    code_groups=16,
    special_ids=1_024,
    task_types=get_args(TaskName),
    default_frames=2_048,
    max_frames=4_096,
    segment_size=300,
    request_fields=SpeechFields,
)
"""Qwen3-TTS with its 12 Hz speech tokenizer (https://github.com/QwenLM/Qwen3-TTS): 12.5 frames per second."""

FAMILY: Final = QWEN3_TTS
"""The family that every process of this version serves."""
