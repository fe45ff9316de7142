"""Compiles the engines' kernels for any GPU model, on a machine without a GPU.

The engines run on torch's meta device, whose tensors have no memory: they choose their tiles and call Triton's compiler
and ptxas as at the start on that GPU, and nothing is executed.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from syrinx_stages.kernels import gpu as gpu_module
from syrinx_stages.kernels import launch
from syrinx_stages.kernels.gpu import Gpu, gpu_of
from syrinx_stages.kernels.recorder import GraphRecorder

META = torch.device("meta")
THREADS = 2
"""Of one compilation."""


class _Driver:
    """Triton's driver, as far as the compiler needs it: it says which GPU to compile for."""

    def __init__(self, gpu: Gpu) -> None:
        major, minor = gpu.capability
        self._target = GPUTarget("cuda", 10 * major + minor, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> Hashable:
        """Returns the key of what Triton has compiled in this process: a new one for each driver."""
        return self

    def get_current_stream(self, device: int) -> int:
        return 0


class Kernel(NamedTuple):
    """A compiled kernel."""

    name: str
    constants: dict[str, Any]
    shared_memory: int
    """Bytes of a thread block."""
    tensor_memory: int
    """Columns of a thread block's tensor memory, on sm_100."""
    launches_early: bool
    """Whether it is launched before the previous kernel has ended."""
    ptx: Path
    cubin: Path

    def stack(self) -> int:
        """Returns the bytes of a thread's stack, which holds what its registers do not."""
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", str(self.cubin)]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found = re.search(r"STACK:(\d+)", usage)
        assert found, usage
        return int(found[1])


@contextmanager
def compiler(gpu: Gpu) -> Iterator[list[Kernel]]:
    """Makes the engines on `META` compile for a GPU model. Yields the kernels compiled so far."""
    kernels: list[Kernel] = []

    def record(src: Any, metadata: dict[str, Any], metadata_group: dict[str, str], **rest: object) -> None:
        paths = {Path(path).suffix: Path(path) for path in metadata_group.values()}
        constants = {src.fn.arg_names[index]: value for (index,), value in src.constants.items()}
        kernels.append(
            Kernel(
                src.name, constants, metadata["shared"], metadata.get("tmem_size") or 0, metadata["launch_pdl"],
                paths[".ptx"], paths[".cubin"],
            )
        )  # fmt: skip

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_module, "H200", gpu)
        patch.setattr(launch, "COMPILE_THREADS", THREADS)
        patch.setattr(GraphRecorder, "compile", _compile)
        patch.setattr(driver, "_active", _Driver(gpu))
        patch.setattr(knobs.compilation, "listener", record)
        gpu_of.cache_clear()
        yield kernels
    gpu_of.cache_clear()


def _compile(self: GraphRecorder, works: Sequence[Callable[[], None]]) -> None:
    """Compiles what `works` launch, as `GraphRecorder.compile` does on a GPU."""
    with torch.inference_mode(), launch.compile_only():
        for work in works:
            work()
