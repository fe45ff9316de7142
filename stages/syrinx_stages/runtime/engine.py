"""What every stage's engine offers: the contract between a service and what computes for it.

A step is begun by `launch` and its results are had by `read`. An engine on an accelerator only queues work in `launch`,
so that the next step begins on the device the moment the last one ends; one on a CPU computes there.
All methods are called from one thread, except where a stage's contract says otherwise.
"""

from __future__ import annotations

from typing import Protocol


class Engine(Protocol):
    """What both stages' engines have in common."""

    depth: int
    """Launched steps that may be unread at once: 1, or 2 where `launch` does not wait and a step's results come at its
    end. Steps are read in the order of their launch."""
    isolates_rows: bool
    """After an exception of `admit` or `launch` nothing has changed, and one row's failure is no other's. Where it is
    false, any exception is the end of the process: an accelerator's errors stay."""

    def warm_up(self) -> None:
        """Makes the first request as fast as the next."""

    def release(self, request_id: str) -> None:
        """Frees a request's state; unknown ids are fine. Steps with it may be unread: nobody asks for its results."""
