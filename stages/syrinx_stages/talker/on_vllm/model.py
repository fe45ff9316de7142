"""The talker as a model of vLLM."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.models.interfaces import SupportsMRoPE
from vllm.model_executor.models.qwen3 import Qwen3Model

from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.talker.on_vllm.frames import EagerFrames, Frames
from syrinx_stages.talker.on_vllm.where import PLACE_MASK, handle_of

CHECKPOINT = "syrinx_checkpoint"
"""In vLLM's `additional_config`: the checkpoint's directory."""

FRAMES = "syrinx_frames"
"""There too: the most frames of a request."""

_LAYERS = "talker.model."


DIGIT_BITS = 8
"""Of a position: every number format has whole numbers up to 256."""


def digits(numbers: Tensor, shifts: Tensor) -> Tensor:
    """[n] below 2^31 as [n, 4]."""
    return (numbers[:, None] >> shifts) & ((1 << DIGIT_BITS) - 1)


def number(digits: Tensor, shifts: Tensor) -> Tensor:
    """What `digits` made, of any type: [n] int64."""
    return (digits.long() << shifts).sum(1)


class SyrinxTalker(nn.Module, SupportsMRoPE):
    """vLLM's own Qwen3 layers between Syrinx's inputs and draws.

    Draws are made where vLLM asks for scores, of the rows that it samples: one a request. Its sampler is left no
    choice: the code 0 that was drawn is the only one that has a score.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.model = Qwen3Model(vllm_config=vllm_config, prefix=f"{prefix}.model".lstrip("."))
        config = vllm_config.model_config.hf_config
        self._vocabulary = config.vocab_size
        # Where CUDA graphs hold layers alone, they read what they are fed where it was when they were recorded.
        most = vllm_config.scheduler_config.max_num_batched_tokens
        self._places = torch.zeros(most, dtype=torch.int64)
        self._inputs = torch.zeros(most, config.hidden_size)
        self._shifts = torch.arange(0, 32, DIGIT_BITS)
        # Its weights are not vLLM's to load or to count.
        with _usual_defaults():
            self.frames = _frames(vllm_config)

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: list[Any]) -> tuple[Tensor, int]:
        """Positions [3, tokens] that say whose they are, and what vLLM adds to those that follow."""
        base = handle_of(input_tokens).base
        return (torch.arange(len(input_tokens)) + base).expand(3, -1), base

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Nothing is made of it: what a row is fed follows from its position."""
        embedded: Tensor = self.model.embed_input_ids(input_ids)
        return embedded

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: object = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """The layers' outputs, and behind each the row's position in digits: [rows, hidden size + 4].

        What vLLM asks scores for are rows of this, and of nothing else.
        """
        where, count = positions[0], positions.shape[1]
        places = torch.bitwise_and(where, PLACE_MASK, out=self._places[:count])
        hidden = self.model(None, places, None, self.frames.inputs(where, self._inputs[:count]))
        return torch.cat((hidden, digits(where, self._shifts).to(hidden.dtype)), 1)

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Scores [rows, vocabulary] of which one is not -inf."""
        count = len(self._shifts)
        where = number(hidden_states[:, -count:], self._shifts)
        code0 = self.frames.draw(where, hidden_states[:, :-count])
        scores = torch.full((len(code0), self._vocabulary), -torch.inf, device=code0.device)
        return scores.scatter_(1, code0[:, None], 0.0)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Takes the layers, as vLLM packs, shards and quantises them."""
        names = {"codec_embedding.": "embed_tokens."}

        def mine() -> Iterable[tuple[str, Tensor]]:
            for name, tensor in weights:
                local = name.removeprefix(_LAYERS)
                if local != name and not local.startswith("text_embedding."):
                    for official, here in names.items():
                        local = local.replace(official, here)
                    yield local, tensor

        return {f"model.{name}" for name in self.model.load_weights(mine())}


@contextmanager
def _usual_defaults() -> Iterator[None]:
    """Not vLLM's, which builds models with the type and the device that its own layers have."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(before)


def _frames(config: VllmConfig) -> Frames:
    """Those for the device."""
    given, device = config.additional_config, torch.device(config.device_config.device_type)
    if device.type != "cuda":
        return EagerFrames(Checkpoint(given[CHECKPOINT]))
    # Its kernels need Triton, which is not everywhere.
    from syrinx_stages.talker.on_vllm.cuda_frames import CudaFrames

    checkpoint = Checkpoint(given[CHECKPOINT], device, config.model_config.dtype)
    return CudaFrames(checkpoint, config.scheduler_config.max_num_seqs, given[FRAMES])
