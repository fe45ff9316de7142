"""The kernels beside a library's products, in the interpreter, compared with PyTorch."""

import support.interpreter  # noqa: F401, I001 (before any kernel)

import pytest
import torch
from torch.nn.functional import rms_norm, silu

from syrinx_stages.kernels.rows import gate_rows, norm_rows


@pytest.mark.parametrize("width", [64, 320, 2048])
def test_norm(width: int) -> None:
    x = torch.randn(3, width, generator=torch.Generator().manual_seed(width))
    x[1] = 0
    out = torch.full_like(x, torch.nan)
    norm_rows(x, out, 1e-6)
    torch.testing.assert_close(out, rms_norm(x, (width,), eps=1e-6))


@pytest.mark.parametrize("width", [96, 1024, 1500])
def test_gate(width: int) -> None:
    x = 3 * torch.randn(3, 2 * width, generator=torch.Generator().manual_seed(width))
    out = torch.full((3, width), torch.nan)
    gate_rows(x, out)
    torch.testing.assert_close(out, silu(x[:, :width]) * x[:, width:])
