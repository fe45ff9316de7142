"""What the codec hears in training."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from support import training as small
from syrinx_stages.contract.family import FAMILY
from training import crops
from training.config import SMOKE
from training.run import generator
from training.sentence import Sentence

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


def test_audio_knows_where_its_utterances_begin(audio: crops.Audio) -> None:
    said = [small.tones(sentence.text, number) for number, sentence in enumerate(SENTENCES)]
    assert torch.equal(audio.samples, torch.from_numpy(np.concatenate(said)))
    assert audio.begins.tolist() == np.cumsum([0, *map(len, said[:-1])]).tolist()
    assert audio.frames().tolist() == [len(each) // FAMILY.samples_per_frame for each in said]


def test_no_more_shards_are_read_than_the_hours_need(shards: list[Path]) -> None:
    first = small.tone_shard(SENTENCES, np.array([0, 1], np.int32))
    heard = crops.load_audio(shards, len(first.audio) / FAMILY.sample_rate / 3600, CPU)
    assert len(heard.samples) == len(first.audio)


def crop(audio: crops.Audio, seed: int, *, begins: bool, grain: int = 1) -> Tensor:
    return crops.heard(audio, crops.crops(CONFIG, audio, generator(CPU, seed), begins=begins, grain=grain))


@pytest.mark.parametrize("begins", [False, True])
def test_a_seed_is_a_crop(audio: crops.Audio, begins: bool) -> None:
    one, same, other = (crop(audio, seed, begins=begins) for seed in (1, 1, 2))
    assert one.shape == (CONFIG.batch, LENGTH)
    assert torch.equal(one, same) and not torch.equal(one, other)


def test_some_crops_are_beginnings(audio: crops.Audio) -> None:
    whole = audio.samples.float() / 32768
    possible = [whole[first : first + LENGTH] for first in audio.begins.tolist() if first + LENGTH <= len(whole)]
    drawn = [each for seed in range(20) for each in crop(audio, seed, begins=True)]
    assert all(any(torch.equal(each, begin) for begin in possible) for each in drawn)
    assert all(any(torch.equal(each, begin) for each in drawn) for begin in possible)


def test_crops_may_begin_with_frames(audio: crops.Audio) -> None:
    frames = audio.samples.float().view(-1, FAMILY.samples_per_frame) / 32768
    possible = [frames[first : first + CONFIG.frames].flatten() for first in range(len(frames) - CONFIG.frames + 1)]
    drawn = [each for seed in range(40) for each in crop(audio, seed, begins=False, grain=FAMILY.samples_per_frame)]
    found = {place for each in drawn for place, begin in enumerate(possible) if torch.equal(each, begin)}
    assert all(any(torch.equal(each, begin) for begin in possible) for each in drawn)
    assert {0, len(possible) - 1} <= found


def test_the_last_crop_ends_with_the_audio(audio: crops.Audio) -> None:
    short = audio._replace(samples=audio.samples[:LENGTH])
    assert torch.equal(crop(short, 0, begins=False)[0], short.samples.float() / 32768)


def test_steps_decode_beginnings_and_other_parts() -> None:
    windows = [crops.window(CONFIG, step) for step in range(200)]
    assert 10 < sum(each.begins for each in windows) < 60
    assert {(each.first, each.skipped) for each in windows if each.begins} == {(0, 0)}
    others = [each for each in windows if not each.begins]
    assert {each.skipped for each in others} == {CONFIG.warmup_frames}
    assert {each.first for each in others} == set(range(CONFIG.frames - CONFIG.decoded_frames + 1))
