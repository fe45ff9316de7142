"""The kernel of attention within a frame: what it is compiled to, run on the CPU."""

import support.interpreter  # noqa: F401, I001 (before any kernel)

from collections.abc import Iterator

import pytest
import torch
from support.attending import Attention, check_step
from support.ptx import Device

from syrinx_stages.kernels import attention as kernels

CLOSE = 0.03
"""Of numbers around one, in bfloat16."""
POSITIONS = 16


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    device = Device("norms", "cosines", "sines", "positions", "table", "cache")
    yield device
    device.close()


@pytest.fixture(autouse=True)
def launched(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "launch", device.launch)
    monkeypatch.setattr(kernels, "PDL_SUPPORTED", True)
    monkeypatch.setattr(kernels, "INTERPRETED", False)


def attention(kv: int, group: int, pages: list[list[int]], size: int = 32) -> Attention:
    return Attention(kv=kv, group=group, size=size, page=POSITIONS, pages=pages, kind=torch.bfloat16)


@pytest.mark.parametrize(("kv", "group", "size"), [(2, 2, 128), (1, 3, 32), (1, 5, 64)])
@pytest.mark.parametrize("position", [2, POSITIONS - 1])
def test_a_step_within_a_frame_has_one_page(kv: int, group: int, size: int, position: int) -> None:
    case = attention(kv, group, [[0], [1], [2]], size)
    check_step(case, [position] * 3, CLOSE, small=True)
