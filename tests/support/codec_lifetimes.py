"""A codec engine under requests that come, go and share calls, beside each request decoded alone."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np

from support.small_codec import Alone, random_frames, samples
from syrinx_stages.model.codec_decoder import CodecDecoder

if TYPE_CHECKING:
    # On a machine without a GPU whoever imports the kernels first decides that they are interpreted.
    from syrinx_stages.codec.cuda_engine import CudaCodecEngine


class Lifetimes:
    """Drives an engine with two calls in flight; `errors` has the largest error of each call of each request."""

    def __init__(self, decoder: CodecDecoder, engine: CudaCodecEngine, resident: int, seed: int = 0) -> None:
        self._decoder, self._engine, self._resident = decoder, engine, resident
        self._random = random.Random(seed)
        self._alone: dict[str, Alone] = {}
        self._unread: list[tuple[Any, list[np.ndarray]]] = []
        self._made = 0
        self.errors: list[float] = []

    def run(self, calls: int, rows: int, frames: int, shapes: list[tuple[int, int]]) -> None:
        """Calls of up to `rows` requests of up to `frames` frames, padded to `shapes` or as they are."""
        for _ in range(calls):
            self._come_and_go()
            ids = self._random.sample(sorted(self._alone), self._random.randint(1, min(rows, len(self._alone))))
            self.call(ids, [self._random.randint(1, frames) for _ in ids], shapes)
        while self._unread:
            self._read()

    def call(self, ids: list[str], fresh: list[int], shapes: list[tuple[int, int]]) -> None:
        """Launches one call, and reads one if two are in flight."""
        self._made += 1
        codes = [
            random_frames(count, 100 * self._made + at, self._decoder.config.codebook_size)
            for at, count in enumerate(fresh)
        ]
        own = (len(ids), max(fresh))
        fitting = [shape for shape in shapes if shape[0] >= own[0] and shape[1] >= own[1]]
        shape = self._random.choice([*fitting, own])
        wanted = [self._alone[name].decode(frames) for name, frames in zip(ids, codes, strict=True)]
        self._unread.append((self._engine.launch(ids, codes, shape), wanted))
        if len(self._unread) == self._engine.depth:
            self._read()

    def _come_and_go(self) -> None:
        """Slots are used again while calls with their last request are unread."""
        if self._alone and self._random.random() < 0.4:
            gone = self._random.choice(sorted(self._alone))
            self._engine.release(gone)
            del self._alone[gone]
        while len(self._alone) < self._resident and (not self._alone or self._random.random() < 0.6):
            self._made += 1
            name = f"request {self._made}"
            self._engine.open(name)
            self._alone[name] = Alone(self._decoder)

    def _read(self) -> None:
        call, wanted = self._unread.pop(0)
        for pcm, expected in zip(self._engine.read(call), wanted, strict=True):
            got = samples(pcm)
            assert got.shape == expected.shape
            self.errors.append(float(np.abs(got - expected).max()))
