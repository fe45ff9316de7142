"""Samples whole frames with the PyTorch modules of `model/`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from syrinx_stages.contract.messages import Sampling
from syrinx_stages.model.config import CODE_GROUPS
from syrinx_stages.model.sampling import Sampler
from syrinx_stages.model.talker import Talker

SeededSampling = tuple[Sampling, int]
"""A request's sampling parameters and seed."""


class FrameSampler:
    """Samples frames of one talker's requests. A row's codes do not depend on the other rows."""

    def __init__(self, talker: Talker) -> None:
        self._talker = talker
        self._eos = talker.config.codec_eos_token_id
        self._cached: tuple[tuple[SeededSampling, ...], Sampler] | None = None
        """The last step's sampler: its rows rarely change from step to step."""

    def sample(
        self, samplings: Sequence[SeededSampling], frames: Sequence[int], hidden: Tensor, seen: Sequence[Tensor]
    ) -> Tensor:
        """Returns the next frame of each row [B, 16]. If code 0 is EOS, the row's other codes are undefined.

        frames: number of frames that each row has. hidden: the talker's states [B, H]. seen: for each row, which
        codes 0 it has, bool [vocabulary].
        """
        draw = self._sampler(tuple(samplings)).step(torch.tensor(frames, device=hidden.device))
        code0 = draw.code0(self._talker.logits(hidden), torch.stack(list(seen)))
        if bool((code0 == self._eos).all()):
            return code0[:, None].expand(-1, CODE_GROUPS)
        return self._talker.predict(hidden, code0, draw.residual)

    def _sampler(self, rows: tuple[SeededSampling, ...]) -> Sampler:
        if self._cached is None or self._cached[0] != rows:
            samplings, seeds = zip(*rows, strict=True)
            self._cached = rows, Sampler(samplings, seeds, self._talker.config, self._talker.device)
        return self._cached[1]
