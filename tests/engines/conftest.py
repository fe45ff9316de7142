"""A small checkpoint with random weights, and its engine of plain modules."""

import pytest

from support import small_talker
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.talker.eager_engine import EagerTalkerEngine


@pytest.fixture(scope="session")
def voice(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint(str(small_talker.write(tmp_path_factory.mktemp("checkpoint") / "voice")))


@pytest.fixture(scope="session")
def eager(voice: Checkpoint) -> EagerTalkerEngine:
    return EagerTalkerEngine(voice)
