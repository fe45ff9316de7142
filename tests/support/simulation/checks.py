"""What must hold of every history, and of what every client has received."""

import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from support.simulation.clients import Client, Wish
from support.simulation.engines import READING, AudioFrame, Frame, may_stop, start_of_chain
from support.simulation.faults import Fault
from support.simulation.history import Loss, Written
from syrinx_stages.connector.base import MAX_DELIVERIES, WRITER_GROUP
from syrinx_stages.contract.frames import unpack_checksums
from syrinx_stages.contract.keys import StreamKind
from syrinx_stages.contract.messages import Audio, Codes, End, Segment
from syrinx_stages.normalization.durations import bounds
from syrinx_stages.talker.speech import ATTEMPTS, BEGINNING, take_seed

if TYPE_CHECKING:
    from support.simulation.scenario import World

FRAME_BYTES = 32
ABSENCES = ("crash", "drain", "pause", "partition", "slow", "reset")
"""Faults after which another replica may take over."""

REPAIR_SECONDS = 4.0
"""A lease, a reconnection and a takeover: for this long an owner may be unable to write again what was lost."""


class Trajectory:
    """Follows the frames of one stream: each must continue those of its segment, and no earlier owner may come back."""

    def __init__(self, seed: int, resumed: Segment = BEGINNING) -> None:
        """resumed: the segment with which the stream begins."""
        self.frames = resumed.frames
        self.segments = resumed.number or 1
        self.chain = start_of_chain(seed)
        self._seed = seed
        self._begins_at = resumed.frames
        """Frames before the segment."""
        self._has_forked = False
        self._row = 0
        self._earlier: set[int] = set()

    @property
    def segment_frames(self) -> int:
        """Frames of the segment so far."""
        return self.frames - self._begins_at

    def follow(self, codes: bytes) -> str | None:
        """Returns what is wrong with the next frame."""
        frame = Frame.parse(codes)
        self.frames += 1
        if self.begins_segment(frame):
            self._begins_at, self.chain = self.frames - 1, frame.chain
            self.segments += 1
        before, self.chain = self.chain, zlib.crc32(codes, self.chain)
        if frame.index != self.segment_frames:
            return f"frame {frame.index} is in the place of frame {self.segment_frames}"
        if frame.chain != before:
            return f"frame {frame.index} does not continue the frames before it"
        return self._follow_row(frame.row, frame.index)

    def fork(self, frame: Frame) -> None:
        """Goes on with a frame of a stream that was generated again, whose segments may have other frames."""
        self.chain, self._begins_at, self._has_forked = frame.chain, self.frames - (frame.index - 1), True

    def begins_segment(self, frame: Frame) -> bool:
        """Returns whether a frame is the first one of an attempt at the next segment."""
        if self._has_forked:
            return frame.index == 1
        attempts = (take_seed(self._seed, self.segments, attempt) for attempt in range(ATTEMPTS))
        return frame.index == 1 and self.frames > 1 and frame.chain in map(start_of_chain, attempts)

    def _follow_row(self, row: int, index: int) -> str | None:
        if row == self._row:
            return None
        self._earlier.add(self._row)
        self._row = row
        return f"frame {index} is of an owner that was superseded" if row in self._earlier else None


class AudioTrajectory:
    """Follows the audio of one stream: that of the codes' trajectory, decoded without a gap."""

    def __init__(self, seed: int, resumed: Segment = BEGINNING) -> None:
        self.codes = Trajectory(seed, resumed)
        self._chain = 0

    def follow(self, pcm: bytes, forks: bool = False) -> str | None:
        """Returns what is wrong with the next frames. With `forks` they need not continue those before."""
        try:
            frames = AudioFrame.parse(pcm)
        except ValueError as error:
            return str(error)
        for frame in frames:
            if self.codes.frames and Frame.parse(frame.codes).index == 1:
                # A segment is decoded from its own first frame on.
                self._chain = 0
            self._chain = zlib.crc32(frame.codes, self._chain)
            if forks:
                self.codes.fork(Frame.parse(frame.codes))
                self._chain, forks = frame.chain, False
            if (wrong := self.codes.follow(frame.codes)) is not None:
                return wrong
            if frame.chain != self._chain:
                return f"frame {self.codes.frames} was decoded after other frames"
        return None


def check_history(world: "World") -> Iterator[str]:
    """Yields what is wrong with the streams of a run."""
    history = world.history
    for (request_id, kind), entries in history.streams.items():
        resumed = history.resumed[request_id] or BEGINNING
        wrong = _wrong_with(entries, history.seeds[request_id], resumed, codes_may_be_lost(request_id, world))
        wrong = wrong or _taken_from_healthy(entries, world)
        if wrong is not None:
            yield f"{kind} of request {history.seeds[request_id]}: {wrong}"


def _wrong_with(entries: Sequence[Written], seed: int, resumed: Segment, may_fork: bool) -> str | None:
    codes, audio = Trajectory(seed, resumed), AudioTrajectory(seed, resumed)
    ended, checksum = False, resumed.checksum
    for written in entries:
        entry, wrong = written.entry, None
        if ended:
            return "an entry after the end"
        if isinstance(entry, Codes):
            parts = (entry.codes[at : at + FRAME_BYTES] for at in range(0, len(entry.codes), FRAME_BYTES))
            wrong = next(filter(None, map(codes.follow, parts)), None)
        elif isinstance(entry, Audio):
            before, *_, after = unpack_checksums(entry.checksums)
            forks, checksum = before != checksum, after
            if forks and not may_fork:
                return f"frame {audio.codes.frames + 1} announces that it does not continue the frames before it"
            wrong = audio.follow(entry.pcm, forks)
        elif isinstance(entry, End):
            ended = True
        if wrong is None and written.position.frames != max(codes.frames, audio.codes.frames):
            wrong = f"an entry at {written.position.frames} after {max(codes.frames, audio.codes.frames)} frames"
        if wrong is not None:
            return wrong
    return None


def _taken_from_healthy(entries: Sequence[Written], world: "World") -> str | None:
    """Returns the first takeover from a process that nothing had happened to."""
    if any(_loses(fault) for fault in world.injector.faults):
        return None
    faulty = {fault.target for fault in world.injector.faults}
    owner = 0
    for written in entries:
        row = _row(written)
        new, former = world.cluster.rows[row or 0], world.cluster.rows[owner]
        if former and new not in ("", former) and former not in faulty:
            return f"{new} takes over from {former}, which is healthy"
        owner = row or owner
    return None


def _loses(fault: Fault) -> bool:
    """Returns whether a fault of Redis loses data."""
    return fault.kind == "empty restart" or (fault.kind == "fail-over" and fault.detail > 0)


def _row(written: Written) -> int | None:
    """Returns the engine row that has made an entry."""
    if isinstance(written.entry, Codes):
        return Frame.parse(written.entry.codes[:FRAME_BYTES]).row
    return AudioFrame.parse(written.entry.pcm)[0].row if isinstance(written.entry, Audio) else None


def codes_may_be_lost(request_id: str, world: "World") -> bool:
    """Returns whether all copies of codes that a codec has decoded may be lost: in Redis, and with their talker.

    The next talker then samples these frames again. The audio of the first ones is not continued with them.
    """
    return any(
        _lost_with_owner(loss, StreamKind.CODES, world) or _generated_again(loss, StreamKind.CODES, world)
        for loss in world.history.losses_of(request_id)
    )


def _generated_again(loss: Loss, kind: StreamKind, world: "World") -> bool:
    """Returns whether another owner has generated again what Redis has lost together with the claim of its owner."""
    if WRITER_GROUP[kind] not in loss.claims:
        return False
    rows = {None, *map(_row, loss.lost[kind])}
    written = world.history.streams.get((loss.request_id, kind), ())
    return any(entry.at > loss.at and _row(entry) not in rows for entry in written)


def _lost_with_owner(loss: Loss, kind: StreamKind, world: "World") -> bool:
    """Returns whether a loss includes entries of a stream, and an owner of the stream was absent around that time.

    The loss of an owner's claim is found only in what it has written, so all owners before the loss count.
    """
    if not loss.lost[kind]:
        return False
    owners = {world.cluster.rows[row] for row in map(_row, loss.written(kind)) if row}
    return any(
        fault.target in owners and fault.at < loss.at + REPAIR_SECONDS and fault.over_at + REPAIR_SECONDS > loss.since
        for fault in world.injector.of(*ABSENCES)
    )


def may_leave_streams(client: Client, world: "World") -> bool:
    """Returns whether the streams of a client's request may be left to expire: its gateway could not release them."""
    gateway = client.gateway.name if client.gateway is not None else ""
    return any(fault.target == gateway for fault in world.injector.faults)


def check_client(client: Client, world: "World") -> Iterator[str]:
    """Yields what is wrong with what a client has received."""
    name = f"client {client.wish.number}"
    trajectory = AudioTrajectory(client.wish.number)
    pcm = AudioFrame.without_pauses(client.audio())
    if (wrong := trajectory.follow(pcm)) is not None:
        yield f"{name}: {wrong}"
        return
    frames = trajectory.codes.frames
    if client.succeeded:
        if frames != client.wish.frames and not _is_all_said(client.wish, trajectory.codes):
            yield f"{name}: the response ends after {frames} of {client.wish.frames} frames"
    elif not (client.departed or client.cut_off):
        yield from _check_failure(client, frames, world)


def _is_all_said(wish: Wish, codes: Trajectory) -> bool:
    """Returns whether a trajectory has decided itself to end."""
    if wish.sentences == 1:
        return may_stop(codes.frames, codes.chain, wish.frames)
    bound = READING.durations
    stopped = may_stop(codes.segment_frames, codes.chain, None) or codes.segment_frames == bounds("Hello.", bound).most
    return codes.segments == wish.sentences and stopped


def _check_failure(client: Client, frames: int, world: "World") -> Iterator[str]:
    """Yields why a client should not have failed."""
    if client.over_at is None:
        yield f"client {client.wish.number}: the request never ends"
    elif not (_is_lost(client, world) or _is_drained(client, world) or _many_crashes(world)):
        what = f"ends after {frames} frames" if client.status == 200 else f"fails with {client.status}"
        if client.status != 503 or frames:
            yield f"client {client.wish.number}: the response {what}: {bytes(client.received[-300:])!r}"


def _is_lost(client: Client, world: "World") -> bool:
    """Returns whether Redis has lost a request after its first audio, or entries together with an owner of theirs."""
    for loss in world.history.losses_of(client.request_id):
        if loss.entirely and loss.written(StreamKind.AUDIO):
            return True
        for kind in (StreamKind.CODES, StreamKind.AUDIO):
            if _lost_with_owner(loss, kind, world) or _generated_again(loss, kind, world):
                return True
    return False


def _is_drained(client: Client, world: "World") -> bool:
    """Returns whether the gateway of a request was told to exit."""
    return any(
        client.gateway is not None and fault.target == client.gateway.name for fault in world.injector.of("drain")
    )


def _many_crashes(world: "World") -> bool:
    """A request whose owners crash again and again without progress is given up."""
    for stage in ("talker", "codec"):
        if sum(fault.target.startswith(stage) for fault in world.injector.of("crash")) >= MAX_DELIVERIES:
            return True
    return False
