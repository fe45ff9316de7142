"""The codec's training data: random audio crops, and which of their frames a step decodes."""

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

_UTTERANCE_START_SHARE = 0.15
"""Share of the steps whose crops start with an utterance: the decoder has to learn beginnings, and silence."""


class Audio(NamedTuple):
    """Concatenated utterances."""

    samples: Tensor
    """[N] int16."""
    starts: Tensor
    """[utterances]: index of each utterance's first sample."""

    def frames(self) -> npt.NDArray[np.integer]:
        """Returns each utterance's length in frames, [utterances]."""
        bounds = np.append(self.starts.cpu().numpy(), len(self.samples)) // FAMILY.samples_per_frame
        return np.diff(bounds)


class DecodeWindow(NamedTuple):
    """The frames of a crop that a step decodes to samples."""

    first_frame: int
    warmup_frames: int
    """Leading frames left out of the loss, because the convolutions lack their past."""
    utterance_starts: bool
    """True if the step's crops start with an utterance."""


def load_audio(paths: Iterable[Path], hours: float, device: torch.device) -> Audio:
    """Loads shards onto `device` until they hold `hours` of audio."""
    samples, starts, count = [], [], 0
    for path in paths:
        shard = read_shard(path)
        starts.append(count + (np.cumsum(shard.frames) - shard.frames) * FAMILY.samples_per_frame)
        samples.append(torch.from_numpy(shard.audio).to(device))
        count += len(shard.audio)
        if count >= hours * 3600 * FAMILY.sample_rate:
            break
    return Audio(torch.cat(samples), torch.from_numpy(np.concatenate(starts)).to(device))


def decode_window(config: CodecConfig, step: int) -> DecodeWindow:
    """Returns the random window of `step`."""
    rng = np.random.default_rng((config.seed, step))
    if rng.random() < _UTTERANCE_START_SHARE:
        return DecodeWindow(0, 0, True)
    return DecodeWindow(int(rng.integers(config.frames - config.decoded_frames + 1)), config.warmup_frames, False)


def crop_indices(
    config: CodecConfig, audio: Audio, generator: torch.Generator, *, utterance_starts: bool, alignment: int = 1
) -> Tensor:
    """Returns sample indices [batch, frames * 1,920] of random crops; they may run into the next utterance.

    utterance_starts: crops start with an utterance. alignment: other crops start at a multiple of this many samples.
    """
    length, device = config.frames * FAMILY.samples_per_frame, audio.samples.device
    last = len(audio.samples) - length
    shape = config.batch, 1
    if utterance_starts:
        candidates = audio.starts[audio.starts <= last]
        starts = candidates[torch.randint(len(candidates), shape, generator=generator, device=device)]
    else:
        starts = torch.randint(last // alignment + 1, shape, generator=generator, device=device) * alignment
    return starts + torch.arange(length, device=device)
