"""The engines with one technique switched off, by the time of a frame or a call: the engines' part of `gpu.worth`."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from gpu import codec, talker
from gpu.ablation import Effect
from gpu.talker import FRAMES, ROUNDS, WARM
from gpu.timing import REPEATS
from syrinx_stages.kernels.recorder import Work

TALKER_BATCHES = (1, 8, 32, 128)
CODEC_BATCHES = (1, 8, 32)
CODEC_FRAMES = 4
FRAME, CALL = "ms per frame", f"ms for {CODEC_FRAMES} frames of each request"

Off = Callable[[talker.Rig, int], AbstractContextManager[None]]
"""Switches a technique of the talker off, for frames of this many rows."""


def frame_ms(rig: talker.Rig, rows: int) -> float:
    """Returns the median time from launch to launch, in the service's order of calls."""
    times: list[float] = []
    for _ in range(ROUNDS):
        ids = rig.admit(rig.requests(rows))
        launched = rig.run(ids, WARM + FRAMES)[WARM:]
        rig.release(ids)
        times += [after - before for before, after in pairwise(launched)]
    return 1000 * statistics.median(times)


@contextmanager
def complete_steps(rig: talker.Rig, rows: int) -> Iterator[None]:
    """Reads a step when all of it is done, and then launches the next one."""
    runner, decode = rig.engine.runner, rig.engine.runner.decode

    def decode_and_wait_for_all(*arguments: Any) -> tuple[int, Work]:
        ring, _ = decode(*arguments)
        return ring, runner.recorder.record_event()

    with patch.object(rig.engine, "depth", 1), patch.object(runner, "decode", decode_and_wait_for_all):
        yield


@contextmanager
def _frames(rig: talker.Rig, rows: int, sample: Work, decode: Work) -> Iterator[None]:
    """Replaces what samples the codes of a frame, and what decodes them."""
    captured = rig.engine.runner.frames[rows]
    rig.engine.runner.frames[rows] = captured[0], sample, decode
    try:
        yield
    finally:
        rig.engine.runner.frames[rows] = captured


def eager_predictor(rig: talker.Rig, rows: int) -> AbstractContextManager[None]:
    """Launches the kernels that sample the codes one by one."""
    step, _, decode = rig.engine.runner.frames[rows]
    return _frames(rig, rows, step.sample_codes, decode)


def host_between_graphs(rig: talker.Rig, rows: int) -> AbstractContextManager[None]:
    """Waits for the codes before the talker's graph is launched."""
    _, sample, decode = rig.engine.runner.frames[rows]

    def wait_and_decode() -> None:
        rig.engine.runner.recorder.record_event()()
        decode()

    return _frames(rig, rows, sample, wait_and_decode)


def hidden_on_host(rig: talker.Rig, rows: int) -> AbstractContextManager[None]:
    """Copies the rows' hidden states to the device before a frame, and back after it."""
    runner = rig.engine.runner
    _, sample, decode = runner.frames[rows]
    on_device = runner.state.hidden[1 : rows + 1]
    host = runner.recorder.pinned_zeros(*on_device.shape, dtype=on_device.dtype)

    def upload_and_sample() -> None:
        on_device.copy_(host, non_blocking=True)
        sample()

    def decode_and_download() -> None:
        decode()
        host.copy_(on_device, non_blocking=True)
        runner.recorder.record_event()()

    return _frames(rig, rows, upload_and_sample, decode_and_download)


TALKER: Mapping[str, Off] = {
    "queued-step": complete_steps,
    "predictor-graph": eager_predictor,
    "one-replay": host_between_graphs,
    "device-state": hidden_on_host,
}


@torch.inference_mode()
def talker_effects(rig: talker.Rig) -> Iterator[Effect]:
    """Measures the frames of a warm talker with each technique switched off."""
    for rows in rig.batches:
        on = frame_ms(rig, rows)
        for technique, off in TALKER.items():
            with off(rig, rows):
                without = frame_ms(rig, rows)
            yield Effect(technique=technique, load=f"talker, {rows} rows", figure=FRAME, on=on, off=without)


class _HostState:
    """The state of a codec's first requests, in pinned host memory."""

    def __init__(self, rig: codec.Rig, rows: int) -> None:
        states, zeros = rig.engine.states, rig.engine._recorder.pinned_zeros
        self._recorder = rig.engine._recorder
        # Slots are taken from the last one on; a layer's are contiguous.
        self._on_device: list[Tensor] = [states.tails[-rows:], *(layer[-rows:] for layer in states.kv_caches)]
        self._host = [zeros(*each.shape, dtype=each.dtype) for each in self._on_device]
        self.download()

    def upload(self) -> None:
        """Copies it to the device."""
        with self._recorder.on_stream():
            for device, host in zip(self._on_device, self._host, strict=True):
                device.copy_(host, non_blocking=True)

    def download(self) -> None:
        """Copies it back."""
        with self._recorder.on_stream():
            for device, host in zip(self._on_device, self._host, strict=True):
                host.copy_(device, non_blocking=True)
        self._recorder.record_event()()


def call_ms(rig: codec.Rig, rows: int, together: bool = True, state: _HostState | None = None) -> float:
    """Returns the median time from codes to PCM of `rows` requests, in one call or in one call each."""
    codes = rig.codes(rows, CODEC_FRAMES)
    calls = [(0, rows)] if together else [(row, row + 1) for row in range(rows)]
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        if state is not None:
            state.upload()
        for first, end in calls:
            launched = rig.engine.launch(rig.ids[first:end], codes[first:end], (end - first, CODEC_FRAMES))
            rig.engine.read(launched)
        if state is not None:
            state.download()
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times)


@torch.inference_mode()
def codec_effects(rig: codec.Rig, batches: Sequence[int] = CODEC_BATCHES) -> Iterator[Effect]:
    """Measures the calls of a warm codec, whose requests are open, with each technique switched off."""
    eager = {rows: call_ms(rig, rows) for rows in batches}
    for rows in sorted({1, *batches}):
        rig.engine.capture((rows, CODEC_FRAMES))
    for rows in batches:
        on, load = call_ms(rig, rows), f"codec, {rows} rows"
        without = {"captured-shapes": eager[rows], "device-state": call_ms(rig, rows, state=_HostState(rig, rows))}
        if rows > 1:
            without["codec-batching"] = call_ms(rig, rows, together=False)
        for technique, off in without.items():
            yield Effect(technique=technique, load=load, figure=CALL, on=on, off=off)
