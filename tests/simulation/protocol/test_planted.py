"""The simulation finds planted bugs."""

import pytest

from support.simulation.planted import BUGS
from support.simulation.runner import seeds_to_find

MAX_SEEDS = 400


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug):
    assert seeds_to_find(bug, MAX_SEEDS) is not None
