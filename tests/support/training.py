"""A small training run without espeak-ng: its audio is tones, one for each letter."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from syrinx_stages.contract.family import FAMILY
from training import corpus, synthesis
from training.config import SMOKE, TrainingConfig
from training.sentence import Sentence
from training.synthesis import Shard


def tones(text: str, speaker: int) -> synthesis.Samples:
    """A tone of 40 ms for each letter, higher for some speakers; whole frames, 16-bit."""
    length = FAMILY.sample_rate // 25
    time = np.arange(length) / FAMILY.sample_rate
    pitches = [150 + 20 * (ord(letter) % 32) + 40 * speaker for letter in text]
    samples = np.concatenate([np.sin(2 * np.pi * pitch * time) for pitch in pitches]) * 8_000
    return np.pad(samples.astype(np.int16), (0, -len(samples) % FAMILY.samples_per_frame))


def tone_shard(sentences: list[Sentence], lines: np.ndarray) -> Shard:
    """Lines of a corpus as tones."""
    speakers = lines % 4
    audio = [tones(sentences[line].text, speaker) for line, speaker in zip(lines, speakers, strict=True)]
    frames = [len(each) // FAMILY.samples_per_frame for each in audio]
    return Shard(np.concatenate(audio), np.array(frames, np.int32), speakers.astype(np.int32), lines)


def write_rounds(config: TrainingConfig, directory: Path, sentences: list[Sentence]) -> None:
    """All rounds' shards, the decoder's own last one too, where a run looks for them."""
    settings = config.synthesis
    for number in range(settings.rounds + 1):
        lines = synthesis.chosen(settings, len(sentences), number)
        synthesis.shard_path(directory, number, 0).parent.mkdir(parents=True)
        for index in range(synthesis.shard_count(settings, len(sentences))):
            some = lines[index * settings.sentences_a_shard :][: settings.sentences_a_shard]
            np.savez(synthesis.shard_path(directory, number, index), **tone_shard(sentences, some)._asdict())


def begin(directory: Path) -> list[Sentence]:
    """A run's corpus and audio."""
    directory.mkdir()
    sentences = corpus.make(SMOKE.corpus, directory / "nothing", lambda line: None)
    corpus.write(directory / "corpus.txt", sentences)
    write_rounds(SMOKE, directory / "audio", sentences)
    return sentences
