"""The results as a file and a page."""

from collections.abc import Mapping

from msgspec import Struct

from live_text.draws import TOKEN_SECONDS
from syrinx_operator.commands.bench.report import markdown
from syrinx_operator.commands.bench.stats import Spread
from syrinx_operator.local.machine import Machine


class Report(Struct, frozen=True, kw_only=True):
    """The content of `live.json`. Distributions are in seconds."""

    created: str
    """UTC, ISO 8601."""
    revision: str | None
    command: str
    machine: Machine
    seed: int
    cuts: int
    """Ways in which texts arrived."""
    cuts_equal: int
    """Of these, those with the audio of the whole text, bit for bit."""
    ttfa_over_whole: float
    """Median time to the first audio from the end of the first word, while an LLM writes on, divided by that of a
    request with the whole text."""
    ttfa: Mapping[str, Spread]
    """By what the time counts from."""
    cancel_ms_p95: float
    cancel: Spread
    """From the cancellation to the end of the connection, at the client."""
    kills: int
    kills_exact: int
    """Of these, those after which the audio is that of an undisturbed utterance."""
    kills_exact_by_stage: Mapping[str, int]
    """As many of each stage are killed."""


def page(report: Report) -> str:
    """Returns the report as Markdown."""
    figures = {f"first audio from the {name}": each for name, each in report.ttfa.items()} | {"cancel": report.cancel}
    rows = [(name, *(f"{1000 * at:.1f}" for at in (each.p50, each.p95, each.max))) for name, each in figures.items()]
    exact = report.kills_exact_by_stage
    killed = [(stage, report.kills // len(exact), count) for stage, count in exact.items()]
    return f"""# Text that streams in

The bundled voice on {report.machine.cores} cores of {report.machine.cpu}: the pipeline of `syrinx up` with two
replicas of each stage, and the client of `examples/agents`; measured by `{report.command}` at
{report.created}. Texts, cuts and times are drawn from seed {report.seed}.

**Cuts.** Of {report.cuts} ways in which texts arrived, in pieces of 1 to 12 characters with pauses or as the tokens of
an LLM, {report.cuts_equal} gave the audio of the whole text, bit for bit.

**Times at the client.** The LLM writes a token every {1000 * TOKEN_SECONDS:g} ms at the median. A word has
ended with the character after it, which the next token has. From there on the first audio takes
{report.ttfa_over_whole:.2f} times as long as with the whole text. A cancellation ends when the gateway has
confirmed it, after the last audio, and the connection is closed.

{markdown(("ms", "p50", "p95", "max"), rows)}

**kill -9** of the replica that serves an utterance, while its text arrives. If it was the gateway, the client connects
again with the request's id.

{markdown(("killed", "times", "same audio"), killed)}
"""
