"""The GPUs as NVML sees them (`nvidia-ml-py`); none where it, or a driver, is missing."""

from __future__ import annotations

import importlib
import re
from typing import Any

from msgspec import Struct


class Sample(Struct, frozen=True):
    """One GPU at an instant."""

    utilisation: float
    """Share of the last sampling period in which a kernel ran."""
    memory_bytes: float
    """In use, by everybody."""
    watts: float


class Gpus:
    """The GPUs of this machine."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        try:
            self._nvml = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
        except Exception:  # The package is missing, or its own error: there is no driver.
            return
        count = self._nvml.nvmlDeviceGetCount()
        self._handles = [self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]

    def names(self) -> list[str]:
        """As NVIDIA calls them."""
        return [str(self._nvml.nvmlDeviceGetName(handle)) for handle in self._handles]

    def short_name(self) -> str:
        """Of the first one, as `h200`; `gpu` where there is none."""
        found = re.search(r"\b[A-Z]+\d+\w*", self.names()[0]) if self._handles else None
        return found[0].lower() if found else "gpu"

    def driver(self) -> str | None:
        """The driver's version."""
        return str(self._nvml.nvmlSystemGetDriverVersion()) if self._handles else None

    def sample(self) -> list[Sample]:
        """All of them now."""
        return [
            Sample(
                self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
                self._nvml.nvmlDeviceGetMemoryInfo(handle).used,
                self._nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            )
            for handle in self._handles
        ]
