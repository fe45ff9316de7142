"""The interface between a service and its engine that both stages share.

`launch` starts a step and `read` returns its results. On an accelerator `launch` only queues work, so the device starts
the next step as soon as the previous one ends; on a CPU it computes the step. All methods are called from one thread,
unless the interface of a stage says otherwise.
"""

from typing import Any, Protocol

from msgspec import Struct


class Limits(Struct, frozen=True, kw_only=True):
    """What an engine can do on its device. None: anything."""

    max_num_seqs: int | None = None
    """Maximum number of rows per step."""
    max_resident: int | None = None
    """Maximum number of resident requests."""


class Engine(Protocol):
    """The part of the interface that both stages have in common."""

    depth: int
    """Maximum number of launched steps that are not read yet: 1, or 2 if `launch` does not wait and a step's results
    are available only at its end. Steps are read in launch order."""
    isolates_rows: bool
    """True: an exception in `admit` or `launch` changes nothing and concerns one row only. False: any exception ends
    the process, as errors of an accelerator are permanent."""

    limits: Limits
    """Known after `warm_up`."""

    def warm_up(self) -> None:
        """Prepares the engine so that the first request is as fast as later ones."""

    def read(self, step: Any) -> Any:
        """Waits for a launched step and returns its results."""

    def release(self, request_id: str) -> None:
        """Frees the state of a request; ignores unknown IDs. Steps that include it may be in flight: the results of
        the request are not read."""
