"""Qwen3-TTS: its engines by device. Torch and the engines are imported only where they are used."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from syrinx_stages.contract.settings import CODEC_MEMORY, TALKER_MEMORY
from syrinx_stages.model.config import read_model_config
from syrinx_stages.model.describe import checkpoint_directory, describe
from syrinx_stages.runtime.errors import StartError

if TYPE_CHECKING:
    import torch

    from syrinx_stages.codec.engine import CodecEngine
    from syrinx_stages.contract.settings import StageConfig, TalkerSettings
    from syrinx_stages.model.tokenizer import Tokenizer
    from syrinx_stages.runtime.settings import LiveSettings
    from syrinx_stages.talker.engine import TalkerEngine

__all__ = ["describe", "load_codec_engine", "load_talker_engine", "load_tokenizer"]


def load_tokenizer(model: str) -> Tokenizer:
    """Loads the text tokenizer of a checkpoint, without torch. Raises `CheckpointError` naming file and field."""
    from syrinx_stages.model import tokenizer

    directory = checkpoint_directory(model)
    return tokenizer.load_tokenizer(directory, read_model_config(directory))


def load_talker_engine(
    config: StageConfig, device: torch.device, settings: LiveSettings[TalkerSettings]
) -> TalkerEngine:
    """Raises `CheckpointError` if the checkpoint is invalid.

    Raises `StartError` if the engine is not installed, or a GPU has too little memory.
    """
    import torch

    from syrinx_stages.model.checkpoint import Checkpoint

    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    if config.engine == "vllm":
        if find_spec("vllm") is None:
            raise StartError(
                "engine vllm: vLLM is not installed here; use the stages image that has it, or engine torch"
            )
        from syrinx_stages.talker_vllm.engine import VllmTalkerEngine

        checkpoint = Checkpoint(config.model, device, dtype)
        return VllmTalkerEngine(checkpoint, config.max_resident, lambda: settings.current.max_num_seqs, config.vllm)
    if device.type == "cuda":
        # The kernels need Triton, which CPU images do not have.
        from syrinx_stages.talker.cuda.engine import CudaTalkerEngine

        checkpoint = Checkpoint(config.model, device, dtype)
        return CudaTalkerEngine(checkpoint, config.max_resident, config.memory_fraction or TALKER_MEMORY)
    from syrinx_stages.talker.eager_engine import EagerTalkerEngine

    return EagerTalkerEngine(Checkpoint(config.model, device, dtype))


def load_codec_engine(config: StageConfig, device: torch.device) -> CodecEngine:
    """Raises `CheckpointError` if the checkpoint is invalid, `StartError` if a GPU has too little memory."""
    from syrinx_stages.model.checkpoint import Checkpoint

    if device.type == "cuda":
        # The kernels need Triton, which CPU images do not have.
        from syrinx_stages.codec.cuda.engine import CudaCodecEngine

        decoder = Checkpoint(config.model).load_codec_decoder()
        fraction = config.memory_fraction or CODEC_MEMORY
        return CudaCodecEngine(decoder, config.max_resident, device, memory_fraction=fraction)
    from syrinx_stages.codec.eager_engine import EagerCodecEngine

    return EagerCodecEngine(Checkpoint(config.model, device).load_codec_decoder(), config.max_resident)
