"""What the codec's engine does in one iteration of the service, on its own thread."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from syrinx_stages.codec.engine import CodecEngine
from syrinx_stages.codec.streams import Stream
from syrinx_stages.contract import logs
from syrinx_stages.contract.keys import Position
from syrinx_stages.contract.messages import Segment
from syrinx_stages.contract.settings import CapturePair
from syrinx_stages.contract.silence import LeadingSilenceTrimmer
from syrinx_stages.runtime.requests.in_flight import CompletedStep, InFlightSteps, launch_or_isolate
from syrinx_stages.scheduling.codec import Call

log = logging.getLogger(__name__)

MAX_REFERENCES = 16
"""References whose decoder state is kept, so that a voice which is cloned again starts at once: about 5 MB each."""


class RowCodes(Struct, frozen=True):
    """The frames of one row in a call."""

    row: Stream
    codes: list[bytes]
    checksums: Sequence[int]
    """Of all frames before the first one of `codes`, and up to each one."""
    position: Position | None = None
    """Where the audio belongs in the output stream; None if the frames only rebuild decoder state."""
    segment: Segment | None = None
    """The segment that begins with the audio."""
    trimmer: LeadingSilenceTrimmer | None = None
    reference: bytes = b""
    """Digest of the codes of the reference, if these frames are its last ones."""


class Batch(Struct, frozen=True):
    """A call and its input."""

    call: Call
    rows: list[RowCodes]


Results = Sequence[bytes | None]
"""The PCM of each row of a call; None if it failed."""
Completed = CompletedStep[Batch, Results]


class References:
    """The decoder's state after each of the last references, by digest. Changed on the engine's thread only."""

    def __init__(self) -> None:
        self._states: dict[bytes, Any] = {}

    def get(self, digest: bytes) -> Any:
        """Returns a state, or None if it is not kept."""
        return self._states.get(digest)

    def add(self, digest: bytes, state: Any) -> None:
        """Keeps a state as the most recent one."""
        self._states.pop(digest, None)
        self._states[digest] = state
        if len(self._states) > MAX_REFERENCES:
            del self._states[next(iter(self._states))]


def take_turn(
    engine: CodecEngine, steps: InFlightSteps[Batch, Results], references: References, batch: Batch | None
) -> Completed | None:
    """Launches a call, if any, and reads the oldest one if no other can be launched first."""
    if batch:
        steps.launch(batch, lambda: _launch(engine, references, batch))
    return steps.read_oldest(batch is not None, engine.depth)


def _launch(engine: CodecEngine, references: References, batch: Batch) -> Callable[[], Results]:
    shape, prefill = batch.call.shape, batch.call.prefill
    return launch_or_isolate(
        engine,
        len(batch.rows),
        lambda: _launch_rows(engine, references, batch.rows, shape, prefill),
        lambda: [_run_alone(engine, references, item, prefill) for item in batch.rows],
    )


def _launch_rows(
    engine: CodecEngine, references: References, rows: Sequence[RowCodes], shape: CapturePair, prefill: bool
) -> Any:
    if prefill and engine.prefill:
        return engine.prefill.launch(rows[0].row.id, rows[0].codes)
    call = engine.launch([item.row.id for item in rows], [item.codes for item in rows], shape)
    for item in rows:
        if item.reference and engine.prefill:
            references.add(item.reference, engine.prefill.save(item.row.id))
    return call


def _run_alone(engine: CodecEngine, references: References, item: RowCodes, prefill: bool) -> bytes | None:
    try:
        return engine.read(_launch_rows(engine, references, [item], (1, len(item.codes)), prefill))[0]
    except Exception:
        fields = logs.of_request(item.row.id, item.row.claim.request.traceparent)
        log.exception("request %s failed in the decoder", item.row.id, extra=fields)
        return None
