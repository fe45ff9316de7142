"""Checkpoints of `talker_recipe` on disk, and a plain generation loop."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import save_file
from torch import Tensor

from support import talker_recipe as recipe
from syrinx_stages.contract.messages import Sampling, SpeechRequest, TaskType
from syrinx_stages.model.config import ModelConfig
from syrinx_stages.model.layers import checkpoint_tensors
from syrinx_stages.model.sampling import Sampler
from syrinx_stages.model.talker import Talker
from syrinx_stages.talker.inputs import Prompt, embed
from syrinx_stages.talker.prompt import Voice

GREEDY = Sampling(temperature=0, residual_temperature=0)


def weights(kind: str, size: str) -> dict[str, Tensor]:
    """The talker tensors of a recipe checkpoint, by the checkpoint's names."""
    config = msgspec.convert(recipe.config(kind, size), ModelConfig)
    tensors = checkpoint_tensors(Talker(config.talker_config), "talker")
    return {name: torch.from_numpy(recipe.weight(name, tensor.shape)) for name, tensor in tensors}


def write_checkpoint(directory: Path, kind: str, size: str) -> Path:
    """A recipe checkpoint on disk, without codec weights."""
    recipe.write_configs(directory, kind, size)
    save_file(weights(kind, size), directory / "model.safetensors")
    return directory


def speech_request(kind: str, fields: dict[str, Any], sampling: Sampling = GREEDY, seed: int = 0) -> SpeechRequest:
    """A recipe case as a request."""
    task = {
        "custom_voice": TaskType.CUSTOM_VOICE,
        "voice_design": TaskType.VOICE_DESIGN,
        "base": TaskType.BASE,
    }[kind]
    fields = {name: value for name, value in fields.items() if name != "frames"}
    return SpeechRequest(id="test", accepted_at=0.0, task_type=task, sampling=sampling, seed=seed, **fields)


def reference_voice(kind: str, fields: dict[str, Any]) -> Voice | None:
    """The reference voice of a Base case, otherwise None."""
    if kind != "base":
        return None
    codes = torch.from_numpy(recipe.reference_codes(fields["frames"])) if "frames" in fields else None
    return Voice(torch.from_numpy(recipe.speaker_embedding()), codes)


class Generated(msgspec.Struct):
    """The frames [rows, frames, 16] of a batch and their code-0 logits [rows, frames, vocabulary]."""

    codes: Tensor
    logits: Tensor
    residual_logits: Tensor
    """[rows, frames, 15, codebook_size]."""


@torch.inference_mode()
def generate(talker: Talker, prompts: Sequence[Prompt], requests: Sequence[SpeechRequest], frames: int) -> Generated:
    """Generates `frames` frames for all prompts in one batch; EOS does not end a row."""
    rows = len(prompts)
    caches = [talker.new_cache() for _ in prompts]
    embedded = [embed(talker, prompt) for prompt in prompts]
    hidden = torch.stack([talker.prefill(each.embeds, cache) for each, cache in zip(embedded, caches, strict=True)])
    sampler = Sampler([r.sampling for r in requests], [r.seed for r in requests], talker.config, talker.device)
    seen = torch.zeros(rows, talker.config.vocab_size, dtype=torch.bool)
    codes_by_frame, code0_logits, residual_logits = [], [], []
    for frame in range(frames):
        draw = sampler.step(torch.full((rows,), frame))
        logits = talker.logits(hidden)
        code0 = draw.code0(logits, seen)
        seen[torch.arange(rows), code0] = True
        residual: list[Tensor] = []

        def spy(values: Tensor, group: int, draw: Any = draw, residual: list[Tensor] = residual) -> Tensor:
            residual.append(values.clone())
            return draw.residual(values, group)

        codes = talker.predict(hidden, code0, spy)
        codes_by_frame.append(codes)
        code0_logits.append(logits)
        residual_logits.append(torch.stack(residual, 1))
        text = torch.stack([each.text_row(frame) for each in embedded])
        hidden = talker.decode(talker.embed_frame(codes) + text, caches)
    return Generated(torch.stack(codes_by_frame, 1), torch.stack(code0_logits, 1), torch.stack(residual_logits, 1))
