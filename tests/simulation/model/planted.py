"""Wrong protocols, each with the fewest faults that show why it is wrong."""

from __future__ import annotations

from typing import NamedTuple

from .model import Bounds, Faults
from .store import Protocol


class Planted(NamedTuple):
    """A protocol with one mistake."""

    mistake: str
    protocol: Protocol
    faults: Faults

    @property
    def bounds(self) -> Bounds:
        """The size of the model that the mistake is searched in."""
        return Bounds(faults=self.faults)


_PAUSE = Faults(crashes=0, losses=0, pauses=1, failovers=0, replacements=0)
_FAILOVER = Faults(crashes=0, losses=0, pauses=0, failovers=1, replacements=0)
_LOSS_AND_FAILOVER = Faults(crashes=0, losses=1, pauses=0, failovers=1, replacements=0)
_PAUSE_AND_FAILOVER = Faults(crashes=0, losses=0, pauses=1, failovers=1, replacements=0)
_REPLACEMENT = Faults(crashes=0, losses=0, pauses=0, failovers=0, replacements=1)

PLANTED = (
    Planted("appends are not fenced", Protocol(fence=False), _PAUSE),
    Planted("the token is a counter", Protocol(unique_token=False, confirm=False), _FAILOVER),
    Planted("appends need not continue the stream", Protocol(continuity=False), _FAILOVER),
    Planted("an owner's own entry is refused", Protocol(recognize_own=False), _LOSS_AND_FAILOVER),
    Planted("accepting does not check the claim", Protocol(accept_checks_claim=False), _PAUSE),
    Planted(
        "admission does not check the start", Protocol(admit_checks_start=False, confirm=False), _PAUSE_AND_FAILOVER
    ),
    Planted("claims are not replicated", Protocol(barrier=False), _FAILOVER),
    Planted("a claim on a primary that was replaced is used", Protocol(confirm=False), _REPLACEMENT),
    Planted("there is no journal", Protocol(journal=False), _FAILOVER),
    Planted("an owner claims again what it has ended", Protocol(keep_ended=False), _FAILOVER),
    Planted("only a further append repairs", Protocol(repair=False), _FAILOVER),
    Planted("takeovers do not wait after a fail-over", Protocol(grace=False), _FAILOVER),
    Planted(
        "a batch continues after a refusal, and only positions are compared",
        Protocol(fence=False, continuity=False, recognize_own=False, refuse_rest=False),
        _PAUSE,
    ),
)
