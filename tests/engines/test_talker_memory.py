"""What the talker's engine allocates on a GPU, counted on torch's meta device, whose tensors have no memory."""

import support.interpreter  # noqa: F401, I001 (before any kernel)

import gc
from functools import cache

import msgspec
import pytest
import torch
from gpu.checkpoint import SIZES, talker_settings

from syrinx_stages.kernels.recorder import GraphRecorder
from syrinx_stages.model.config import ModelConfig, TalkerConfig
from syrinx_stages.model.talker import Talker
from syrinx_stages.talker.cuda.model_runner import ModelRunner, resident_bytes
from syrinx_stages.talker.cuda.packed import PackedTalker, pack
from syrinx_stages.talker.cuda.prefill import prefill_shapes

META = torch.device("meta")
GIB = 1 << 30
FIXED_BYTES = GIB // 4
"""What does not depend on the number of requests: prefills, and the smallest steps."""


def allocated() -> int:
    """Returns the bytes of all tensors on the meta device."""
    gc.collect()
    tensors = [each for each in gc.get_objects() if type(each) is torch.Tensor and each.device == META]
    return sum({each.untyped_storage()._cdata: each.untyped_storage().nbytes() for each in tensors}.values())


@cache
def weights_of(size: str) -> tuple[PackedTalker, TalkerConfig]:
    """Returns the weights of a checkpoint of this size, and its configuration."""
    config = msgspec.convert(talker_settings(size, 0), ModelConfig).talker_config
    with META, torch.inference_mode():
        return pack(Talker(config).to(torch.bfloat16)), config


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("resident", [16, 1024])
def test_requests_and_steps_need_no_more_than_resident_bytes(size: str, resident: int) -> None:
    weights, config = weights_of(size)
    before = allocated()
    runner = ModelRunner(weights, config, GraphRecorder(META), resident)
    _steps = [runner.new_frame(rows) for rows in runner.batch_sizes]
    _prefills = [runner.new_prefill(rows, length) for rows, length in prefill_shapes()]
    needed = allocated() - before
    expected = resident * resident_bytes(config, weights.norm)
    assert 0.95 * expected < needed < expected + FIXED_BYTES
