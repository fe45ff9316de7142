"""The torch device a stage computes on."""

from __future__ import annotations

import torch

from syrinx_stages.runtime.errors import StartError


def prepare(name: str) -> torch.device:
    """The device called `name` (`cpu`, `cuda`, `cuda:1`). Raises `StartError` if this machine does not have it."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise StartError(f"device {name!r} cannot be used: {str(error).splitlines()[0]}") from None
    if device.type == "cpu":
        # A row's result is independent of its batch on one thread only; stages scale by processes.
        torch.set_num_threads(1)
    return device
