"""The process in which the tuner's model computes."""

import asyncio
import math

import pytest

from support.waiting import DEADLINE
from syrinx_operator.tuner.runner import Planner, own_process


async def answer(planner, question):
    """Asks until the answer is known."""
    async with asyncio.timeout(DEADLINE):
        while (found := planner.ask("one", question)) is None:
            await asyncio.sleep(0.01)
        return found


async def test_the_model_computes_in_a_process_of_its_own():
    planner = Planner(math.sqrt, own_process)
    assert await answer(planner, 4.0) == 2.0
    with pytest.raises(ValueError, match="math domain error"):
        await answer(planner, -1.0)
