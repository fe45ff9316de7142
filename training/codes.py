"""Rounds of synthesis as codes: what the talker learns from. Small enough to keep them all.

A round is made and encoded while the talker learns from the rounds before it; then its audio is let go of.
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
from .run import Say
from .synthesis import read_shard, shard_path


class Coded(NamedTuple):
    """A round's utterances."""

    codes: npt.NDArray[np.integer]
    """[sum of frames, 16]."""
    frames: npt.NDArray[np.int32]
    speakers: npt.NDArray[np.int32]
    sentences: npt.NDArray[np.int32]
    """[utterances] each, as in a shard."""


def codes_path(directory: Path, number: int) -> Path:
    """Where a round's codes lie."""
    return directory / f"codes-{number:02}.npz"


def read_codes(path: Path) -> Coded:
    """Reads a round's codes."""
    with np.load(path) as file:
        return Coded(*(file[field] for field in Coded._fields))


def encode_round(codec: Codec, shards: Iterable[Path], path: Path, device: torch.device) -> None:
    """Encodes a round's shards into its file."""
    parts = []
    for shard in map(read_shard, shards):
        codes = encode(codec, torch.from_numpy(shard.audio).to(device), shard.frames).cpu().numpy()
        parts.append(Coded(codes, shard.frames, shard.speakers, shard.sentences))
    unfinished = path.with_suffix(".unfinished.npz")
    whole = Coded(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    np.savez(unfinished, **whole._asdict())
    unfinished.rename(path)


class Ahead:
    """Makes the next round beside the training, in processes of its own."""

    def __init__(self, arguments: list[str], say: Say) -> None:
        """arguments: of `python -m training codes`, to which the round is added."""
        self._arguments, self._say = arguments, say
        self._number = -1
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def begin(self, number: int) -> None:
        """Begins a round, if it is not begun."""
        if self._number != number:
            self.stop()
            command = [sys.executable, "-m", "training", "codes", *self._arguments, "--round", str(number)]
            self._process = subprocess.Popen(command, start_new_session=True)
            self._number = number

    def wait(self, number: int) -> None:
        """Waits until a round is made. Raises RuntimeError if it could not be."""
        started = time.monotonic()
        self.begin(number)
        assert self._process is not None
        if self._process.wait():
            raise RuntimeError(f"round {number} could not be made")
        self._say(f"codes: waited {time.monotonic() - started:.0f} s for round {number}")

    def stop(self) -> None:
        """Ends what is under way; the shards that are whole stay."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait()
        self._process = None
        self._number = -1


def forget_audio(audio: Path, number: int) -> None:
    """Removes a round's shards."""
    shutil.rmtree(shard_path(audio, number, 0).parent, ignore_errors=True)
