"""The checkpoints of the benchmark: the bundled voice as each type of checkpoint, and with an end that it never finds.

All have the weights of the bundled talker, so that healthy speech and its natural end exist for every type.
"""

import json
import shutil
from pathlib import Path

import msgspec
import torch
from safetensors.torch import load_file, save_file

from syrinx_stages.contract.messages import TaskType
from syrinx_stages.model.config import ModelConfig
from syrinx_stages.model.describe import BUNDLED, checkpoint_directory
from syrinx_stages.model.layers import checkpoint_tensors
from syrinx_stages.model.speaker_encoder import SpeakerEncoder

SPEAKER = "us"
_HEAD = "talker.codec_head.weight"
_CODES = "talker.model.codec_embedding.weight"
_SPEECH_TOKENIZER = Path(__file__).parents[2] / "tests" / "fixtures" / "official" / "codec" / "speech_tokenizer"
"""A small one with an encoder, which the bundled one lacks."""


def write(directory: Path, task: TaskType, *, ends: bool = True) -> Path:
    """Writes the bundled voice as a checkpoint for `task`. Without `ends` its probability of the end is near 0.

    Every reference audio is the voice `SPEAKER` to the Base checkpoint. The VoiceDesign checkpoint gets no speaker.
    """
    bundled = checkpoint_directory(BUNDLED)
    shutil.copytree(bundled, directory)
    config, tensors = json.loads((bundled / "config.json").read_text()), load_file(bundled / "model.safetensors")
    if not ends:
        # A logit of 0 is far below those of likely codes.
        tensors[_HEAD][config["talker_config"]["codec_eos_token_id"]] = 0
    if task is not TaskType.CUSTOM_VOICE:
        speaker = tensors[_CODES][config["talker_config"]["spk_id"][SPEAKER]]
        config["tts_model_type"] = "base" if task is TaskType.BASE else "voice_design"
        config["talker_config"]["spk_id"] = config["talker_config"]["spk_is_dialect"] = None
        if task is TaskType.BASE:
            config["speaker_encoder_config"] = {"enc_dim": len(speaker)}
            tensors |= _constant_speaker_encoder(config, speaker)
            _replace_speech_tokenizer(directory / "speech_tokenizer")
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors")
    return directory


def _replace_speech_tokenizer(directory: Path) -> None:
    """Replaces the speech tokenizer by one with an encoder. Its decoder, which no talker loads, does not match."""
    codes = json.loads((directory / "config.json").read_text())["decoder_config"]["codebook_size"]
    shutil.rmtree(directory)
    shutil.copytree(_SPEECH_TOKENIZER, directory)
    config = json.loads((directory / "config.json").read_text())
    config["decoder_config"]["codebook_size"] = codes
    (directory / "config.json").write_text(json.dumps(config))


def _constant_speaker_encoder(config: object, embedding: torch.Tensor) -> dict[str, torch.Tensor]:
    """Returns the tensors of a speaker encoder that returns `embedding` for any audio."""
    encoder = SpeakerEncoder(msgspec.convert(config, ModelConfig).speaker_encoder_config)
    with torch.no_grad():
        encoder.fc.weight.zero_()
        assert encoder.fc.bias is not None
        encoder.fc.bias.copy_(embedding)
    return {name: each.target.detach().clone() for name, each in checkpoint_tensors(encoder, "speaker_encoder")}
