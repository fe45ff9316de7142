"""A small training run without espeak-ng: its audio has a tone for each letter."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from syrinx_stages.contract.family import FAMILY
from training.codec.loss import Audio
from training.config import SMOKE, TrainingConfig
from training.data import corpus, synthesis
from training.data.corpus import Sentence
from training.data.synthesis import Shard


def tones(text: str, speaker: int) -> synthesis.Samples:
    """Returns 16-bit samples: a 40 ms tone per letter, its pitch raised per speaker, padded to whole frames."""
    length = FAMILY.sample_rate // 25
    time = np.arange(length) / FAMILY.sample_rate
    pitches = [150 + 20 * (ord(letter) % 32) + 40 * speaker for letter in text]
    samples = np.concatenate([np.sin(2 * np.pi * pitch * time) for pitch in pitches]) * 8_000
    return np.pad(samples.astype(np.int16), (0, -len(samples) % FAMILY.samples_per_frame))


def tone_audio(texts: Iterable[str]) -> Audio:
    """Returns texts as tones, by four speakers in turn."""
    utterances = [tones(text, number % 4) for number, text in enumerate(texts)]
    starts = np.cumsum([0, *map(len, utterances[:-1])])
    return Audio(
        torch.from_numpy(np.concatenate(utterances)), torch.from_numpy(starts), torch.arange(len(utterances)) % 4
    )


def tone_shard(sentences: list[Sentence], lines: np.ndarray) -> Shard:
    """Returns a shard of corpus lines as tones, by four speakers."""
    speakers = lines % 4
    audio = [tones(sentences[line].text, speaker) for line, speaker in zip(lines, speakers, strict=True)]
    frames = [len(each) // FAMILY.samples_per_frame for each in audio]
    return Shard(np.concatenate(audio), np.array(frames, np.int32), speakers.astype(np.int32), lines)


def write_rounds(config: TrainingConfig, directory: Path, sentences: list[Sentence]) -> None:
    """Writes the shards of all rounds, with the last one for fine-tuning, into a run's audio directory."""
    settings = config.synthesis
    for number in range(settings.rounds + 1):
        lines = synthesis.round_lines(settings, len(sentences), number)
        synthesis.shard_path(directory, number, 0).parent.mkdir(parents=True)
        for index in range(synthesis.shard_count(settings, len(sentences))):
            some = lines[index * settings.sentences_per_shard :][: settings.sentences_per_shard]
            np.savez(synthesis.shard_path(directory, number, index), **tone_shard(sentences, some)._asdict())


def prepare_run(directory: Path, config: TrainingConfig = SMOKE) -> list[Sentence]:
    """Creates a run's directory with its corpus and audio; returns the sentences."""
    directory.mkdir()
    sentences = corpus.build(config.corpus, directory / "nothing", lambda line: None)
    corpus.write(directory / "corpus.txt", sentences)
    write_rounds(config, directory / "audio", sentences)
    return sentences


def same(one: object, other: object) -> bool:
    """Returns True if two saved states are equal, bit for bit."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return (
        torch.equal(one, other) if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) else one == other
    )
