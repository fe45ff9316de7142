"""Engines that take as long as those of a machine, in simulated time. Their frames and audio are constant."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from simulator.costs import Costs
from support.simulation.engines import Prepared
from support.simulation.loop import SimulatedLoop
from syrinx_stages.codec.engine import CaptureCost
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import End, EndReason, Reference, SpeechRequest
from syrinx_stages.contract.settings import CapturePair
from syrinx_stages.contract.stages import Stage
from syrinx_stages.runtime.requests.engine import Limits
from syrinx_stages.scheduling.traits import CPU, GPU

FRAME = bytes(2 * FAMILY.code_groups)
AUDIBLE = b"\xe8\x03" * FAMILY.samples_per_frame


class Device:
    """What a talker and a codec compute on: each its own work in turn, and slower while the other one computes."""

    def __init__(self, loop: SimulatedLoop, costs: Costs, seed: str) -> None:
        self.loop, self.costs = loop, costs
        self._randoms = random.Random(seed)
        self._free_at = dict.fromkeys(Stage, 0.0)
        self._rows = dict.fromkeys(Stage, 1)

    def queue(self, stage: Stage, seconds: float, rows: int = 1) -> float:
        """Queues work of about this duration; returns when it is done. rows: of a decoder call."""
        begin, costs = max(self.loop.time(), self._free_at[stage]), self.costs
        beside = [self._rows[each] for each, free_at in self._free_at.items() if each is not stage and free_at > begin]
        slowdown = max((costs.interference + costs.crowding * (count - 1) for count in beside), default=1.0)
        noise = math.exp(self._randoms.gauss(0, costs.noise) - costs.noise**2 / 2)
        self._free_at[stage], self._rows[stage] = begin + seconds * noise * slowdown, rows
        return self._free_at[stage]

    def wait(self, until: float) -> None:
        """Lets time pass until then."""
        self.loop.spend(max(0.0, until - self.loop.time()))


class _Engine:
    isolates_rows = True
    limits = Limits()
    stage: Stage

    def __init__(self, device: Device) -> None:
        self._device, self._costs = device, device.costs
        self.traits = GPU if device.costs.is_gpu else CPU
        self.depth = self.traits.depth

    def warm_up(self) -> None:
        """Takes no time: the scenario begins with processes that are ready."""

    def _queue(self, seconds: float, rows: int = 1) -> float:
        done_at = self._device.queue(self.stage, seconds, rows)
        if not self._costs.is_gpu:
            self._device.wait(done_at)
        return done_at


class TimedTalkerEngine(_Engine):
    """A `TalkerEngine` in which every request has `max_frames` frames."""

    stage = Stage.TALKER

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        traits = self.traits
        self.ahead_frames, self.prompt_rows = traits.ahead_frames, traits.prompt_rows
        self.prefill_rows = traits.prefill_rows
        self._left: dict[str, int] = {}

    def prepare(self, request: SpeechRequest, codes: bytes, reference: bytes | None) -> Prepared:
        """Encodes a reference."""
        frames = [FRAME] * (len(codes) // len(FRAME))
        if reference is None:
            return Prepared(request, frames)
        self._device.loop.spend(self._costs.prepare)
        return Prepared(request, frames, Reference(FRAME * self._costs.reference_frames))

    def admit(self, prepared: Sequence[Prepared]) -> None:
        """Prefills requests; those on a GPU together."""
        self._queue(self._costs.prefill)
        for each in prepared:
            self._left[each.request.id] = each.request.max_frames - each.frames

    def launch(self, ids: Sequence[str]) -> tuple[float, Mapping[str, bytes | End]]:
        """Starts a step."""
        results = {request_id: self._next(request_id) for request_id in ids}
        return self._queue(self._costs.step_seconds(len(ids))), results

    def _next(self, request_id: str) -> bytes | End:
        self._left[request_id] -= 1
        return FRAME if self._left[request_id] >= 0 else End(EndReason.LENGTH)

    def read(self, step: tuple[float, Mapping[str, bytes | End]]) -> Mapping[str, bytes | End]:
        """Waits for a step."""
        done_at, results = step
        self._device.wait(done_at)
        return results

    def release(self, request_id: str) -> None:
        """Forgets a request."""
        self._left.pop(request_id, None)


class TimedCodecEngine(_Engine):
    """A `CodecEngine`. A call is known by when it is done, and the frames of each row."""

    stage = Stage.CODEC
    prefill = None
    codebook_size = 2048

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.overhead_frames = self.traits.overhead_frames
        self.captured: set[CapturePair] = set()
        self.capture_costs: dict[CapturePair, CaptureCost] = {}

    def capture(self, shape: CapturePair) -> None:
        """Captures a shape."""
        seconds = self._costs.capture
        self._device.loop.spend(seconds)
        self.captured.add(shape)
        self.capture_costs[shape] = CaptureCost(seconds, self._costs.capture_bytes * math.prod(shape))

    def free_shapes(self, shapes: Iterable[CapturePair]) -> None:
        """Frees captured shapes."""
        self.captured.difference_update(shapes)

    def open(self, request_id: str) -> None:
        """Needs no state."""

    def launch(self, ids: Sequence[str], codes: Sequence[Sequence[bytes]], shape: CapturePair) -> tuple[float, Any]:
        """Starts a call."""
        calls = self._costs.captured if shape in self.captured else self._costs.eager
        frames = [len(each) for each in codes]
        return self._queue(calls.at(len(ids), sum(frames) / len(ids)), len(ids)), frames

    def read(self, call: tuple[float, Sequence[int]]) -> Sequence[bytes]:
        """Waits for a call."""
        done_at, frames = call
        self._device.wait(done_at)
        return [AUDIBLE * count for count in frames]

    def release(self, request_id: str) -> None:
        """Needs no state."""
