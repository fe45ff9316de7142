"""Trains the speaker encoder to tell speakers apart, and embeds utterances with it.

The encoder is that of the service. Its loss is a softmax over the training speakers with an additive margin
(https://arxiv.org/abs/1801.05599) on crops of one utterance each, so what is said makes no difference to the embedding.
"""

from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.model.config import SpeakerEncoderConfig
from syrinx_stages.model.speaker_encoder import SpeakerEncoder, mel_spectrogram
from training.checkpoint import speaker_encoder_settings
from training.codec.loss import Audio
from training.config import TrainingConfig
from training.run import Log, ShouldStop, TrainingRun, seeded_generator

_SCALE, _MARGIN = 30.0, 0.2
_MEL_MEAN, _MEL_STD = -5.0, 3.0
"""Of the log mel magnitudes, roughly."""
_MAX_GAIN = 2.0
"""Crops are made louder or softer by this factor at most."""
_LENGTHS = (5, 10, 20, 40, 80)
"""Frames of an utterance's start that are embedded: the longest of these within it. Equal lengths are batched."""


class SpeakerLosses(NamedTuple):
    """A cross entropy in nats, and an accuracy."""

    speaker: Tensor
    accuracy: Tensor

    def total(self) -> Tensor:
        """Returns the loss to minimize."""
        return self.speaker


class Trainer:
    """The speaker encoder with its classifier and training run."""

    def __init__(self, config: TrainingConfig, width: int, directory: Path, device: torch.device) -> None:
        """width: of the talker. Resumes from the state in `directory`. Raises ValueError without `cloning`."""
        if config.cloning is None:
            raise ValueError("cloning: the preset trains no speaker encoder")
        self._config, self._cloning, self._device = config, config.cloning, device
        torch.manual_seed(config.cloning.seed)
        self.encoder = SpeakerEncoder(
            msgspec.convert(speaker_encoder_settings(config.cloning, width), SpeakerEncoderConfig)
        )
        self._classifier = nn.Linear(width, len(config.synthesis.speakers), bias=False)
        modules = {"encoder": self.encoder.to(device), "classifier": self._classifier.to(device)}
        self.run = TrainingRun(
            directory / "speaker.pt",
            modules,
            [weight for module in modules.values() for weight in module.parameters()],
            peak_learning_rate=config.cloning.speaker_learning_rate,
            steps=config.cloning.speaker_steps,
            betas=(0.9, 0.98),
            weight_decay=0.02,
        )

    def train(self, audio: Audio, should_stop: ShouldStop, log: Log) -> bool:
        """Trains until all steps are done or `should_stop` returns True; returns True if all steps are done."""
        whole = torch.from_numpy(audio.frames() >= self._cloning.speaker_frames).to(self._device)
        candidates = whole.nonzero()[:, 0]
        if not len(candidates):
            raise ValueError("cloning.speaker_frames: all utterances are shorter")
        if self.run.step == 0:
            self._initialize(self._crops(audio, candidates, 0)[0])
        return self.run.train(lambda step: self._losses(audio, candidates, step), self._config, should_stop, log)

    @torch.no_grad()
    def _initialize(self, mel: Tensor) -> None:
        """Changes the first and the last layer as if they had normalized inputs and outputs: there are no norms."""
        first = self.encoder.get_submodule("blocks.0.conv")
        weight = first.get_parameter("weight").div_(_MEL_STD)
        first.get_parameter("bias").sub_(_MEL_MEAN * weight.sum((1, 2)))
        embeddings, last = self.encoder(mel), self.encoder.fc
        deviation = embeddings.std(0).mean()
        last.get_parameter("weight").div_(deviation)
        last.get_parameter("bias").sub_(embeddings.mean(0)).div_(deviation)

    def _crops(self, audio: Audio, candidates: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Returns the mel spectrograms [batch, T, bands] of a step's random crops, and their speakers [batch]."""
        cloning, device = self._cloning, self._device
        generator = seeded_generator(device, cloning.seed, step)
        shape = cloning.speaker_batch, 1
        chosen = candidates[torch.randint(len(candidates), shape, generator=generator, device=device)]
        length = cloning.speaker_frames * FAMILY.samples_per_frame
        ends = torch.cat((audio.starts[1:], audio.starts.new_tensor([len(audio.samples)])))
        room = ends[chosen] - audio.starts[chosen] - length
        offset = torch.rand(shape, generator=generator, device=device) * room
        samples = audio.samples[audio.starts[chosen] + offset.long() + torch.arange(length, device=device)]
        gain = _MAX_GAIN ** (2 * torch.rand(shape, generator=generator, device=device) - 1)
        return mel_spectrogram(samples * (gain / 32768), self.encoder.bands), audio.speakers[chosen[:, 0]]

    def _losses(self, audio: Audio, candidates: Tensor, step: int) -> SpeakerLosses:
        mel, speakers = self._crops(audio, candidates, step)
        embeddings = self.encoder(mel)
        cosines = F.normalize(embeddings) @ F.normalize(self._classifier.weight).T
        margin = _MARGIN * F.one_hot(speakers, cosines.shape[1])
        loss = F.cross_entropy(_SCALE * (cosines - margin), speakers)
        return SpeakerLosses(loss, (cosines.argmax(1) == speakers).float().mean())


@torch.no_grad()
def embed(encoder: SpeakerEncoder, audio: Tensor, frames: npt.NDArray[np.integer]) -> npt.NDArray[np.float16]:
    """Returns the embeddings [utterances, width] of utterances; raises ValueError if one is shorter than five frames.

    audio: concatenated int16 samples; frames: [utterances] lengths in frames.
    """
    if frames.min(initial=_LENGTHS[0]) < _LENGTHS[0]:
        raise ValueError(f"frames: an utterance has {frames.min()} frames, at least {_LENGTHS[0]} are needed")
    starts = torch.from_numpy(np.cumsum(frames) - frames).to(audio.device) * FAMILY.samples_per_frame
    buckets = np.searchsorted(_LENGTHS, frames, side="right") - 1
    found = np.zeros((len(frames), encoder.fc.out_channels), np.float16)
    for bucket in np.unique(buckets):
        chosen = np.flatnonzero(buckets == bucket)
        sample = torch.arange(_LENGTHS[bucket] * FAMILY.samples_per_frame, device=audio.device)
        index = starts[torch.from_numpy(chosen).to(audio.device)][:, None] + sample
        mel = mel_spectrogram(audio[index].float() / 32768, encoder.bands)
        found[chosen] = encoder(mel).cpu().numpy()
    return found
