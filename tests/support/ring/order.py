"""A plugin of pytest that runs files, and the tests within each, in the random order of a seed."""

from __future__ import annotations

import os
import random
from collections import defaultdict
from pathlib import Path

import pytest

SEED = "SYRINX_TEST_ORDER"
"""The environment variable with the seed; without it nothing changes."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Shuffles before pytest groups tests by the parameters of their fixtures, so that each is still made once."""
    if seed := os.environ.get(SEED):
        items[:] = shuffled(items, int(seed))


def shuffled(items: list[pytest.Item], seed: int) -> list[pytest.Item]:
    """Returns the items in the order of the seed, those of a file together."""
    draw = random.Random(seed)
    files: dict[Path, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[item.path].append(item)
    groups = list(files.values())
    draw.shuffle(groups)
    for group in groups:
        draw.shuffle(group)
    return [item for group in groups for item in group]
