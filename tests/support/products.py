"""One product of `kernels.linear` beside torch's, in memory that is poisoned around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import torch
from torch import Tensor

if TYPE_CHECKING:
    # On a machine without a GPU whoever imports the kernels first decides that they are interpreted.
    from syrinx_stages.kernels.linear import Tile

GUARD = 16
"""Rows behind the last, and columns behind each, that nobody may read or write."""
EPS = 1e-6
SURROUNDINGS: dict[str, dict[str, int]] = {
    "nothing": {},
    "a norm before": {"parts": 5},
    "a norm of one sum": {"parts": 1},
    "a norm and a gate": {"parts": 4, "gated": True},
    "a residual": {"adds": True},
    "rows picked by index": {"indexed": True},
}
"""What may be around a product, by name: arguments of a `Case`."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A product and what surrounds it."""

    tile: Tile
    rows: int
    outer: int
    inner: int
    parts: int = 0
    """Of the squares that it is normalised by; 0: it is not."""
    gated: bool = False
    adds: bool = False
    """It is added to what is there, and the sums of the result's squares are wanted."""
    indexed: bool = False
    """Its rows are picked from more of them."""


class Product:
    """The operands of a case, and what must come of them."""

    def __init__(self, case: Case, device: str = "cpu", kind: torch.dtype = torch.float32, seed: int = 0) -> None:
        self._case = case
        self._generator = torch.Generator(device).manual_seed(seed)
        self._kind = kind
        rows, outer, inner = case.rows, case.outer, case.inner
        high = 2 * rows if case.indexed else rows
        self._x = self._guarded(high, inner, kind)
        self._weight = (self._drawn((2 if case.gated else 1) * outer, inner) * inner**-0.5).to(kind)
        self._index: Tensor | None = None
        if case.indexed:
            picked = torch.randperm(high, generator=self._generator, device=device)[:rows]
            self._index = torch.full((rows, 4), 1 << 20, dtype=torch.int32, device=device)
            self._index[:, 0] = picked
        self._squares = self._drawn(rows, case.parts).square() * inner / case.parts if case.parts else None
        self._out = self._guarded(rows, outer, kind)
        if not case.adds:
            self._out.fill_(torch.nan)
        self._out_squares = torch.full((rows + GUARD, outer // case.tile.columns), torch.nan, device=device)
        self._wanted = self._product()
        from syrinx_stages.kernels.linear import SplitKWorkspace

        self._sharing = SplitKWorkspace(
            torch.full((16 * (rows + 128) * outer,), torch.nan, device=device),
            torch.zeros((rows + 128) * outer, dtype=torch.int32, device=device),
        )

    def run(self) -> None:
        """Launches the kernel."""
        from syrinx_stages.kernels.linear import linear

        case = self._case
        linear(
            self._x, self._weight, self._out, case.tile, rows=case.rows, index=self._index, squares=self._squares,
            eps=EPS, gated=case.gated, residual=self._out if case.adds else None,
            out_squares=self._out_squares if case.adds else None, sharing=self._sharing, early=case.gated,
        )  # fmt: skip

    def check(self, close: float) -> None:
        """Raises AssertionError if a number is further off than `close`, or another than the result was written."""
        rows, outer = self._case.rows, self._case.outer
        result = self._out[:rows, :outer]
        torch.testing.assert_close(result.float(), self._wanted, atol=close, rtol=close)
        assert self._out[rows:].isnan().all(), "rows behind the last are left alone"
        assert torch.as_strided(self._out, (rows, GUARD), (outer + GUARD, 1), outer).isnan().all()
        assert not self._sharing.arrived.any(), "counts are zero again"
        if self._case.adds:
            squares = result.float().view(rows, -1, self._case.tile.columns).square().sum(-1)
            torch.testing.assert_close(self._out_squares[:rows], squares, atol=close, rtol=max(close, 1e-4))
        assert self._out_squares[rows if self._case.adds else 0 :].isnan().all()

    def _product(self) -> Tensor:
        case = self._case
        x = self._x[: case.rows] if self._index is None else self._x[self._index[:, 0].long()]
        result = x.float() @ self._weight.float().T
        if self._squares is not None:
            result = result * torch.rsqrt(self._squares.sum(1, keepdim=True) / case.inner + EPS)
        if case.gated:
            result = torch.nn.functional.silu(result[:, : case.outer]) * result[:, case.outer :]
        return result + self._out[: case.rows].float() if case.adds else result

    def _drawn(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator, device=self._generator.device)

    def _guarded(self, rows: int, width: int, kind: torch.dtype) -> Tensor:
        """Random rows [rows + GUARD, width] within a matrix of no numbers, GUARD wider."""
        whole = torch.full((rows + GUARD, width + GUARD), torch.nan, device=self._generator.device, dtype=kind)
        whole[:rows, :width] = self._drawn(rows, width)
        return whole[:, :width]
