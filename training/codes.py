"""Codes of the synthesis rounds: the talker's training data.

The next round is synthesized and encoded in the background while the talker trains; then its audio is deleted.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from .codec import encode
from .codec_model import Codec
from .run import Log
from .synthesis import read_shard, shard_path


class RoundCodes(NamedTuple):
    """The encoded utterances of a round; the last three fields are [utterances] each, as in a shard."""

    codes: npt.NDArray[np.integer]
    """[sum of frames, 16]."""
    frames: npt.NDArray[np.int32]
    speakers: npt.NDArray[np.int32]
    sentences: npt.NDArray[np.int32]


def codes_path(directory: Path, number: int) -> Path:
    """Returns the file of a round's codes."""
    return directory / f"codes-{number:02}.npz"


def read_codes(path: Path) -> RoundCodes:
    """Reads a round's codes."""
    with np.load(path) as file:
        return RoundCodes(*(file[field] for field in RoundCodes._fields))


def encode_round(codec: Codec, shards: Iterable[Path], path: Path, device: torch.device) -> None:
    """Encodes a round's shards and writes the result to `path` atomically."""
    parts = []
    for shard in map(read_shard, shards):
        codes = encode(codec, torch.from_numpy(shard.audio).to(device), shard.frames).cpu().numpy()
        parts.append(RoundCodes(codes, shard.frames, shard.speakers, shard.sentences))
    unfinished = path.with_suffix(".unfinished.npz")
    merged = RoundCodes(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    np.savez(unfinished, **merged._asdict())
    unfinished.rename(path)


class RoundPrefetcher:
    """Produces the next round's codes in a background process while the talker trains."""

    def __init__(self, arguments: list[str], log: Log) -> None:
        """arguments: the command line of `python -m training codes`, without the round."""
        self._arguments, self._log = arguments, log
        self._number = -1
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> RoundPrefetcher:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self, number: int) -> None:
        """Starts a round, unless it has been started."""
        if self._number != number:
            self.stop()
            command = [sys.executable, "-m", "training", "codes", *self._arguments, "--round", str(number)]
            self._process = subprocess.Popen(command, start_new_session=True)
            self._number = number

    def wait(self, number: int) -> None:
        """Waits until a round is complete, starting it if necessary. Raises RuntimeError if the process failed."""
        started = time.monotonic()
        self.start(number)
        assert self._process is not None
        if self._process.wait():
            raise RuntimeError(f"the process for round {number} failed")
        self._log(f"codes: waited {time.monotonic() - started:.0f} s for round {number}")

    def stop(self) -> None:
        """Terminates the running round; complete shards are kept."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait()
        self._process = None
        self._number = -1


def delete_audio(audio: Path, number: int) -> None:
    """Deletes a round's shards."""
    shutil.rmtree(shard_path(audio, number, 0).parent, ignore_errors=True)
