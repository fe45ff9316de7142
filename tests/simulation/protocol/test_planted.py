"""The simulation finds planted bugs. `make test-simulation` records in how many seeds."""

import pytest

from support.simulation.planted import BUGS
from support.simulation.runner import seed_that_finds

MAX_SEEDS = 500
"""After a change of the code another seed finds a bug: one of these after its own."""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug):
    assert seed_that_finds(bug, range(bug.seed, bug.seed + MAX_SEEDS)) is not None
