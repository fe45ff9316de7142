"""Draws whole frames with the modules of `model/`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from syrinx_stages.contract.messages import Sampling
from syrinx_stages.model.config import CODE_GROUPS
from syrinx_stages.model.sampling import Sampler
from syrinx_stages.model.talker import Talker

Choice = tuple[Sampling, int]
"""How a request draws, and its seed."""


class Drawing:
    """The frames of one talker's requests. A row's codes do not depend on the others."""

    def __init__(self, talker: Talker) -> None:
        self._talker = talker
        self._eos = talker.config.codec_eos_token_id
        self._sampler: tuple[tuple[Choice, ...], Sampler] | None = None
        """Of the last step's rows: they seldom change from step to step."""

    def draw(self, choices: Sequence[Choice], frames: Sequence[int], hidden: Tensor, seen: Sequence[Tensor]) -> Tensor:
        """The next frame of each row [B, 16]; a row that ends has EOS as code 0 and its other codes mean nothing.

        frames: how many each has said; hidden: the talker's states [B, H]; seen: of each, codes 0 said so far, bool
        [vocabulary].
        """
        said = torch.tensor(frames, device=hidden.device)
        draw = self._sampler_of(tuple(choices)).frame(said)
        code0 = draw.code0(self._talker.logits(hidden), torch.stack(list(seen)))
        if bool((code0 == self._eos).all()):
            return code0[:, None].expand(-1, CODE_GROUPS)
        return self._talker.predict(hidden, code0, draw.residual)

    def _sampler_of(self, choices: tuple[Choice, ...]) -> Sampler:
        if self._sampler is None or self._sampler[0] != choices:
            samplings, seeds = zip(*choices, strict=True)
            self._sampler = choices, Sampler(samplings, seeds, self._talker.config, self._talker.device)
        return self._sampler[1]
