"""Compares one product of `kernels.linear` with PyTorch's; the memory around its operands is NaN."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import torch
from torch import Tensor

if TYPE_CHECKING:
    # Imported late: the first import of the kernels decides whether they are interpreted.
    from syrinx_stages.kernels.linear import Tile

GUARD = 16
"""Rows and columns after the operands that must be neither read nor written."""
EPS = 1e-6
FUSIONS: dict[str, dict[str, int]] = {
    "plain": {},
    "norm": {"parts": 5},
    "norm of one part": {"parts": 1},
    "norm and gate": {"parts": 4, "gated": True},
    "residual": {"adds": True},
    "row index": {"indexed": True},
}
"""What may be fused with a product, by name: arguments of a `Case`."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A product and what is fused with it."""

    tile: Tile
    rows: int
    outer: int
    inner: int
    parts: int = 0
    """Parts of the input's sum of squares; 0: the input is not normalized."""
    gated: bool = False
    adds: bool = False
    """Adds a residual and computes the result's sums of squares."""
    indexed: bool = False
    """Selects the rows of a larger input."""


class Product:
    """The operands of a case, and the expected result."""

    def __init__(self, case: Case, device: str = "cpu", dtype: torch.dtype = torch.float32, seed: int = 0) -> None:
        self._case = case
        self._generator = torch.Generator(device).manual_seed(seed)
        rows, outer, inner = case.rows, case.outer, case.inner
        high = 2 * rows if case.indexed else rows
        self._x = self._guarded(high, inner, dtype)
        self._weight = (self._randn((2 if case.gated else 1) * outer, inner) * inner**-0.5).to(dtype)
        self._row_index: Tensor | None = None
        if case.indexed:
            selected = torch.randperm(high, generator=self._generator, device=device)[:rows]
            self._row_index = torch.full((rows, 4), 1 << 20, dtype=torch.int32, device=device)
            self._row_index[:, 0] = selected
        self._sum_of_squares = self._randn(rows, case.parts).square() * inner / case.parts if case.parts else None
        self.out = self._guarded(rows, outer, dtype)
        if not case.adds:
            self.out.fill_(torch.nan)
        self._out_sum_of_squares = torch.full((rows + GUARD, outer // case.tile.columns), torch.nan, device=device)
        self._expected = self._product()
        from syrinx_stages.kernels.split_k import SplitKWorkspace

        self._workspace = SplitKWorkspace(
            torch.full((16 * (rows + 128) * outer,), torch.nan, device=device),
            torch.zeros((rows + 128) * outer, dtype=torch.int32, device=device),
        )

    def run(self) -> None:
        """Launches the kernel."""
        from syrinx_stages.kernels.linear import linear

        case = self._case
        linear(
            self._x, self._weight, self.out, case.tile, rows=case.rows, row_index=self._row_index,
            sum_of_squares=self._sum_of_squares, eps=EPS, gated=case.gated, residual=self.out if case.adds else None,
            out_sum_of_squares=self._out_sum_of_squares if case.adds else None, workspace=self._workspace,
            launch_early=case.gated,
        )  # fmt: skip

    def check(self, tolerance: float) -> None:
        """Asserts that the result is within `tolerance` and that nothing else was written."""
        rows, outer = self._case.rows, self._case.outer
        result = self.out[:rows, :outer]
        torch.testing.assert_close(result.float(), self._expected, atol=tolerance, rtol=tolerance)
        assert self.out[rows:].isnan().all(), "rows after the last are not written"
        assert torch.as_strided(self.out, (rows, GUARD), (outer + GUARD, 1), outer).isnan().all()
        assert not self._workspace.counters.any(), "counters are zero again"
        if self._case.adds:
            sums = result.float().view(rows, -1, self._case.tile.columns).square().sum(-1)
            torch.testing.assert_close(self._out_sum_of_squares[:rows], sums, atol=tolerance, rtol=max(tolerance, 1e-4))
        assert self._out_sum_of_squares[rows if self._case.adds else 0 :].isnan().all()

    def _product(self) -> Tensor:
        case = self._case
        x = self._x[: case.rows] if self._row_index is None else self._x[self._row_index[:, 0].long()]
        result = x.float() @ self._weight.float().T
        if self._sum_of_squares is not None:
            result = result * torch.rsqrt(self._sum_of_squares.sum(1, keepdim=True) / case.inner + EPS)
        if case.gated:
            result = torch.nn.functional.silu(result[:, : case.outer]) * result[:, case.outer :]
        return result + self.out[: case.rows].float() if case.adds else result

    def _randn(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator, device=self._generator.device)

    def _guarded(self, rows: int, width: int, dtype: torch.dtype) -> Tensor:
        """Returns random rows [rows + GUARD, width] within a NaN matrix that is GUARD columns wider."""
        whole = torch.full((rows + GUARD, width + GUARD), torch.nan, device=self._generator.device, dtype=dtype)
        whole[:rows, :width] = self._randn(rows, width)
        return whole[:, :width]
