"""The engine that a configuration selects."""

import pytest
import torch

from syrinx_stages.contract.settings import StageConfig
from syrinx_stages.families import qwen3_tts
from syrinx_stages.runtime.errors import StartError
from syrinx_stages.runtime.settings import LiveSettings
from syrinx_stages.talker.eager_engine import EagerTalkerEngine

CPU = torch.device("cpu")


def config(**fields: object) -> StageConfig:
    return StageConfig(pipeline="demo", generation="g", model="bundled", **fields)


def test_cpu_uses_the_eager_engine() -> None:
    given = config()
    assert isinstance(qwen3_tts.load_talker_engine(given, CPU, LiveSettings(given.talker, 0)), EagerTalkerEngine)


def test_vllm_engine_without_vllm_raises_start_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qwen3_tts, "find_spec", lambda name: None)
    given = config(engine="vllm")
    with pytest.raises(StartError, match="engine vllm: vLLM is not installed here; use the stages image that has it"):
        qwen3_tts.load_talker_engine(given, CPU, LiveSettings(given.talker, 0))
