"""Random request lifetimes on a codec engine, compared with each request decoded alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from support.small_codec import Reference, random_frames, samples
from syrinx_stages.model.codec.decoder import CodecDecoder

if TYPE_CHECKING:
    # Importing the kernels decides whether they are interpreted, so the test must do it.
    from syrinx_stages.codec.cuda.engine import CudaCodecEngine


class Lifetimes:
    """Runs random calls at the engine's depth; `errors` collects the largest error per request and call."""

    def __init__(
        self,
        decoder: CodecDecoder,
        engine: CudaCodecEngine,
        resident: int,
        seed: int = 0,
        before_launch: Callable[[], None] = lambda: None,
    ) -> None:
        self._decoder, self._engine, self._resident = decoder, engine, resident
        self._before_launch = before_launch
        self._random = random.Random(seed)
        self._references: dict[str, Reference] = {}
        self._in_flight: list[tuple[Any, list[np.ndarray]]] = []
        self._counter = 0
        self.errors: list[float] = []

    def run(self, calls: int, rows: int, frames: int, shapes: list[tuple[int, int]]) -> None:
        """Runs calls of up to `rows` requests with up to `frames` frames, padded to `shapes` or unpadded."""
        for _ in range(calls):
            self._open_and_release()
            ids = self._random.sample(
                sorted(self._references), self._random.randint(1, min(rows, len(self._references)))
            )
            self.call(ids, [self._random.randint(1, frames) for _ in ids], shapes)
        while self._in_flight:
            self._read()

    def call(self, ids: list[str], new_frames: list[int], shapes: list[tuple[int, int]]) -> None:
        """Launches one call, and reads the oldest one if the engine's depth is reached."""
        self._counter += 1
        codes = [
            random_frames(count, 100 * self._counter + row, self._decoder.config.codebook_size)
            for row, count in enumerate(new_frames)
        ]
        own = (len(ids), max(new_frames))
        fitting = [shape for shape in shapes if shape[0] >= own[0] and shape[1] >= own[1]]
        shape = self._random.choice([*fitting, own])
        expected = [self._references[name].decode(frames) for name, frames in zip(ids, codes, strict=True)]
        self._before_launch()
        self._in_flight.append((self._engine.launch(ids, codes, shape), expected))
        if len(self._in_flight) == self._engine.depth:
            self._read()

    def _open_and_release(self) -> None:
        """Reuses slots while calls of their previous request are still in flight."""
        if self._references and self._random.random() < 0.4:
            released = self._random.choice(sorted(self._references))
            self._engine.release(released)
            del self._references[released]
        while len(self._references) < self._resident and (not self._references or self._random.random() < 0.6):
            self._counter += 1
            name = f"request {self._counter}"
            self._engine.open(name)
            self._references[name] = Reference(self._decoder)

    def _read(self) -> None:
        call, expected = self._in_flight.pop(0)
        for pcm, row in zip(self._engine.read(call), expected, strict=True):
            actual = samples(pcm)
            assert actual.shape == row.shape
            self.errors.append(float(np.abs(actual - row).max()))
