"""What the talker's engine does in one iteration of the service, on its own thread."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from syrinx_stages.contract import logs
from syrinx_stages.contract.messages import End, EndReason
from syrinx_stages.contract.stages import Stage
from syrinx_stages.runtime.errors import stage_failed
from syrinx_stages.runtime.requests.in_flight import CompletedStep, InFlightSteps, launch_or_isolate
from syrinx_stages.talker.engine import EngineFull, TalkerEngine
from syrinx_stages.talker.speech import Take
from syrinx_stages.talker.streams import Opening, Stream

log = logging.getLogger(__name__)

Stepped = tuple[Stream, Take]
Results = Mapping[str, bytes | End]
"""By take: the codes of a frame, or that it has ended. A row without memory has none."""
Completed = CompletedStep[Sequence[Stepped], Results]


class Extension(Struct, frozen=True):
    """Further text of a row that the engine has."""

    row: Stream
    tokens: Sequence[int]
    ended: bool


class Turn(Struct, frozen=True):
    """What to do."""

    openings: Sequence[Opening]
    """Takes to prefill."""
    extensions: Sequence[Extension]
    stepped: Sequence[Stepped]
    """The rows of the next step; none: no step."""
    depth: int
    """Steps in flight from which on the oldest one is read; without a next step it is read anyway."""


class Done(Struct):
    """What has become of it."""

    started: float
    prefilled: float = 0.0
    """When the prefills began and ended, in monotonic seconds."""
    failed: list[tuple[Stream, Exception]] = []
    """Rows of which the engine has nothing."""
    rejected: list[Opening] = []
    """Takes for which the engine has no memory now."""
    without_text: list[Stream] = []
    """Rows for whose further text it has none."""
    step: Completed | None = None
    """The oldest step, if it was read."""


def take_turn(engine: TalkerEngine, steps: InFlightSteps[Sequence[Stepped], Results], turn: Turn) -> Done:
    """Prefills takes, passes on text, launches a step, and reads the oldest one if `depth` are in flight."""
    done = Done(time.monotonic())
    _prefill(engine, turn.openings, done)
    done.prefilled = time.monotonic()
    done.without_text += [each.row for each in turn.extensions if not _extend(engine, each)]
    without_state = [row for row, _ in done.failed] + [row for row, _ in done.rejected] + done.without_text
    excluded = {row.id for row in without_state}
    due = [(row, take) for row, take in turn.stepped if row.id not in excluded]
    if due:
        steps.launch(due, functools.partial(_launch, engine, due))
    done.step = steps.read_oldest(bool(due), turn.depth)
    return done


def _prefill(engine: TalkerEngine, openings: Sequence[Opening], done: Done) -> None:
    """Prefills takes as a batch or, if that fails, one by one."""
    if not openings:
        return
    try:
        engine.admit([prompt for _, prompt in openings])
    except Exception as error:
        is_full = isinstance(error, EngineFull)
        if not (is_full or engine.isolates_rows):
            raise
        if len(openings) > 1:
            for opening in openings:
                _prefill(engine, [opening], done)
        elif is_full:
            done.rejected += openings
        else:
            done.failed.append((openings[0].row, error))


def _extend(engine: TalkerEngine, extension: Extension) -> bool:
    """Passes text on to the engine. Returns False if it failed with this row only."""
    try:
        engine.extend(extension.row.id, extension.tokens, extension.ended)
    except Exception:
        if not engine.isolates_rows:
            raise
        log.exception("the text of request %s failed in the engine", extension.row.id, extra=_fields(extension.row))
        return False
    return True


def _launch(engine: TalkerEngine, due: Sequence[Stepped]) -> Callable[[], Results]:
    def each_alone() -> Results:
        alone = [_step_alone(engine, row, take) for row, take in due]
        return {key: result for results in alone for key, result in results.items()}

    return launch_or_isolate(engine, len(due), lambda: engine.launch([take.id for _, take in due]), each_alone)


def _step_alone(engine: TalkerEngine, row: Stream, take: Take) -> Results:
    try:
        return engine.read(engine.launch([take.id]))
    except Exception:
        log.exception("request %s failed in the engine", row.id, extra=_fields(row))
        return {take.id: End(EndReason.ERROR, str(stage_failed(Stage.TALKER)))}


def _fields(row: Stream) -> dict[str, str]:
    return logs.of_request(row.id, row.claim.request.traceparent)
