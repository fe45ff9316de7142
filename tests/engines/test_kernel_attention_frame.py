"""The Gluon attention kernel: its compiled PTX, run on the CPU."""

import support.interpreter  # noqa: F401, I001 (before any kernel)

from collections.abc import Iterator

import pytest
import torch
from support.attention import AttentionCase, check_decode
from support.ptx import Device

from syrinx_stages.kernels import attention as kernels

TOLERANCE = 0.03
"""Of numbers around one, in bfloat16."""
POSITIONS = 16


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    device = Device("norms", "cosines", "sines", "positions", "page_table", "cache")
    yield device
    device.close()


@pytest.fixture(autouse=True)
def launched(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "launch", device.launch)
    monkeypatch.setattr(kernels, "supports_pdl", lambda device: True)
    monkeypatch.setattr(kernels, "INTERPRETED", False)


@pytest.mark.parametrize(("kv", "group", "size"), [(2, 2, 128), (1, 3, 32), (1, 5, 64)])
@pytest.mark.parametrize("position", [2, POSITIONS - 1])
def test_decode_with_one_page(kv: int, group: int, size: int, position: int) -> None:
    case = AttentionCase(
        num_kv_heads=kv,
        group_size=group,
        head_size=size,
        page_size=POSITIONS,
        pages=[[0], [1], [2]],
        dtype=torch.bfloat16,
    )
    check_decode(case, [position] * 3, TOLERANCE, one_page=True)
