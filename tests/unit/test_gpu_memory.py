"""A GPU that is too old or has too little memory is refused in words."""

from collections.abc import Iterator

import pytest
import torch

from support.gpus import GPUS
from syrinx_stages.assembly import check_capability
from syrinx_stages.kernels.gpu import Gpu
from syrinx_stages.runtime.errors import StartError
from syrinx_stages.runtime.gpu_memory import GIB, free_share, refuse_out_of_memory

CUDA = torch.device("cuda")


@pytest.fixture
def l4(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An L4 on which this process has allocated 3 GiB and another one 9 GiB."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10 * GIB, 22 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 3 * GIB)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA L4")
    yield


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_accepts_every_gpu_that_the_kernels_are_compiled_for(gpu: Gpu) -> None:
    check_capability("the GPU", gpu)


def test_refuses_a_gpu_without_bfloat16() -> None:
    with pytest.raises(StartError, match=r"Tesla T4 \(sm_75\) cannot be used: .* Ampere GPU \(sm_80\) .* device: cpu"):
        check_capability("Tesla T4", Gpu((7, 5), 64 << 10, 40))


@pytest.mark.usefixtures("l4")
@pytest.mark.parametrize(("fraction", "gib"), [(0.5, 6), (0.6, 8.2), (1.0, 10)])
def test_an_engine_gets_its_share_as_far_as_it_is_free(fraction: float, gib: float) -> None:
    assert free_share(CUDA, fraction, GIB, "the cache") == pytest.approx(gib * GIB)


@pytest.mark.usefixtures("l4")
@pytest.mark.parametrize(
    ("fraction", "needed", "words"),
    [
        (
            0.25,
            1,
            r"memoryFraction 0\.25 of 22\.0 GiB leaves 0\.5 GiB for the cache, which needs at least 1\.0 GiB: inc",
        ),
        (1.0, 12, r"only 10\.0 GiB of the GPU's memory are free, and the cache needs at least 12\.0 GiB: stop"),
    ],
)
def test_refuses_a_share_that_is_too_small_and_a_gpu_that_others_fill(fraction: float, needed: int, words: str) -> None:
    with pytest.raises(StartError, match=words):
        free_share(CUDA, fraction, needed * GIB, "the cache")


@pytest.mark.usefixtures("l4")
def test_a_failed_allocation_at_the_start_is_said_in_words() -> None:
    words = r"NVIDIA L4: the weights do not fit into its 22\.0 GiB of memory, of which this process uses 3\.0 GiB: stop"
    with pytest.raises(StartError, match=words), refuse_out_of_memory(CUDA, "the weights"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8 GiB")
