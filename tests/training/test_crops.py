"""The codec's random crops."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from support import training as small
from syrinx_stages.contract.family import FAMILY
from training.codec import loss as crops
from training.config import SMOKE
from training.data.corpus import Sentence
from training.run import seeded_generator

CPU = torch.device("cpu")
SENTENCES = [
    Sentence(text, "english") for text in ("a longer sentence than the others", "short", "another one", "last")
]
CONFIG = SMOKE.codec
LENGTH = CONFIG.frames * FAMILY.samples_per_frame


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "0.npz", tmp_path / "1.npz"]
    for path, lines in zip(paths, ([0, 1], [2, 3]), strict=True):
        np.savez(path, **small.tone_shard(SENTENCES, np.array(lines, np.int32))._asdict())
    return paths


@pytest.fixture
def audio(shards: list[Path]) -> crops.Audio:
    return crops.load_audio(shards, 1.0, CPU)


def test_audio_has_utterance_starts(audio: crops.Audio) -> None:
    expected = small.tone_audio(sentence.text for sentence in SENTENCES)
    assert torch.equal(audio.samples, expected.samples)
    assert audio.starts.tolist() == expected.starts.tolist()
    assert audio.frames().tolist() == expected.frames().tolist()


def crop(audio: crops.Audio, seed: int, *, utterance_starts: bool, alignment: int = 1) -> Tensor:
    indices = crops.crop_indices(
        CONFIG, audio, seeded_generator(CPU, seed), utterance_starts=utterance_starts, alignment=alignment
    )
    return audio.samples[indices].float() / 32768


def test_crops_of_utterance_starts(audio: crops.Audio) -> None:
    whole = audio.samples.float() / 32768
    possible = [whole[first : first + LENGTH] for first in audio.starts.tolist() if first + LENGTH <= len(whole)]
    drawn = [each for seed in range(20) for each in crop(audio, seed, utterance_starts=True)]
    assert all(any(torch.equal(each, start) for start in possible) for each in drawn)
    assert all(any(torch.equal(each, start) for each in drawn) for start in possible)


def test_crops_are_aligned_to_frames(audio: crops.Audio) -> None:
    frames = audio.samples.float().view(-1, FAMILY.samples_per_frame) / 32768
    possible = [frames[first : first + CONFIG.frames].flatten() for first in range(len(frames) - CONFIG.frames + 1)]
    aligned = {"utterance_starts": False, "alignment": FAMILY.samples_per_frame}
    drawn = [each for seed in range(40) for each in crop(audio, seed, **aligned)]
    found = {index for each in drawn for index, start in enumerate(possible) if torch.equal(each, start)}
    assert all(any(torch.equal(each, start) for start in possible) for each in drawn)
    assert {0, len(possible) - 1} <= found
