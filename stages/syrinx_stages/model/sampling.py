"""Samples codes: the logits processors of Hugging Face's `generate`, in its order, with parameters per row.

Random numbers are counter-based: the number that decides a code depends on (seed, frame, group) alone. A request gets
the same numbers on every device, in every batch and after another process has taken it over.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from syrinx_stages.contract.messages import Sampling
from syrinx_stages.model.config import CODE_GROUPS, SPECIAL_IDS, TalkerConfig
from syrinx_stages.model.talker import Talker

_GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)
INVALID_CODE = -1
"""Sampled in place of a code from scores that have NaN, infinity or nothing else than -infinity."""
MIN_TEMPERATURE = 1e-30
"""Lower temperatures are greedy: only the top score has any probability, and the division would overflow float32."""


def signed_seed(seed: int) -> int:
    """Returns `seed` as a signed 64-bit integer with the same bits."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)


def _mix(x: Tensor) -> Tensor:
    """SplitMix64's finalizer (Steele, Lea and Flood, 2014) on int64: products wrap, masks make the shifts logical."""
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * _MIX_1
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * _MIX_2
    return x ^ ((x >> 31) & ((1 << 33) - 1))


def uniforms(seeds: Tensor, frames: Tensor) -> Tensor:
    """Returns one number in [0, 1) per group, [rows, 16] float64, for seeds and frame indices [rows] int64."""
    state = _mix(_mix(seeds + _GAMMA) + (frames + 1) * _GAMMA)
    groups = torch.arange(1, CODE_GROUPS + 1, device=seeds.device) * _GAMMA
    # 32 bits, so that the product with the total of a float64 distribution is below that total.
    return ((_mix(state[:, None] + groups) >> 32) & 0xFFFFFFFF).double() * 2.0**-32


class LogitFilter:
    """Temperature, top-k and top-p of a batch of rows, and the sampling itself."""

    def __init__(self, params: Sequence[tuple[float, int, float]], device: torch.device) -> None:
        """params: temperature, top-k and top-p of each row."""
        given, top_ks, top_ps = zip(*params, strict=True)
        temperatures = [t if t >= MIN_TEMPERATURE else 0.0 for t in given]
        self._all_greedy = not any(temperatures)
        self._greedy: Tensor | None = None
        if not all(temperatures):
            self._greedy = torch.tensor([t == 0 for t in temperatures], device=device)
        self._temperature = torch.tensor([[t or 1.0] for t in temperatures], dtype=torch.float32, device=device)
        self._top_k = max(top_ks)
        self._kth = None
        if len(set(top_ks)) > 1:
            self._kth = torch.tensor([[max(k, 1) - 1] for k in top_ks], device=device)
        self._keep_all = None if all(top_ks) else torch.tensor([[k == 0] for k in top_ks], device=device)
        self._top_p = None
        if any(p < 1 for p in top_ps):
            self._top_p = torch.tensor([[p] for p in top_ps], dtype=torch.float32, device=device)

    def sample(self, scores: Tensor, uniform: Tensor) -> Tensor:
        """Samples ids [rows] int64 from scores [rows, vocabulary] float32 with uniform numbers [rows, 1].

        Scores of -inf have probability 0. A row that defines no distribution gets `INVALID_CODE`.
        """
        if self._all_greedy:
            return _best(scores)
        distribution = self.filter(scores).softmax(-1).cumsum(-1, dtype=torch.float64)
        # The first id whose cumulative probability exceeds the number; an id of probability 0 is never the first.
        ids = torch.searchsorted(distribution, uniform * distribution[:, -1:], right=True).squeeze(1)
        # Any NaN or infinity makes all probabilities NaN.
        ids = ids.masked_fill(distribution[:, -1].isnan(), INVALID_CODE)
        return ids if self._greedy is None else torch.where(self._greedy, _best(scores), ids)

    def filter(self, scores: Tensor) -> Tensor:
        """Returns the scores divided by the temperature, with -inf for ids that top-k or top-p remove."""
        scores = scores / self._temperature
        if self._top_k:
            # The k-th score is a copy, not a sum, so using the largest k of the batch does not change a row.
            count = min(self._top_k, scores.shape[-1])
            top = scores.topk(count).values
            threshold = top[:, -1:] if self._kth is None else top.gather(-1, self._kth.clamp(max=count - 1))
            dropped = scores < threshold
            if self._keep_all is not None:
                dropped &= ~self._keep_all
            scores = scores.masked_fill(dropped, -torch.inf)
        if self._top_p is not None:
            ascending, order = scores.sort(-1)
            tail = ascending.softmax(-1).cumsum(-1) <= 1 - self._top_p
            tail[:, -1] = False
            tail &= self._top_p < 1
            scores = scores.masked_fill(tail.scatter(-1, order, tail), -torch.inf)
        return scores


def _best(scores: Tensor) -> Tensor:
    """Returns the ids [rows] of the greatest scores [rows, vocabulary], the first of equal ones."""
    # max() returns NaN if there is one, but which of equal scores is unspecified.
    return scores.argmax(-1).masked_fill(~scores.amax(-1).isfinite(), INVALID_CODE)


class Sampler:
    """Samples frames for a fixed set of rows: create one per set, and call `step` for each frame."""

    def __init__(
        self, rows: Sequence[Sampling], seeds: Sequence[int], config: TalkerConfig, device: torch.device
    ) -> None:
        self._eos = config.codec_eos_token_id
        first_special = config.vocab_size - SPECIAL_IDS
        self._suppressed = torch.arange(config.vocab_size, device=device) >= first_special
        self._suppressed[self._eos] = False
        self.seeds = torch.tensor([signed_seed(seed) for seed in seeds], dtype=torch.int64, device=device)
        self._penalty = None
        if any(row.repetition_penalty != 1 for row in rows):
            self._penalty = torch.tensor([[row.repetition_penalty] for row in rows], device=device, dtype=torch.float32)
        self._min_frames = torch.tensor([row.min_frames for row in rows], device=device)
        self.code0_filter = LogitFilter([(row.temperature, row.top_k, row.top_p) for row in rows], device)
        residual = [(row.residual_temperature, row.residual_top_k, row.residual_top_p) for row in rows]
        self.residual_filter = LogitFilter(residual, device)

    def step(self, frames: Tensor) -> SamplerStep:
        """Returns the sampler of one step; `frames` [rows] int64 is the number of frames that each row has."""
        return SamplerStep(self, frames)

    def code0_scores(self, logits: Tensor, seen: Tensor, frames: Tensor) -> Tensor:
        """Applies repetition penalty, minimum length and suppression to logits [rows, vocabulary], in float32."""
        scores = logits.float()
        if self._penalty is not None:
            penalized = torch.where(scores < 0, scores * self._penalty, scores / self._penalty)
            scores = torch.where(seen, penalized, scores)
        scores = scores.masked_fill(self._suppressed, -torch.inf)
        scores[:, self._eos].masked_fill_(frames < self._min_frames, -torch.inf)
        return scores


class SamplerStep:
    """Samples the 16 codes of every row's next frame."""

    def __init__(self, sampler: Sampler, frames: Tensor) -> None:
        self._sampler, self._frames = sampler, frames
        self._uniforms = torch.split(uniforms(sampler.seeds, frames), 1, 1)

    def code0(self, logits: Tensor, seen: Tensor) -> Tensor:
        """Returns code 0 or EOS [rows] for logits [rows, vocab_size]; `seen`, of that shape, marks codes 0 so far."""
        scores = self._sampler.code0_scores(logits, seen, self._frames)
        return self._sampler.code0_filter.sample(scores, self._uniforms[0])

    def residual(self, logits: Tensor, group: int) -> Tensor:
        """Returns codes [rows] of a group (1 to 15) for logits [rows, codebook_size]: a `SampleFn`."""
        return self._sampler.residual_filter.sample(logits.float(), self._uniforms[group])


SeededSampling = tuple[Sampling, int]


class FrameSampler:
    """Samples whole frames of one talker's requests. A row's codes do not depend on the other rows."""

    def __init__(self, talker: Talker) -> None:
        self._talker = talker
        self._eos = talker.config.codec_eos_token_id
        self._cached: tuple[Sequence[SeededSampling], Sampler] | None = None
        """The last step's sampler: its rows rarely change from step to step."""

    def sample(
        self, rows: Sequence[SeededSampling], frames: Sequence[int], hidden: Tensor, seen: Sequence[Tensor]
    ) -> Tensor:
        """Returns the next frame of each row, [B, 16] int64. If code 0 is EOS, the row's other codes are undefined.

        frames: number of frames that each row has. hidden: the talker's states [B, H]. seen: for each row, which
        codes 0 it has, bool [vocabulary].
        """
        if self._cached is None or self._cached[0] != rows:
            samplings, seeds = zip(*rows, strict=True)
            self._cached = rows, Sampler(samplings, seeds, self._talker.config, self._talker.device)
        step = self._cached[1].step(torch.tensor(frames, device=hidden.device))
        code0 = step.code0(self._talker.logits(hidden), torch.stack(list(seen)))
        if bool((code0 == self._eos).all()):
            return code0[:, None].expand(-1, CODE_GROUPS)
        return self._talker.predict(hidden, code0, step.residual)
