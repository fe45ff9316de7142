"""What to do next: the tuner's one decision function. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from syrinx_operator.tuner.evidence import Evidence
from syrinx_operator.tuner.knobs import Setting, Stage
from syrinx_operator.tuner.policy import Policy
from syrinx_operator.tuner.state import State


class Event(Struct, frozen=True, kw_only=True):
    """Something decided: one line of the audit log, and one event of the resource."""

    kind: Literal["Normal", "Warning"] = "Normal"
    reason: str
    """In one CamelCase word: TrialStarted, Promoted, RolledBack, ..."""
    message: str
    data: Mapping[str, Any] = {}
    """For the audit log: what the decision was made from, JSON-encodable by msgspec."""


class Decision(Struct, frozen=True, kw_only=True):
    """What is to be remembered, told, and when to look again. `assignment` says what settings follow."""

    state: State
    events: tuple[Event, ...] = ()
    look_in: float
    """Seconds to the next look."""


class Assignment(Struct, frozen=True, kw_only=True):
    """Which setting each replica shall have in force."""

    base: Setting
    """Of every replica, and of those that start: what the ConfigMap holds."""
    trial: Mapping[Stage, Mapping[str, Setting]] = {}
    """Replicas with a setting for a limited time, renewed at each look: it ends by itself if nobody renews it."""
    everywhere: Mapping[Stage, Setting] = {}
    """The same for every replica of a stage."""

    def of(self, stage: Stage, replica: str) -> Setting | None:
        """A replica's limited setting; None if it has none."""
        return self.trial.get(stage, {}).get(replica, self.everywhere.get(stage))


TRIAL_SETTINGS_SECONDS = 60.0
"""How long a limited setting lasts unless it is renewed; at least three looks."""


def decide(policy: Policy, state: State, evidence: Evidence, now: datetime) -> Decision:
    """What follows from what was seen. Never acts on no data; never has two changes in flight.

    `evidence` is of the window that `since(policy, state, now)` asked for, or of as much of it as is known.
    """
    raise NotImplementedError


def assignment(policy: Policy, state: State) -> Assignment:
    """The settings that follow from a state. In modes other than Auto, or paused: what is chosen, and no trial."""
    raise NotImplementedError


def since(policy: Policy, state: State, now: datetime) -> datetime:
    """From when on the next decision wants to know what happened."""
    raise NotImplementedError
