"""Sampling parameters of a request in the layout that `kernels.sampling` reads."""

from __future__ import annotations

from syrinx_stages.contract.messages import Sampling
from syrinx_stages.model.sampling import MIN_TEMPERATURE


def sampling_params(sampling: Sampling) -> list[list[float]]:
    """Returns a slot's sampling parameters [2, NUM_SAMPLING_PARAMS]: for code 0, then for the residual codes."""
    temperatures = [t if t >= MIN_TEMPERATURE else 0.0 for t in (sampling.temperature, sampling.residual_temperature)]
    code0 = [temperatures[0], sampling.top_k, sampling.top_p, sampling.repetition_penalty, sampling.min_frames]
    residual = [temperatures[1], sampling.residual_top_k, sampling.residual_top_p, 1, 0]
    return [code0, residual]


def signed_seed(seed: int) -> int:
    """Returns `seed` as a signed 64-bit integer with the same bits."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)
