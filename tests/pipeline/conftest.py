"""Shared by the tests of the gateway."""

from collections.abc import AsyncIterator

import pytest

from support.gateway import Gateway, gateway


@pytest.fixture
async def running() -> AsyncIterator[Gateway]:
    """A gateway of the bundled checkpoint, with scripted stages."""
    async with gateway() as it:
        yield it
