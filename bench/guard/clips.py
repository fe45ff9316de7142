"""Speaks segments through the talker's engine, checked as in the talker's service."""

import time
from collections.abc import Iterable

from msgspec import Struct, field, structs

from guard.planted import NO_END, Kind, Plant, PlantingSampler
from syrinx_stages.contract.messages import End, EndReason, SpeechRequest
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.normalization.durations import Bounds
from syrinx_stages.talker.eager_engine import EagerTalkerEngine
from syrinx_stages.talker.speech import Fault, Take

CONCURRENT = 32
"""Clips in one batch. On a CPU a clip does not depend on the others."""
FOUND_FRAMES = 25
"""A listener gets at most two seconds of a fault."""
REFERENCE = b"\x00\x00\x00\x3d" * 24_000
"""A second of reference audio for Base checkpoints, which all sound alike to the benchmark's one."""


class Clip(Struct, kw_only=True):
    """A clip to speak, and what became of it."""

    request: SpeechRequest
    bounds: Bounds
    plant: Plant | None = None
    codes: list[int] = field(default_factory=list)
    """Code 0 of each frame."""
    fault: Fault | None = None
    released: int = 0
    """Frames that the listener of a stream gets, if it is the first segment."""

    @property
    def is_found(self) -> bool:
        """Whether the plant was found before a listener gets more than `FOUND_FRAMES` of it, and not too early."""
        assert self.plant is not None
        wrong = self.released - self.plant.start
        return self.fault is not None and len(self.codes) >= self.plant.start and wrong <= FOUND_FRAMES


class Speaker:
    """A loaded checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._engine = EagerTalkerEngine(checkpoint)
        self.sampler = self._engine._frame_sampler = PlantingSampler(self._engine._talker)
        self.frames = 0
        self.step_seconds = 0.0
        self.check_seconds = 0.0

    def speak(self, clips: Iterable[Clip]) -> Iterable[Clip]:
        """Yields the clips, each when it is over."""
        waiting, running = iter(clips), dict[str, tuple[Clip, Take]]()
        while True:
            while len(running) < CONCURRENT and (clip := next(waiting, None)) is not None:
                self._start(clip)
                running[clip.request.id] = clip, Take(clip.request, clip.bounds, streams=True)
            if not running:
                return
            began = time.thread_time()
            results = self._engine.read(self._engine.launch(list(running)))
            self.step_seconds += time.thread_time() - began
            self.frames += len(results)
            for request_id, result in results.items():
                clip, take = running[request_id]
                if self._is_over(clip, take, result):
                    del running[request_id]
                    self._engine.release(request_id)
                    self.sampler.plants.pop(clip.request.seed, None)
                    yield clip

    def _start(self, clip: Clip) -> None:
        request = clip.request
        if clip.plant is not None:
            self.sampler.plants[request.seed] = clip.plant
            if clip.plant.kind not in (Kind.END_COLLAPSED, Kind.SHORT):
                request = structs.replace(request, sampling=structs.replace(request.sampling, min_frames=NO_END))
        self._engine.admit([self._engine.prepare(request, b"", REFERENCE if request.has_reference else None)])

    def _is_over(self, clip: Clip, take: Take, result: bytes | End) -> bool:
        began = time.thread_time()
        if isinstance(result, End):
            take.end(EndReason(result.reason))
        else:
            clip.codes.append(int.from_bytes(result[:2], "little"))
            take.add(result)
        self.check_seconds += time.thread_time() - began
        clip.fault = take.fault
        if is_over := isinstance(result, End) or clip.fault is not None:
            take.release()
            clip.released = take.released
        return is_over
