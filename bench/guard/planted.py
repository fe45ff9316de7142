"""Ways in which a clip goes wrong, planted into the sampling of a real engine."""

import random
from collections.abc import Sequence
from enum import StrEnum

import torch
from msgspec import Struct
from torch import Tensor

from syrinx_stages.model.sampling import FrameSampler, Sampler, SeededSampling
from syrinx_stages.model.talker import Talker
from syrinx_stages.talker.repetition import MAX_PERIOD

NO_END = 1 << 20
"""A minimum length that no clip reaches: EOS is never sampled, whatever its probability."""


class Kind(StrEnum):
    """What is planted."""

    END_IGNORED = "end ignored"
    """The model wants to end, and EOS is not sampled."""
    END_COLLAPSED = "end collapsed"
    """The model gives EOS practically no probability; another checkpoint does this."""
    LOOP = "loop"
    """The last frames, 2 to 25, repeat."""
    SILENCE = "silence"
    """Code 0 is that of a pause."""
    SHORT = "short"
    """EOS is sampled when less than a third of the text is spoken."""


class Plant(Struct, frozen=True):
    """What happens to a clip after `start` frames."""

    kind: Kind
    start: int
    period: int
    """Of a loop, in frames; at most `start`."""
    silent_code: int


def draw(kind: Kind, frames: int, silent_code: int, rng: random.Random) -> Plant:
    """Returns a plant in a clip that has so many frames in health."""
    if kind in (Kind.END_IGNORED, Kind.END_COLLAPSED):
        return Plant(kind, frames, 0, silent_code)
    if kind is Kind.SHORT:
        return Plant(kind, int(frames * rng.uniform(0.1, 0.33)), 0, silent_code)
    start = max(2, int(frames * rng.uniform(0.3, 0.9)))
    return Plant(kind, start, rng.randint(2, min(MAX_PERIOD, start)), silent_code)


class PlantingSampler(FrameSampler):
    """A `FrameSampler` whose rows go wrong as `plants` says, by the seed of the row."""

    def __init__(self, talker: Talker) -> None:
        super().__init__(talker)
        self.plants: dict[int, Plant] = {}
        self._clips: dict[int, list[Tensor]] = {}

    def sample(
        self, rows: Sequence[SeededSampling], frames: Sequence[int], hidden: Tensor, seen: Sequence[Tensor]
    ) -> Tensor:
        """See `FrameSampler.sample`."""
        samplings, seeds = zip(*rows, strict=True)
        step = Sampler(samplings, seeds, self._talker.config, self._talker.device).step(torch.tensor(frames))
        code0 = step.code0(self._talker.logits(hidden), torch.stack(list(seen)))
        due = [self._due(seed, count) for seed, count in zip(seeds, frames, strict=True)]
        for row, plant in enumerate(due):
            if plant is not None:
                code0[row] = self._code0(plant, seeds[row])
        codes = self._talker.predict(hidden, code0.clamp(max=self._talker.config.codebook_size - 1), step.residual)
        codes[:, 0] = code0
        for row, (seed, count, plant) in enumerate(zip(seeds, frames, due, strict=True)):
            if not count:
                self._clips[seed] = []
            clip = self._clips[seed]
            if plant is not None and plant.kind is Kind.LOOP:
                codes[row] = clip[-plant.period]
            clip.append(codes[row])
        return codes

    def _due(self, seed: int, frames: int) -> Plant | None:
        plant = self.plants.get(seed)
        is_due = plant is not None and frames >= plant.start and plant.kind in (Kind.LOOP, Kind.SILENCE, Kind.SHORT)
        return plant if is_due else None

    def _code0(self, plant: Plant, seed: int) -> int:
        if plant.kind is Kind.LOOP:
            return int(self._clips[seed][-plant.period][0])
        return plant.silent_code if plant.kind is Kind.SILENCE else self._talker.config.codec_eos_token_id
