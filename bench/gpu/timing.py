"""What an H200 can do at most, and how work on a device is timed."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from itertools import pairwise

import torch

TENSOR_FLOPS = 990e12
"""Of an H200, dense, 16-bit (NVIDIA's data sheet)."""
MEMORY_BYTES = 4.8e12
"""A second, of the same."""
REPEATS = 40


def stamp() -> torch.cuda.Event:
    """An event that is recorded now, on the current stream."""
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def elapsed_ms(*pieces: Callable[[], None], repeats: int = REPEATS) -> list[float]:
    """What pieces of work take on the device, in turn on the current stream: the median of each."""
    turns = []
    for _ in range(repeats):
        marks = [stamp()]
        for piece in pieces:
            piece()
            marks.append(stamp())
        turns.append(marks)
    turns[-1][-1].synchronize()
    times = [[float(begin.elapsed_time(end)) for begin, end in pairwise(marks)] for marks in turns]
    return [statistics.median(column) for column in zip(*times, strict=True)]
