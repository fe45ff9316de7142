"""How a request draws, as the kernels are told."""

from __future__ import annotations

from syrinx_stages.contract.messages import Sampling
from syrinx_stages.model.sampling import COLD


def knobs(sampling: Sampling) -> list[list[float]]:
    """A request's row of the table that `kernels.sampling` reads."""
    temperatures = [t if t >= COLD else 0.0 for t in (sampling.temperature, sampling.residual_temperature)]
    code0 = [temperatures[0], sampling.top_k, sampling.top_p, sampling.repetition_penalty, sampling.min_frames]
    residual = [temperatures[1], sampling.residual_top_k, sampling.residual_top_p, 1, 0]
    return [code0, residual]


def wrapped(seed: int) -> int:
    """A seed as a signed number of 64 bits."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)
