"""The code of each model family: one module per family and one line in `IMPLEMENTATIONS`.

`contract.family` has the facts that need no code. Importing this package imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from syrinx_stages.contract.family import FAMILY, QWEN3_TTS
from syrinx_stages.families import qwen3_tts

if TYPE_CHECKING:
    import torch

    from syrinx_stages.codec.engine import CodecEngine
    from syrinx_stages.contract.settings import StageConfig, TalkerSettings
    from syrinx_stages.model.describe import Description
    from syrinx_stages.model.tokenizer import Tokenizer
    from syrinx_stages.runtime.settings import LiveSettings
    from syrinx_stages.talker.engine import TalkerEngine


class Implementation(Protocol):
    """What a family's module defines."""

    def describe(self, model: str) -> Description:
        """See `model.describe.describe`. `model`: a directory, or `bundled`."""

    def load_tokenizer(self, model: str) -> Tokenizer:
        """The text tokenizer of a checkpoint; importing it imports no torch. Raises `CheckpointError`."""

    def load_talker_engine(
        self, config: StageConfig, device: torch.device, settings: LiveSettings[TalkerSettings]
    ) -> TalkerEngine[Any]:
        """Raises `StartError` if the engine is not installed, `CheckpointError` if the checkpoint is invalid."""

    def load_codec_engine(self, config: StageConfig, device: torch.device) -> CodecEngine[Any]:
        """The codec engine for a configuration and device. Raises `CheckpointError` if the checkpoint is invalid."""


IMPLEMENTATIONS: Final[dict[str, Implementation]] = {QWEN3_TTS.name: qwen3_tts}

IMPLEMENTATION: Final = IMPLEMENTATIONS[FAMILY.name]
"""The code of the family that this version serves."""
