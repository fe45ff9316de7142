"""Text to speech by espeak-ng, through its library, in many processes: the audio that everything is learnt from.

A round reads some sentences of the corpus, each by a speaker and at a rate drawn for it; what is drawn follows from
(seed, round, shard) alone, so that rounds can be made anywhere, stopped and made on. A shard is a file of some hundred
utterances. No torch here: a worker starts in a moment.
"""

from __future__ import annotations

import ctypes
import os
import random
from collections.abc import Callable, Generator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import espeakng_loader
import numpy as np
import numpy.typing as npt
import soxr

from syrinx_stages.contract.family import FAMILY

from . import corpus
from .config import SynthesisConfig
from .sentence import Sentence

Samples = npt.NDArray[np.int16]

_ESPEAK_RATE = 22_050
_RETRIEVAL, _NO_PATH_EXIT = 1, 0x8000
"""`AUDIO_OUTPUT_RETRIEVAL`, and the flag that an initialisation which fails says so rather than ends the process."""
_UTF8_END_PAUSE = 1 | 0x1000
_RATE_PARAMETER = 1
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)

_NICE = 10
"""Processes that train come first."""

_AUDIBLE = 40
"""Of 32,768: -58 dB. What is below it at both ends is silence."""
LEADING_SECONDS, TRAILING_SECONDS = 0.048, 0.16
GAIN = 0.75
"""espeak-ng is at full scale now and then; what is learnt from it overshoots a little, and has to stay below -1 dB."""


class Espeak:
    """espeak-ng's library in this process, of which there is one."""

    def __init__(self) -> None:
        """Raises OSError if its data cannot be read."""
        self._library = ctypes.CDLL(espeakng_loader.get_library_path())
        data = espeakng_loader.get_data_path()
        rate = self._library.espeak_Initialize(_RETRIEVAL, 0, data.encode(), _NO_PATH_EXIT)
        if rate != _ESPEAK_RATE:
            raise OSError(f"espeak-ng: no voices in {data} (espeak_Initialize: {rate})")
        self._heard: list[Samples] = []
        self._callback = _CALLBACK(self._hear)
        self._library.espeak_SetSynthCallback(self._callback)
        self._voice = ""

    def _hear(self, samples: ctypes._Pointer[ctypes.c_short], count: int, _: object) -> int:
        if samples and count > 0:
            self._heard.append(np.ctypeslib.as_array(samples, shape=(count,)).copy())
        return 0

    def say(self, text: str, voice: str, words_a_minute: int) -> Samples:
        """16-bit samples [n] at espeak-ng's rate. Raises ValueError for a voice that it does not have."""
        if voice != self._voice:
            if self._library.espeak_SetVoiceByName(voice.encode()):
                raise ValueError(f"espeak-ng has no voice {voice!r}")
            self._voice = voice
        self._library.espeak_SetParameter(_RATE_PARAMETER, words_a_minute, 0)
        self._heard = []
        data = text.encode() + b"\0"
        self._library.espeak_Synth(data, len(data), 0, 1, 0, _UTF8_END_PAUSE, None, None)
        self._library.espeak_Synchronize()
        return np.concatenate(self._heard) if self._heard else np.zeros(0, np.int16)


@cache
def espeak() -> Espeak:
    """This process's espeak-ng."""
    return Espeak()


def utterance(sentence: Sentence, voice: str, words_a_minute: int) -> Samples:
    """A sentence as it is learnt: 16-bit samples at 24 kHz, whole frames, little silence at both ends.

    Empty if nothing is heard.
    """
    raw = espeak().say(sentence.spoken(), voice, words_a_minute)
    audible = np.flatnonzero(np.abs(raw.astype(np.int32)) > _AUDIBLE)
    if not len(audible):
        return raw[:0]
    lead, tail = int(LEADING_SECONDS * _ESPEAK_RATE), int(TRAILING_SECONDS * _ESPEAK_RATE)
    padded = np.pad(raw[audible[0] : audible[-1] + 1].astype(np.float32) * GAIN, (lead, tail))
    samples = np.clip(np.round(soxr.resample(padded, _ESPEAK_RATE, FAMILY.sample_rate)), -32768, 32767).astype(np.int16)
    return np.pad(samples, (0, -len(samples) % FAMILY.samples_per_frame))


class Shard(NamedTuple):
    """Some utterances, one after the other."""

    audio: Samples
    """[sum of frames x 1,920] at 24 kHz."""
    frames: npt.NDArray[np.int32]
    """[utterances]: the length of each."""
    speakers: npt.NDArray[np.int32]
    """[utterances]: which of the config's speakers."""
    sentences: npt.NDArray[np.int32]
    """[utterances]: which line of the corpus."""


def shard_count(config: SynthesisConfig, lines: int) -> int:
    """How many shards a round has, of a corpus of so many lines."""
    return -(-min(lines, config.sentences_a_round) // config.sentences_a_shard)


def shard_path(directory: Path, number: int, index: int) -> Path:
    """Where shard `index` of round `number` lies."""
    return directory / f"round-{number:02}" / f"shard-{index:05}.npz"


def read_shard(path: Path) -> Shard:
    """Reads a shard."""
    with np.load(path) as file:
        return Shard(*(file[field] for field in Shard._fields))


def chosen(config: SynthesisConfig, lines: int, number: int) -> npt.NDArray[np.int32]:
    """The lines that a round reads, in its order."""
    order = np.random.default_rng((config.seed, number)).permutation(lines)
    return order[: config.sentences_a_round].astype(np.int32)


def make_shard(config: SynthesisConfig, sentences: list[Sentence], number: int, index: int) -> Shard:
    """Reads out one shard's sentences; those that are too short or too long are left out."""
    drawn = random.Random(f"{config.seed} {number} {index}")
    first = index * config.sentences_a_shard
    lines = chosen(config, len(sentences), number)[first : first + config.sentences_a_shard]
    voices = list(config.speakers.values())
    kept: list[tuple[Samples, int, int]] = []
    for line in lines.tolist():
        speaker, rate = drawn.randrange(len(voices)), drawn.randint(config.slowest, config.fastest)
        samples = utterance(sentences[line], voices[speaker][sentences[line].language], rate)
        if config.fewest_frames <= len(samples) // FAMILY.samples_per_frame <= config.most_frames:
            kept.append((samples, speaker, line))
    audio = np.concatenate([np.zeros(0, np.int16), *(samples for samples, _, _ in kept)])
    frames = [len(samples) // FAMILY.samples_per_frame for samples, _, _ in kept]
    return Shard(
        audio,
        np.array(frames, np.int32),
        np.array([speaker for _, speaker, _ in kept], np.int32),
        np.array([line for _, _, line in kept], np.int32),
    )


class _Job(NamedTuple):
    """What a worker is given: the corpus it reads itself."""

    config: SynthesisConfig
    corpus: Path
    directory: Path
    number: int


@cache
def _sentences(path: Path) -> list[Sentence]:
    return corpus.read(path)


def _write_shard(job: _Job, index: int) -> None:
    """Makes one shard; it has its name only when it is whole."""
    path = shard_path(job.directory, job.number, index)
    unfinished = path.with_suffix(".unfinished.npz")
    np.savez(unfinished, **make_shard(job.config, _sentences(job.corpus), job.number, index)._asdict())
    unfinished.rename(path)


def make_round(
    config: SynthesisConfig, corpus_path: Path, directory: Path, number: int, workers: int, say: Callable[[str], None]
) -> Generator[Path]:
    """A round's shards in their order, each as soon as it is there; what is missing is made in `workers` processes."""
    job = _Job(config, corpus_path, directory, number)
    count = shard_count(config, len(_sentences(corpus_path)))
    paths = [shard_path(directory, number, index) for index in range(count)]
    paths[0].parent.mkdir(parents=True, exist_ok=True)
    missing = [index for index, path in enumerate(paths) if not path.exists()]
    # A process for each shard: what espeak-ng says depends a little on what it has said before. And no forks: the
    # library of a process that has used it does not work in its children.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), os.nice, (_NICE,), max_tasks_per_child=1)
    try:
        made, awaited = pool.map(_write_shard, [job] * len(missing), missing), set(missing)
        for index, path in enumerate(paths):
            if index in awaited:
                next(made)
            yield path
    finally:
        # Whoever needs no more of them does not wait for the rest.
        pool.shutdown(cancel_futures=True)
    say(f"synthesis: round {number}: {len(missing)} of {count} shards made")
