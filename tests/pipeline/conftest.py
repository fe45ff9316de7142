"""Shared by the tests of the gateway."""

from collections.abc import AsyncIterator

import pytest

from support import small_checkpoint
from support.cloning import stages_of
from support.gateway import Gateway, gateway
from support.stages import Pipeline
from syrinx_stages.model.checkpoint import Checkpoint


@pytest.fixture
async def running() -> AsyncIterator[Gateway]:
    """A gateway of the bundled checkpoint, with scripted stages."""
    async with gateway() as it:
        yield it


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A small Base checkpoint."""
    return Checkpoint(str(small_checkpoint.write(tmp_path_factory.mktemp("base") / "model", "base")))


@pytest.fixture
async def base_stages(base: Checkpoint) -> AsyncIterator[Pipeline]:
    """A talker and a codec of it."""
    async with stages_of(base) as it:
        yield it
