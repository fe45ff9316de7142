"""Simulated engines. Their frames and audio show from what they were computed.

A frame holds the checksum of everything before it in its stream, and the number of the row that sampled it. Two owners
of a request sample different frames, as two GPUs do, so a stream that was joined of two trajectories is visible.
"""

import random
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from support.simulation.loop import SimulatedLoop
from syrinx_stages.codec.engine import CaptureCost, Prefill
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import End, EndReason, Reference, SpeechRequest
from syrinx_stages.contract.settings import CapturePair
from syrinx_stages.normalization.durations import Durations
from syrinx_stages.normalization.reading import Reading
from syrinx_stages.normalization.segments import SENTENCE_SECONDS
from syrinx_stages.runtime.requests.engine import Limits

CODEBOOK_SIZE = 1 << 15
_FRAME = struct.Struct("<16H")
_MASK = CODEBOOK_SIZE - 1
_AUDIO = struct.Struct("<32sIH")
R = TypeVar("R")
_FILLER = b"\xe8\x03" * (FAMILY.samples_per_frame - _AUDIO.size // 2)
"""Audible, so that the gateway trims nothing."""


READING = Reading(
    single_sentences=True,
    durations=Durations(text=2.0, letter=0.5, word=0.5, shortest=1.0, longest=1.4, early=0.8, late=1.0),
)
"""Sentences of simulated speech have a few frames, and are often too short."""
_PAUSE_BYTES = 2 * round(SENTENCE_SECONDS * FAMILY.sample_rate)


def start_of_chain(seed: int) -> int:
    """Returns the checksum before the first frame of a request."""
    return zlib.crc32(b"%d" % seed)


def may_stop(frames: int, chain: int, max_frames: int | None) -> bool:
    """Returns whether a trajectory stops after its frames, as it decides itself. None: it is a sentence of a text."""
    return frames > 1 and chain % 4 == 0 if max_frames is None else frames > max_frames // 2 and chain % 8 == 0


def frame(index: int, row: int, chain: int) -> bytes:
    """Returns a frame: number `index` of its stream, sampled by `row`, after frames with the checksum `chain`."""
    parts = (index & _MASK, row & _MASK, chain & _MASK, chain >> 15 & _MASK, chain >> 30)
    return _FRAME.pack(*parts, *(zlib.crc32(bytes((part,)), chain ^ row) & _MASK for part in range(11)))


class Frame(NamedTuple):
    """What a frame says about itself."""

    index: int
    row: int
    chain: int

    @classmethod
    def parse(cls, codes: bytes) -> "Frame":
        index, row, *chain = _FRAME.unpack(codes)[:5]
        return cls(index, row, chain[0] | chain[1] << 15 | chain[2] << 30)


def reference_codes(request: SpeechRequest) -> bytes:
    """Returns the codes of a request's reference audio."""
    return frame(0, 0, start_of_chain(request.seed))


class AudioFrame(NamedTuple):
    """What the audio of a frame says about itself."""

    codes: bytes
    chain: int
    """Checksum of all codes that the codec row has decoded so far."""
    row: int

    def pcm(self) -> bytes:
        return _AUDIO.pack(self.codes, self.chain, self.row) + _FILLER

    @classmethod
    def parse(cls, pcm: bytes) -> list["AudioFrame"]:
        """Parses PCM of whole frames."""
        if len(pcm) % FAMILY.frame_bytes:
            raise ValueError(f"{len(pcm)} bytes are not whole frames")
        return [cls(*_AUDIO.unpack_from(pcm, start)) for start in range(0, len(pcm), FAMILY.frame_bytes)]

    @classmethod
    def without_pauses(cls, pcm: bytes) -> bytes:
        """Returns the PCM of a client without the pauses between segments, which are no frames."""
        frames, at = [], 0
        while at < len(pcm):
            frame = pcm[at : at + FAMILY.frame_bytes]
            if frame[_AUDIO.size :] == _FILLER[: len(frame) - _AUDIO.size] and len(frame) > _AUDIO.size:
                frames.append(frame)
                at += len(frame)
            else:
                at += _PAUSE_BYTES
        return b"".join(frames)


@dataclass
class Prepared:
    """A request that is ready for prefill."""

    request: SpeechRequest
    codes: list[bytes]
    reference: Reference | None = None
    voice: None = None

    @property
    def frames(self) -> int:
        return len(self.codes)

    @property
    def positions(self) -> int:
        return self.frames


@dataclass
class Pace:
    """How long the engines of a process take, in seconds."""

    step: float
    prefill: float
    chance: random.Random

    def jittered(self, seconds: float) -> float:
        return seconds * self.chance.uniform(0.7, 1.4)


@dataclass
class _Row:
    request: SpeechRequest
    number: int
    frames: int
    chain: int
    ended: bool = False


@dataclass
class _Engine(Generic[R]):
    """What both engines have in common. `numbers` yields the number of each new row, unique in a run."""

    loop: SimulatedLoop
    pace: Pace
    numbers: Iterator[int]
    depth: int
    rows: dict[str, R] = field(default_factory=dict)
    isolates_rows: bool = True
    limits: Limits = field(default_factory=Limits)

    def warm_up(self) -> None:
        self.loop.spend(self.pace.prefill)

    def release(self, request_id: str) -> None:
        self.rows.pop(request_id, None)

    def read(self, step: Any) -> Any:
        return step


@dataclass
class SimulatedTalkerEngine(_Engine[_Row]):
    """A `TalkerEngine`."""

    ahead_frames: float = 6
    prefill_rows: int = 1

    @property
    def prompt_rows(self) -> float:
        """Engines that can have two steps in flight do."""
        return 0

    def prepare(self, request: SpeechRequest, codes: bytes, reference: bytes | None) -> Prepared:
        self.loop.spend(self.pace.jittered(self.pace.prefill))
        frames = [codes[start : start + _FRAME.size] for start in range(0, len(codes), _FRAME.size)]
        return Prepared(request, frames, Reference(reference_codes(request)) if reference is not None else None)

    def admit(self, prepared: Sequence[Prepared]) -> None:
        for each in prepared:
            self.loop.spend(self.pace.jittered(self.pace.prefill))
            chain = start_of_chain(each.request.seed)
            for codes in each.codes:
                chain = zlib.crc32(codes, chain)
            self.rows[each.request.id] = _Row(each.request, next(self.numbers), each.frames, chain)

    def launch(self, ids: Sequence[str]) -> Mapping[str, bytes | End]:
        self.loop.spend(self.pace.jittered(self.pace.step))
        return {request_id: result for request_id in ids if (result := self._step(request_id)) is not None}

    def _step(self, request_id: str) -> bytes | End | None:
        row = self.rows[request_id]
        if row.ended:
            return None
        stops = may_stop(row.frames, row.chain, None if row.request.checks else row.request.max_frames)
        if row.frames >= row.request.max_frames or stops:
            row.ended = True
            return End(EndReason.STOP if stops else EndReason.LENGTH)
        codes = frame(row.frames + 1, row.number, row.chain)
        row.frames, row.chain = row.frames + 1, zlib.crc32(codes, row.chain)
        return codes


@dataclass
class _Stream:
    number: int
    chain: int = 0
    inexact: int = 0
    """Frames to decode until the audio is right again after a prefill."""


@dataclass
class SimulatedCodecEngine(_Engine[_Stream]):
    """A `CodecEngine`."""

    overhead_frames: int = 0
    codebook_size: int = CODEBOOK_SIZE
    capture_costs: Mapping[CapturePair, CaptureCost] = field(default_factory=dict)
    captured: tuple[CapturePair, ...] = ()

    @property
    def prefill(self) -> Prefill:
        return Prefill(3, self._prefill, self._save, self._restore)

    def open(self, request_id: str) -> None:
        self.rows[request_id] = _Stream(next(self.numbers))

    def launch(self, ids: Sequence[str], codes: Sequence[Sequence[bytes]], shape: CapturePair) -> list[bytes]:
        self.loop.spend(self.pace.jittered(self.pace.step))
        return [self._decode(self.rows[request_id], frames) for request_id, frames in zip(ids, codes, strict=True)]

    def _prefill(self, request_id: str, frames: Sequence[bytes]) -> list[bytes]:
        self.loop.spend(self.pace.jittered(self.pace.step))
        stream = self.rows[request_id]
        stream.chain = zlib.crc32(b"".join(frames), stream.chain)
        stream.inexact = self.prefill.context_frames
        return [b""]

    def _save(self, request_id: str) -> tuple[int, int]:
        stream = self.rows[request_id]
        return stream.chain, stream.inexact

    def _restore(self, request_id: str, state: tuple[int, int]) -> None:
        self.rows[request_id].chain, self.rows[request_id].inexact = state

    def _decode(self, stream: _Stream, frames: Sequence[bytes]) -> bytes:
        parts = []
        for codes in frames:
            stream.chain = zlib.crc32(codes, stream.chain)
            parts.append(AudioFrame(codes, stream.chain ^ (stream.inexact > 0), stream.number & 0xFFFF).pcm())
            stream.inexact = max(0, stream.inexact - 1)
        return b"".join(parts)
