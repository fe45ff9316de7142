"""The state of a canary in the status, from which any operator continues."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from syrinx_operator.resource.knobs import StatusStruct
from syrinx_operator.resource.state.tuning_status import Bet, Count, Timestamp

Seconds = Annotated[float, Meta(ge=0)]

CanaryPhase = Literal["Starting", "Running", "Promoted", "RolledBack"]


class Counts(StatusStruct, frozen=True, kw_only=True):
    """Requests of one version that ended."""

    requests: Count = 0
    """Served, refused or failed."""
    good: Count = 0
    """Requests that met the TTFA objective without an underrun."""
    underruns: Annotated[Count, Meta(description="Streams whose playback underran.")] = 0
    errors: Annotated[Count, Meta(description="Requests that failed.")] = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})

    @property
    def good_ratio(self) -> float:
        """Ratio of good requests; 1 without requests."""
        return self.good / self.requests if self.requests else 1.0


class CanaryStatus(StatusStruct, frozen=True, kw_only=True):
    """A new version that is tested on a share of the requests, or has failed the test."""

    target: Annotated[str, Meta(max_length=64)]
    """Hash of the new version's pod templates."""
    image: Annotated[str, Meta(max_length=512)]
    """Image of the new version."""
    phase: CanaryPhase
    """Starting: its pods are not ready yet. Running: it serves requests. Promoted: it replaces the running version, and
    its pods serve until that is complete. RolledBack: it has failed, and is not tried again before an edit."""
    reason: Literal["Failed", "Aborted"] | None = None
    """Why it was rolled back."""
    message: Annotated[str, Meta(max_length=512)]
    """Details of the phase."""
    paused: Annotated[bool, Meta(description="Whether the next step waits for the user.")] = False
    step: Annotated[Count, Meta(description="Index of the current step, from 0.")] = 0
    weight: Annotated[int, Meta(ge=0, le=100, description="Percentage of the requests that it serves now.")] = 0
    start_time: Annotated[Timestamp, Meta(description="When the canary started.")]
    unready_time: Annotated[Timestamp | None, Meta(description="Since when not all of its pods are ready.")] = None
    unrouted_time: Timestamp | None = None
    """Since when not all gateways forward its share. Absent if all do."""
    problem_time: Annotated[Timestamp | None, Meta(description="Since when its pods have a problem.")] = None
    period_time: Annotated[Timestamp | None, Meta(description="Start of the period that is being counted.")] = None
    promotion_time: Annotated[Timestamp | None, Meta(description="When it was promoted.")] = None
    step_seconds: Annotated[Seconds, Meta(description="Counted time of the current step.")] = 0.0
    step_requests: Annotated[Count, Meta(description="Requests of the canary in the current step.")] = 0
    stable: Annotated[Counts, Meta(description="Requests of the running version.")] = Counts()
    canary: Annotated[Counts, Meta(description="Requests of the new version.")] = Counts()
    worse: Annotated[Bet, Meta(description="Test of fewer good requests of the new version.")] = Bet()
