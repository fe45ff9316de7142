"""Which engine a talker is started with."""

import pytest
import torch

from syrinx_stages.contract.settings import StageConfig
from syrinx_stages.runtime.errors import StartError
from syrinx_stages.runtime.settings import LiveSettings
from syrinx_stages.talker import service
from syrinx_stages.talker.eager_engine import EagerTalkerEngine
from syrinx_stages.talker.service import load_engine

CPU = torch.device("cpu")


def config(**fields: object) -> StageConfig:
    return StageConfig(pipeline="demo", generation="g", model="bundled", **fields)


def test_a_cpu_has_the_modules_engine() -> None:
    given = config()
    assert isinstance(load_engine(given, CPU, LiveSettings(given.talker, 0)), EagerTalkerEngine)


def test_without_vllm_its_engine_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "find_spec", lambda name: None)
    given = config(engine="vllm")
    with pytest.raises(StartError, match="engine vllm: vLLM is not installed here; use the stages image that has it"):
        load_engine(given, CPU, LiveSettings(given.talker, 0))
