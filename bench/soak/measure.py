"""The measurements of a run: takeover times and stalls. Pure."""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from soak.faults import Fault, Kind
from soak.load import Outcome, Utterance, Verdict
from syrinx_operator.commands.bench.stats import simulate
from syrinx_stages.contract.family import FAMILY

LEAD_SECONDS = 6.0
"""A stream that is further ahead of its listener is not generated at full speed, so its takeover cannot be timed."""


class Injected(Struct, frozen=True):
    """A fault that was injected. Times are monotonic seconds."""

    fault: Fault
    group: str
    """The stage of its target, or `primary` or `replica` for a Redis server."""
    at: float
    frames: Mapping[str, int]
    """Frames of the target's output that existed at the time of the fault, by id of the requests that it served."""


class Takeover(Struct, frozen=True):
    """A stream that continued after a fault of a process that served it."""

    cause: str
    """Stage and kind of the fault."""
    seconds: float
    """From the fault to the first audio beyond what existed at the time of the fault."""


def gateway_died(outcome: Outcome, injected: Sequence[Injected]) -> bool:
    """Returns whether a request ended because its gateway died.

    The gateway was killed meanwhile, or got SIGTERM before the request was sent and closed the connection without a
    response.
    """
    if outcome.verdict is not Verdict.LOST:
        return False
    own = [each for each in injected if each.fault.target == outcome.gateway and each.at <= outcome.end]
    killed = any(each.fault.kind is Kind.KILL and each.at >= outcome.start for each in own)
    draining = any(each.fault.kind is Kind.TERM and each.at < outcome.start for each in own)
    return killed or (draining and not outcome.request_id and outcome.message.startswith("cut off"))


def takeovers(
    outcomes: Sequence[Outcome], injected: Sequence[Injected], utterances: Sequence[Utterance]
) -> list[Takeover]:
    """Returns the takeovers of live streams whose generation was not paced by their lead at the time of the fault."""
    found = []
    by_id = {outcome.request_id: outcome for outcome in outcomes if outcome.live and outcome.request_id}
    for each in injected:
        for request_id, frames in each.frames.items():
            outcome = by_id.get(request_id)
            if outcome is None or not outcome.arrivals:
                continue
            played = each.at - outcome.start - outcome.arrivals[0].at
            lead = frames * FAMILY.frame_seconds - max(0.0, played)
            at = _arrival_beyond(outcome, frames, utterances[outcome.number])
            if at is not None and lead < LEAD_SECONDS:
                found.append(Takeover(f"{each.group} {each.fault.kind}", max(0.0, at - each.at)))
    return found


def longest_stall(outcomes: Sequence[Outcome]) -> float:
    """Returns the longest stall of a live listener's playback in seconds, incomplete streams included."""
    played = [simulate(outcome.arrivals, None) for outcome in outcomes if outcome.live and outcome.arrivals]
    return max((playback.longest_underrun for playback in played), default=0.0)


def quantile(values: Sequence[float], share: float) -> float:
    """Returns a quantile of values; 0 without any."""
    return float(np.quantile(values, share)) if values else 0.0


def _arrival_beyond(outcome: Outcome, frames: int, utterance: Utterance) -> float | None:
    """Returns the arrival time of the first audio after frame `frames`, or None if there is none."""
    size = 0
    for arrival in outcome.arrivals:
        size += 2 * arrival.samples
        if utterance.frames_in(size) > frames:
            return outcome.start + arrival.at
    return None
