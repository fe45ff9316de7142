"""The result of `gpu.speech`: how well the bundled voice was understood, by load."""

from collections.abc import Sequence

from msgspec import Struct

from syrinx_operator.commands.bench.report import markdown
from syrinx_operator.local.machine import Machine


class Spoken(Struct, frozen=True, kw_only=True):
    """What was understood of the sentences that were spoken at one load."""

    concurrency: int
    requests: int
    incomplete: int
    """Responses that failed or ended early; refusals are repeated, as clients do."""
    identified: float
    """Share of all requests whose sentence the recognizer identified."""
    killed: Sequence[str] = ()
    """Processes that were killed meanwhile."""

    @property
    def name(self) -> str:
        """The load in words."""
        return f"{self.concurrency} with kills" if self.killed else f"{self.concurrency}"


class SpeechRun(Struct, frozen=True, kw_only=True):
    """The result file."""

    created: str
    command: str
    revision: str | None
    machine: Machine
    gpu: str | None
    loads: Sequence[Spoken]


def table(loads: Sequence[Spoken]) -> str:
    """Returns the table of the loads."""
    rows = [
        [
            str(each.concurrency),
            ", ".join(each.killed) or "-",
            str(each.requests),
            str(each.incomplete),
            f"{each.identified:.3f}",
        ]
        for each in loads
    ]
    return markdown(["clients", "killed", "requests", "incomplete", "identified"], rows)
