"""The talker on vLLM on a GPU: as the float32 modules, in vLLM's CUDA graphs and beside prompts, a step ahead.

Runs where vLLM is installed too, with a card to itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpu.checkpoint import write_configs, write_weights
from support import small_talker
from support.talker_lifetimes import Lifetimes, Reference
from syrinx_stages.contract.messages import End, Sampling
from syrinx_stages.contract.settings import VllmOptions
from syrinx_stages.model.checkpoint import Checkpoint

pytest.importorskip("vllm")

if TYPE_CHECKING:
    from syrinx_stages.talker_vllm.engine import VllmTalkerEngine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

RESIDENT = 24
CLOSE = 0.06
"""By how much of the probability a random number may miss a code's share in bfloat16."""
ENDLESS = Sampling(top_k=0, residual_top_k=0, min_frames=99)


@pytest.fixture(scope="module", autouse=True)
def exact_reference() -> Iterator[None]:
    """What runs in float32 on the device multiplies in float32."""
    torch.set_float32_matmul_precision("highest")
    with sdpa_kernel(SDPBackend.MATH):
        yield


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers as wide as in the 1.7B checkpoint."""
    directory = tmp_path_factory.mktemp("checkpoint")
    write_configs(directory, "1b7")
    settings = json.loads((directory / "config.json").read_text())
    settings["talker_config"]["num_hidden_layers"] = 2
    settings["talker_config"]["max_position_embeddings"] = 4096
    (directory / "config.json").write_text(json.dumps(settings))
    write_weights(directory)
    return directory


@pytest.fixture(scope="module")
def reference(directory: Path) -> Reference:
    return Reference(Checkpoint(str(directory), "cuda"))


def load(directory: Path, **options: Any) -> VllmTalkerEngine:
    os.environ["HF_HUB_OFFLINE"] = "1"
    from syrinx_stages.talker_vllm.engine import VllmTalkerEngine

    checkpoint = Checkpoint(str(directory), "cuda", torch.bfloat16)
    return VllmTalkerEngine(checkpoint, RESIDENT, lambda: RESIDENT, VllmOptions(gpu_memory_utilization=0.3, **options))


@pytest.fixture(scope="module")
def engine(directory: Path) -> VllmTalkerEngine:
    return load(directory)


@pytest.mark.parametrize("resident", [1, 7, RESIDENT])
def test_requests_that_come_and_go_say_what_each_would_alone(
    reference: Reference, engine: VllmTalkerEngine, resident: int
) -> None:
    lifetimes = Lifetimes(reference, engine, resident, seed=resident, max_frames=12, arrival_probability=0.9)
    lifetimes.run(steps=60)
    assert len(lifetimes.errors) > 20 * resident**0.5
    assert max(lifetimes.errors) < CLOSE
    assert len(engine._handles) == RESIDENT


def test_a_prompt_longer_than_a_step_is_fed_beside_those_that_speak(
    reference: Reference, engine: VllmTalkerEngine
) -> None:
    rows = [
        reference.start(small_talker.request("short", voice="ryan", sampling=ENDLESS)),
        reference.start(small_talker.request("long", small_talker.text(900), voice="ryan", sampling=ENDLESS)),
    ]
    engine.admit([engine.prepare(row.request, b"", None) for row in rows])
    heard: set[str] = set()
    while len(heard) < len(rows):
        said = engine.read(engine.launch([row.request.id for row in rows]))
        spoke = [row for row in rows if row.request.id in said]
        frames = [said[row.request.id] for row in spoke]
        assert not any(isinstance(frame, End) for frame in frames)
        assert max(reference.errors(spoke, frames)) < CLOSE
        heard |= said.keys()
    for row in rows:
        engine.release(row.request.id)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_devices_say_what_one_would(reference: Reference, directory: Path) -> None:
    """Each draws all codes itself: one that differed would be fed something else from then on."""
    engine = load(directory, tensor_parallel_size=2)
    try:
        lifetimes = Lifetimes(reference, engine, 7, seed=7, max_frames=12, arrival_probability=0.9)
        lifetimes.run(steps=60)
        assert len(lifetimes.errors) > 50
        assert max(lifetimes.errors) < CLOSE
    finally:
        engine._vllm.engine_core.shutdown()
