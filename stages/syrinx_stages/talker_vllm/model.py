"""The talker as a vLLM model."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.models.interfaces import SupportsMRoPE
from vllm.model_executor.models.qwen3 import Qwen3Model

from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.talker_vllm.frame_generator import EagerFrameGenerator, FrameGenerator
from syrinx_stages.talker_vllm.positions import OFFSET_MASK, handle_of

CHECKPOINT_KEY = "syrinx_checkpoint"
"""Key in vLLM's `additional_config`: the checkpoint's directory."""

MAX_FRAMES_KEY = "syrinx_max_frames"
"""Key in vLLM's `additional_config`: the maximum frames of a request."""

_LAYERS_PREFIX = "talker.model."


DIGIT_BITS = 8
"""Bits of a position per column: every float dtype represents the integers up to 256 exactly."""


def to_digits(positions: Tensor, shifts: Tensor) -> Tensor:
    """Splits positions [rows] below 2^31 into digits [rows, 4]."""
    return (positions[:, None] >> shifts) & ((1 << DIGIT_BITS) - 1)


def from_digits(digits: Tensor, shifts: Tensor) -> Tensor:
    """Joins digits [rows, 4] of any dtype into positions [rows] int64."""
    return (digits.long() << shifts).sum(1)


class SyrinxTalker(nn.Module, SupportsMRoPE):
    """vLLM's Qwen3 layers between Syrinx's input embedding and sampling.

    Frames are sampled in `compute_logits`, for the rows that vLLM samples: at most one per request. vLLM's sampler has
    no choice, because only the sampled code 0 has a finite logit.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.model = Qwen3Model(vllm_config=vllm_config, prefix=f"{prefix}.model".lstrip("."))
        config = vllm_config.model_config.hf_config
        self._vocabulary = config.vocab_size
        # Piecewise CUDA graphs read the layers' inputs from fixed addresses.
        max_rows = vllm_config.scheduler_config.max_num_batched_tokens
        self._offsets = torch.zeros(max_rows, dtype=torch.int64)
        self._inputs = torch.zeros(max_rows, config.hidden_size)
        self._shifts = torch.arange(0, 32, DIGIT_BITS)
        # vLLM must neither load nor count these weights.
        with _torch_defaults():
            self.frame_generator = _frame_generator(vllm_config)

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: list[Any]) -> tuple[Tensor, int]:
        """Returns positions [3, tokens] that encode the request, and the offset that vLLM adds to later positions."""
        base = handle_of(input_tokens).base
        return (torch.arange(len(input_tokens)) + base).expand(3, -1), base

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Unused by forward(); inputs are looked up from the position."""
        embeddings: Tensor = self.model.embed_input_ids(input_ids)
        return embeddings

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: object = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """Returns the layers' outputs followed by the digits of each row's position: [rows, hidden + 4].

        `compute_logits` receives a selection of these rows and nothing else, so they carry their positions.
        """
        encoded, count = positions[0], positions.shape[1]
        offsets = torch.bitwise_and(encoded, OFFSET_MASK, out=self._offsets[:count])
        inputs = self.frame_generator.embed_inputs(encoded, self._inputs[:count])
        hidden = self.model(None, offsets, None, inputs)
        return torch.cat((hidden, to_digits(encoded, self._shifts).to(hidden.dtype)), 1)

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Samples the rows' frames. Returns logits [rows, vocabulary] that are -inf except for the sampled code 0."""
        count = len(self._shifts)
        positions = from_digits(hidden_states[:, -count:], self._shifts)
        code0 = self.frame_generator.sample(positions, hidden_states[:, :-count])
        logits = torch.full((len(code0), self._vocabulary), -torch.inf, device=code0.device)
        return logits.scatter_(1, code0[:, None], 0.0)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Loads the decoder layers; vLLM packs, shards and quantizes them. Returns the names of loaded parameters."""

        def layer_weights() -> Iterable[tuple[str, Tensor]]:
            for name, tensor in weights:
                local = name.removeprefix(_LAYERS_PREFIX)
                if local != name and not local.startswith("text_embedding."):
                    yield local.replace("codec_embedding.", "embed_tokens."), tensor

        return {f"model.{name}" for name in self.model.load_weights(layer_weights())}


@contextmanager
def _torch_defaults() -> Iterator[None]:
    """Restores torch's default dtype and device, which vLLM changes while it builds a model."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(before)


def _frame_generator(config: VllmConfig) -> FrameGenerator:
    extra, device = config.additional_config, torch.device(config.device_config.device_type)
    if device.type != "cuda":
        return EagerFrameGenerator(Checkpoint(extra[CHECKPOINT_KEY]))
    # Imported late: the kernels need Triton, which CPU images do not have.
    from syrinx_stages.talker_vllm.cuda_frame_generator import CudaFrameGenerator

    checkpoint = Checkpoint(extra[CHECKPOINT_KEY], device, config.model_config.dtype)
    return CudaFrameGenerator(checkpoint, config.scheduler_config.max_num_seqs, extra[MAX_FRAMES_KEY])
