"""The simulation finds planted bugs. `make test-simulation` records in how many seeds."""

import json
from pathlib import Path

import pytest

from support.simulation.planted import BUGS
from support.simulation.runner import seed_that_finds

RESULTS = Path(__file__).parents[3] / "bench" / "results" / "simulation.json"
RECORDED = {each["name"]: each["found_in"] for each in json.loads(RESULTS.read_text())["planted"]}
MAX_SEEDS = 500
"""The recorded seed finds a bug; after a change of the code, one of these after it."""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug):
    first = RECORDED.get(bug.name, 1) - 1
    assert seed_that_finds(bug, range(first, first + MAX_SEEDS)) is not None
