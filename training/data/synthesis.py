"""Synthesizes the training audio with espeak-ng's library, in many processes.

A round reads a random selection of the corpus, with a random speaker and rate for each sentence. Everything random
depends on (seed, round, shard) alone, so rounds can be made on any machine, stopped and resumed. A shard is a file of
up to 1,000 utterances. This module does not import torch, so that workers start quickly.
"""

from __future__ import annotations

import ctypes
import os
import random
import tempfile
from collections.abc import Callable, Generator
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import espeakng_loader
import numpy as np
import numpy.typing as npt
import soxr

from syrinx_stages.contract.family import FAMILY
from training.config import SynthesisConfig
from training.data import corpus
from training.data.corpus import Sentence
from training.data.speakers import Timbre

Samples = npt.NDArray[np.int16]

_ESPEAK_RATE = 22_050
_AUDIO_OUTPUT_RETRIEVAL, _INITIALIZE_DONT_EXIT = 1, 0x8000
_UTF8_END_PAUSE = 1 | 0x1000
_RATE_PARAMETER, _PITCH_PARAMETER = 1, 3
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)

_NICE = 10
"""Workers have a lower priority than training."""

_SILENCE_THRESHOLD = 40
"""Of 32,768: -58 dB. Quieter samples at both ends are cut."""
LEADING_SECONDS, TRAILING_SECONDS = 0.048, 0.16
GAIN = 0.75
"""espeak-ng reaches full scale at times, and models overshoot a little; the output has to stay below -1 dB."""
PLAIN = Timbre()
"""espeak-ng's own."""
_VARIANT = "drawn"
"""The variant whose file is a timbre's."""


@cache
class Espeak:
    """espeak-ng's library, of which a process has one instance."""

    def __init__(self) -> None:
        """Raises OSError if the library cannot read its data."""
        self._library = ctypes.CDLL(espeakng_loader.get_library_path())
        self._directory = tempfile.TemporaryDirectory()
        data = Path(self._directory.name)
        self._variants = _link_data(data)
        rate = self._library.espeak_Initialize(_AUDIO_OUTPUT_RETRIEVAL, 0, bytes(data), _INITIALIZE_DONT_EXIT)
        if rate != _ESPEAK_RATE:
            raise OSError(f"espeak-ng: no voices in {data} (espeak_Initialize: {rate})")
        self._chunks: list[Samples] = []
        self._callback = _CALLBACK(self._receive)
        self._library.espeak_SetSynthCallback(self._callback)
        self._voice = "", ""

    def _receive(self, samples: ctypes._Pointer[ctypes.c_short], count: int, _: object) -> int:
        if samples and count > 0:
            self._chunks.append(np.ctypeslib.as_array(samples, shape=(count,)).copy())
        return 0

    def synthesize(self, text: str, voice: str, words_per_minute: int, timbre: Timbre) -> Samples:
        """Returns 16-bit samples at espeak-ng's rate; the timbre's scale is not applied.

        Raises ValueError for an unknown voice.
        """
        self._set_voice(voice, timbre.variant)
        self._library.espeak_SetParameter(_RATE_PARAMETER, words_per_minute, 0)
        self._library.espeak_SetParameter(_PITCH_PARAMETER, timbre.pitch, 0)
        self._chunks = []
        data = text.encode() + b"\0"
        self._library.espeak_Synth(data, len(data), 0, 1, 0, _UTF8_END_PAUSE, None, None)
        self._library.espeak_Synchronize()
        return np.concatenate(self._chunks) if self._chunks else np.zeros(0, np.int16)

    def _set_voice(self, voice: str, variant: str) -> None:
        if self._voice == (voice, variant):
            return
        name = voice
        if variant:
            (self._variants / _VARIANT).write_text(variant)
            name = f"{voice}+{_VARIANT}"
        if self._library.espeak_SetVoiceByName(name.encode()):
            raise ValueError(f"espeak-ng has no voice {voice!r}")
        self._voice = voice, variant


def _link_data(directory: Path) -> Path:
    """Makes a directory with espeak-ng's data; returns its directory of variants, to which files can be added."""
    data, variants = Path(espeakng_loader.get_data_path()), Path("voices", "!v")
    (directory / variants).mkdir(parents=True)
    for folder in (Path(), variants):
        for entry in (data / folder).iterdir():
            if entry.name != "voices":
                (directory / folder / entry.name).symlink_to(entry)
    return directory / variants


def utterance(sentence: Sentence, voice: str, words_per_minute: int, timbre: Timbre = PLAIN) -> Samples:
    """Returns a sentence as training audio: 16-bit samples at 24 kHz, whole frames, short silence at both ends.

    Empty if espeak-ng produces no audible sound. Raises ValueError for an unknown voice.
    """
    # Resampling changes the tempo as well, so the speech is synthesized at another one.
    raw = Espeak().synthesize(sentence.spoken(), voice, round(words_per_minute / timbre.scale), timbre)
    audible = np.flatnonzero(np.abs(raw.astype(np.int32)) > _SILENCE_THRESHOLD)
    if not len(audible):
        return raw[:0]
    rate = _ESPEAK_RATE * timbre.scale
    lead, tail = int(LEADING_SECONDS * rate), int(TRAILING_SECONDS * rate)
    padded = np.pad(raw[audible[0] : audible[-1] + 1].astype(np.float32) * GAIN, (lead, tail))
    samples = np.clip(np.round(soxr.resample(padded, rate, FAMILY.sample_rate)), -32768, 32767).astype(np.int16)
    return np.pad(samples, (0, -len(samples) % FAMILY.samples_per_frame))


def reading(config: SynthesisConfig, sentence: Sentence, speaker: str, words_per_minute: int) -> Samples:
    """Returns a sentence by one of the config's speakers, as `utterance` does."""
    voice = config.speakers[speaker][sentence.language]
    return utterance(sentence, voice, words_per_minute, config.timbres.get(speaker, PLAIN))


class Shard(NamedTuple):
    """Concatenated utterances, as audio or as codes; the other fields are [utterances] each."""

    content: npt.NDArray[np.integer]
    """Samples [sum of frames x 1,920] int16 at 24 kHz, or codes [sum of frames, 16]."""
    frames: npt.NDArray[np.int32]
    speakers: npt.NDArray[np.int32]
    """Indices of the config's speakers."""
    sentences: npt.NDArray[np.int32]
    """Line numbers in the corpus, from 0."""
    embeddings: npt.NDArray[np.float16] = np.zeros((0, 0), np.float16)
    """Speaker embeddings [utterances, width] of codes for voice cloning; otherwise empty."""

    def write(self, path: Path) -> None:
        """Writes the shard atomically."""
        unfinished = path.with_suffix(".unfinished.npz")
        np.savez(unfinished, **self._asdict())
        unfinished.rename(path)


def shard_count(config: SynthesisConfig, lines: int) -> int:
    """Returns the number of shards of a round, given the number of lines of the corpus."""
    return -(-min(lines, config.sentences_per_round) // config.sentences_per_shard)


def shard_path(directory: Path, number: int, index: int) -> Path:
    """Returns the file of shard `index` of round `number`."""
    return directory / f"round-{number:02}" / f"shard-{index:05}.npz"


def read_shard(path: Path) -> Shard:
    """Reads a shard."""
    with np.load(path) as file:
        return Shard(*(file[field] for field in Shard._fields))


def round_lines(config: SynthesisConfig, lines: int, number: int) -> npt.NDArray[np.int32]:
    """Returns the line numbers that a round reads, in its order."""
    order = np.random.default_rng((config.seed, number)).permutation(lines)
    return order[: config.sentences_per_round].astype(np.int32)


def make_shard(config: SynthesisConfig, sentences: list[Sentence], number: int, index: int) -> Shard:
    """Synthesizes one shard; leaves out utterances that are too short or too long."""
    rng = random.Random(f"{config.seed} {number} {index}")
    first = index * config.sentences_per_shard
    lines = round_lines(config, len(sentences), number)[first : first + config.sentences_per_shard]
    names = list(config.speakers)
    trained = [index for index, name in enumerate(names) if name not in config.unseen]
    kept: list[tuple[Samples, int, int]] = []
    for line in lines.tolist():
        speaker = trained[rng.randrange(len(trained))]
        rate = rng.randint(config.min_words_per_minute, config.max_words_per_minute)
        samples = reading(config, sentences[line], names[speaker], rate)
        if config.min_frames <= len(samples) // FAMILY.samples_per_frame <= config.max_frames:
            kept.append((samples, speaker, line))
    return Shard(
        np.concatenate([np.zeros(0, np.int16), *(samples for samples, _, _ in kept)]),
        np.array([len(samples) // FAMILY.samples_per_frame for samples, _, _ in kept], np.int32),
        np.array([speaker for _, speaker, _ in kept], np.int32),
        np.array([line for _, _, line in kept], np.int32),
    )


@cache
def _sentences(path: Path) -> list[Sentence]:
    return corpus.read(path)


def _write_shard(config: SynthesisConfig, corpus_path: Path, directory: Path, number: int, index: int) -> None:
    make_shard(config, _sentences(corpus_path), number, index).write(shard_path(directory, number, index))


def make_round(
    config: SynthesisConfig, corpus_path: Path, directory: Path, number: int, workers: int, log: Callable[[str], None]
) -> Generator[Path]:
    """Yields a round's shards in order as they become available; `workers` processes make the missing ones."""
    count = shard_count(config, len(_sentences(corpus_path)))
    paths = [shard_path(directory, number, index) for index in range(count)]
    paths[0].parent.mkdir(parents=True, exist_ok=True)
    missing = [index for index, path in enumerate(paths) if not path.exists()]
    # One process per shard, because espeak-ng's output depends slightly on what it synthesized before. Spawned, because
    # the library does not work in children forked after its first use.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), os.nice, (_NICE,), max_tasks_per_child=1)
    try:
        # A worker reads the corpus itself.
        made = pool.map(partial(_write_shard, config, corpus_path, directory, number), missing)
        for index, path in enumerate(paths):
            if index in missing:
                next(made)
            yield path
    finally:
        # A caller that stops early does not wait for the remaining shards.
        pool.shutdown(cancel_futures=True)
    log(f"synthesis: round {number}: {len(missing)} of {count} shards made")
