"""The properties of a GPU that the choice of tiles depends on."""

from functools import cache
from typing import NamedTuple

import torch


class Gpu(NamedTuple):
    """A GPU model."""

    capability: tuple[int, int]
    shared_memory: int
    """Bytes that one thread block may use."""
    multiprocessors: int = 132


H200 = Gpu((9, 0), 227 << 10)

MIN_CAPABILITY = (8, 0)
"""Ampere: the first architecture with bfloat16 tensor cores."""


@cache
def gpu_of(device: torch.device) -> Gpu:
    """Returns the properties of a CUDA device; those of an H200 for other devices, which have no limits."""
    if device.type != "cuda":
        return H200
    properties = torch.cuda.get_device_properties(device)
    shared_memory = properties.shared_memory_per_block_optin  # type: ignore[attr-defined]
    return Gpu((properties.major, properties.minor), shared_memory, properties.multi_processor_count)


def power_of_two_divisor(size: int, limit: int) -> int:
    """Returns the largest power of two up to `limit`, itself a power of two, that divides `size`."""
    return min(size & -size, limit)
