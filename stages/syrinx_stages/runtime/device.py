"""The torch device of a stage."""

from __future__ import annotations

from importlib.metadata import version

import torch

from syrinx_stages.contract.metrics import INFO
from syrinx_stages.runtime.errors import StartError
from syrinx_stages.runtime.metrics import Metrics


def open_device(name: str, metrics: Metrics) -> torch.device:
    """Returns the device called `name` (`cpu`, `cuda`, `cuda:1`) and exports it as `syrinx_info`.

    Raises `StartError` if the device is not available.
    """
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise StartError(f"device {name!r} cannot be used: {str(error).splitlines()[0]}") from None
    if device.type == "cpu":
        # With several threads the result of a row would depend on its batch. Stages scale by processes instead.
        torch.set_num_threads(1)
    description = f"cuda {torch.cuda.get_device_name(device)}" if device.type == "cuda" else device.type
    metrics[INFO].labels(version("syrinx"), description).set(1)
    return device
