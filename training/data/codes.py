"""Codes of the synthesis rounds: the talker's training data.

The next round is synthesized and encoded in the background while the talker trains; then its audio is deleted.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from syrinx_stages.model.speaker_encoder import SpeakerEncoder
from training.codec.model import Codec
from training.codec.train import encode
from training.data.synthesis import Shard, read_shard, shard_path
from training.run import Log
from training.speaker import embed

LoadRound = Callable[[int], Shard]
"""Returns the codes of a round, waiting for them if necessary."""


def codes_path(directory: Path, number: int) -> Path:
    """Returns the file of a round's codes."""
    return directory / f"codes-{number:02}.npz"


def encode_round(
    codec: Codec, speaker_encoder: SpeakerEncoder | None, shards: Iterable[Path], path: Path, device: torch.device
) -> None:
    """Encodes a round's shards and writes the result to `path` atomically.

    speaker_encoder: embeds the utterances, for voice cloning.
    """
    parts = []
    for shard in map(read_shard, shards):
        audio = torch.from_numpy(shard.content).to(device)
        codes = encode(codec, audio, shard.frames)
        parts.append(shard._replace(content=codes.cpu().numpy()))
        if speaker_encoder is not None:
            parts[-1] = parts[-1]._replace(embeddings=embed(speaker_encoder, audio, shard.frames))
    Shard(*(np.concatenate(columns) for columns in zip(*parts, strict=True))).write(path)


@contextmanager
def round_loader(directory: Path, rounds: int, options: Sequence[str], log: Log) -> Iterator[LoadRound]:
    """Yields a function that loads a round's codes and starts a background process that makes the next round's.

    options: of `python -m training codes`, without the round. The function raises RuntimeError if a process failed. A
    process still running at the end is terminated; complete shards are kept.
    """
    processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(number: int) -> None:
        if number < rounds and number not in processes and not codes_path(directory, number).exists():
            command = [sys.executable, "-m", "training", "codes", *options, "--round", str(number)]
            processes[number] = subprocess.Popen(command, start_new_session=True)

    def load(number: int) -> Shard:
        start(number)
        if number in processes:
            started = time.monotonic()
            if processes[number].wait():
                raise RuntimeError(f"the process for round {number} failed")
            log(f"codes: waited {time.monotonic() - started:.0f} s for round {number}")
        start(number + 1)
        return read_shard(codes_path(directory, number))

    try:
        yield load
    finally:
        for process in processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()


def delete_audio(audio: Path, number: int) -> None:
    """Deletes a round's shards."""
    shutil.rmtree(shard_path(audio, number, 0).parent, ignore_errors=True)
