"""How much memory of a GPU an engine may use."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from syrinx_stages.runtime.errors import StartError

OVERHEAD_BYTES = 2 << 30
"""What a process uses besides its tensors: the CUDA context, kernels, graphs and their temporary tensors."""
GIB = 1 << 30


def free_share(device: torch.device, fraction: float, needed: int, what: str) -> int:
    """Returns the bytes that an engine may still allocate of a `fraction` of the device's memory.

    What the process has allocated and `OVERHEAD_BYTES` are part of its share. Raises `StartError` if less than `needed`
    is left, the minimum of `what`.
    """
    free, total = torch.cuda.mem_get_info(device)
    left = int(fraction * total) - torch.cuda.memory_reserved(device) - OVERHEAD_BYTES
    if left < needed:
        raise StartError(
            f"memoryFraction {fraction:g} of {total / GIB:.1f} GiB leaves {max(left, 0) / GIB:.1f} GiB for {what}, "
            f"which needs at least {needed / GIB:.1f} GiB: increase memoryFraction, set standby to false if "
            "it is true, or use a larger GPU"
        )
    if free < needed:
        raise StartError(
            f"only {free / GIB:.1f} GiB of the GPU's memory are free, and {what} needs at least "
            f"{needed / GIB:.1f} GiB: stop what else uses the GPU, or use another one"
        )
    return min(left, free)


@contextmanager
def refuse_out_of_memory(device: torch.device, what: str) -> Iterator[None]:
    """Raises `StartError` in place of a failed allocation of the device's memory. what: is being allocated."""
    try:
        yield
    except torch.OutOfMemoryError:
        name, (_, total) = torch.cuda.get_device_name(device), torch.cuda.mem_get_info(device)
        raise StartError(
            f"{name}: {what} do not fit into its {total / GIB:.1f} GiB of memory, of which this process uses "
            f"{torch.cuda.memory_reserved(device) / GIB:.1f} GiB: stop what else uses the GPU, or use a larger one"
        ) from None
