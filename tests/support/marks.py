"""Marks of frames that two devices have sampled."""

from collections.abc import Sequence

import numpy as np


def assert_close(found: Sequence[int], expected: Sequence[int]) -> None:
    """Compares marks. Sums in another order may differ by a step, because each part of a mark is rounded down."""
    parts = [np.array([(mark & 0x7F, mark & 0x80, mark >> 8) for mark in marks]) for marks in (found, expected)]
    assert (abs(parts[0] - parts[1]) <= [1, 0, 1]).all()
    assert (parts[0] == parts[1]).mean() > 0.9
