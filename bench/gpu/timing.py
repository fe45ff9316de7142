"""An H200's peak rates, and timing of work on a device."""

import statistics
from collections.abc import Callable
from itertools import pairwise

import torch

TENSOR_FLOPS = 990e12
"""Peak of an H200 per second, dense, 16-bit (NVIDIA's data sheet)."""
MEMORY_BYTES = 4.8e12
"""Peak of an H200 per second (NVIDIA's data sheet)."""
REPEATS = 40


def record_event() -> torch.cuda.Event:
    """Returns a timing event recorded on the current stream."""
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def elapsed_ms(*functions: Callable[[], None], repeats: int = REPEATS) -> list[float]:
    """Runs the functions in turn on the current stream; returns the median device time of each."""
    rounds = []
    for _ in range(repeats):
        events = [record_event()]
        for function in functions:
            function()
            events.append(record_event())
        rounds.append(events)
    rounds[-1][-1].synchronize()
    times = [[float(start.elapsed_time(end)) for start, end in pairwise(events)] for events in rounds]
    return [statistics.median(column) for column in zip(*times, strict=True)]
