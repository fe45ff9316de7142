"""Hardware limits that the choice of tiles depends on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

SHARED_MEMORY_KIB = {
    (8, 0): 163,  # A100
    (8, 6): 99,  # A10, A40, RTX 30
    (8, 7): 163,  # Orin
    (8, 9): 99,  # L4, L40S, RTX 40
    (9, 0): 227,  # H100, H200
    (10, 0): 227,  # B200
    (10, 3): 227,  # B300
    (11, 0): 227,  # Thor
    (12, 0): 99,  # RTX 50, RTX PRO 6000
    (12, 1): 99,  # GB10
}
"""Shared memory that one thread block may use, by compute capability. Source: CUDA C++ Programming Guide, "Compute
Capabilities". An unknown architecture counts as having the smallest."""


@dataclass(frozen=True)
class Gpu:
    """A GPU model."""

    capability: tuple[int, int]
    multiprocessors: int

    @property
    def shared_memory(self) -> int:
        """Bytes of shared memory that one thread block may use."""
        return SHARED_MEMORY_KIB.get(self.capability, min(SHARED_MEMORY_KIB.values())) * 1024

    @property
    def has_async_mma(self) -> bool:
        """Whether tensor cores read shared memory asynchronously (wgmma, tcgen05), which takes one more buffer."""
        return 9 <= self.capability[0] <= 11


H200 = Gpu((9, 0), 132)


def gpu_of(device: torch.device) -> Gpu:
    """Returns the model of a CUDA device; for a CPU, where kernels are interpreted, `H200`."""
    if device.type != "cuda":
        return H200
    properties = torch.cuda.get_device_properties(device)
    return Gpu((properties.major, properties.minor), properties.multi_processor_count)
