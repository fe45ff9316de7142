"""The torch device a stage computes on."""

from __future__ import annotations

from importlib.metadata import version

import torch

from syrinx_stages.contract.metrics import INFO
from syrinx_stages.runtime.errors import StartError
from syrinx_stages.runtime.metrics import Metrics


def open_device(name: str, metrics: Metrics) -> torch.device:
    """The device called `name` (`cpu`, `cuda`, `cuda:1`), shown in the metrics.

    Raises `StartError` if this machine does not have it.
    """
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise StartError(f"device {name!r} cannot be used: {str(error).splitlines()[0]}") from None
    if device.type == "cpu":
        # A row's result is independent of its batch on one thread only; stages scale by processes.
        torch.set_num_threads(1)
    metrics[INFO].labels(version("syrinx"), _description(device)).set(1)
    return device


def _description(device: torch.device) -> str:
    """`cpu`, or `cuda` and what the device is."""
    return f"cuda {torch.cuda.get_device_name(device)}" if device.type == "cuda" else device.type
