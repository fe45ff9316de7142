"""What a step of the codec's training hears: pieces of audio, and which of their frames are decoded to samples."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from syrinx_stages.contract.family import FAMILY

from .config import CodecConfig
from .synthesis import read_shard

_BEGINNINGS = 0.15
"""Of the steps hear utterances from their first sample on, so that a decoder learns to begin, and with silence."""


class Audio(NamedTuple):
    """Utterances, one after the other."""

    samples: Tensor
    """int16 [N]."""
    begins: Tensor
    """[utterances]: the first sample of each."""

    def frames(self) -> npt.NDArray[np.integer]:
        """[utterances]: how many each has."""
        ends = np.append(self.begins.cpu().numpy(), len(self.samples)) // FAMILY.samples_per_frame
        return np.diff(ends)


class Window(NamedTuple):
    """The frames of a crop that are decoded to samples."""

    first: int
    skipped: int
    """How many of them do not count: the convolutions lack their past."""
    begins: bool
    """Crops are beginnings of utterances."""


def load_audio(paths: Iterable[Path], hours: float, device: torch.device) -> Audio:
    """The audio of as many shards as `hours` need, on `device`."""
    samples, begins, count = [], [], 0
    for path in paths:
        shard = read_shard(path)
        begins.append(count + (np.cumsum(shard.frames) - shard.frames) * FAMILY.samples_per_frame)
        samples.append(torch.from_numpy(shard.audio).to(device))
        count += len(shard.audio)
        if count >= hours * 3600 * FAMILY.sample_rate:
            break
    return Audio(torch.cat(samples), torch.from_numpy(np.concatenate(begins)).to(device))


def window(config: CodecConfig, step: int) -> Window:
    """What `step` decodes."""
    drawn = np.random.default_rng((config.seed, step))
    if drawn.random() < _BEGINNINGS:
        return Window(0, 0, True)
    return Window(int(drawn.integers(config.frames - config.decoded_frames + 1)), config.warmup_frames, False)


def crops(config: CodecConfig, audio: Audio, draw: torch.Generator, *, begins: bool, grain: int = 1) -> Tensor:
    """The samples [batch, frames * 1,920] of random crops, from anywhere or from beginnings of utterances.

    grain: crops from anywhere begin at multiples of so many samples. What follows a short utterance is the next one.
    """
    length, device = config.frames * FAMILY.samples_per_frame, audio.samples.device
    last = len(audio.samples) - length
    shape = config.batch, 1
    if begins:
        possible = audio.begins[audio.begins <= last]
        starts = possible[torch.randint(len(possible), shape, generator=draw, device=device)]
    else:
        starts = torch.randint(last // grain + 1, shape, generator=draw, device=device) * grain
    return starts + torch.arange(length, device=device)


def heard(audio: Audio, samples: Tensor) -> Tensor:
    """What the crops sound like, in -1..1."""
    return audio.samples[samples].float() / 32768
