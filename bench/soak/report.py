"""The report of a run, as JSON and as Markdown."""

import datetime
import os
from collections import defaultdict
from collections.abc import Sequence

from msgspec import Struct, structs

from soak.faults import count
from soak.load import Outcome, Verdict
from soak.measure import Takeover, gateway_died, longest_stall, quantile, takeovers
from soak.pipeline import REPLICAS
from soak.run import Plan, Result
from syrinx_operator.commands.bench.report import markdown
from syrinx_operator.local.machine import Machine, describe, revision

TAKEOVER_TARGET = 2.5
STALL_TARGET = 4.0
"""Seconds, on idle cores."""


class Times(Struct, frozen=True):
    """A distribution, in seconds."""

    count: int
    p50: float
    p95: float
    max: float


class Report(Struct, frozen=True):
    """The result of a run. Times in seconds."""

    created: str
    """UTC, ISO 8601."""
    revision: str | None
    machine: Machine
    load_average: float
    """Runnable processes of the machine, the pipeline's included, in the last 5 minutes."""
    redis: str
    """The server's version."""
    plan: Plan
    requests: int
    """Requests that were admitted and whose gateway lived."""
    lost: int
    """Of them, those that ended before they were complete."""
    wrong: int
    """Of all requests, those with audio that differs from the fault-free run."""
    gateway_killed: int
    """Requests that ended because their gateway died."""
    refused: int
    """Refusals; the client retried."""
    takeover_p95_s: float
    longest_stall_s: float
    first_audio: Times
    """From the request to its first audio, of live streams."""
    takeovers: dict[str, Times]
    """By cause."""
    faults: dict[str, int]
    """Number of faults by target and kind."""
    failures: list[str]
    """A description of each lost or wrong request."""


def report(plan: Plan, result: Result, redis: str) -> Report:
    """Returns the report of a run on this machine that ends now."""
    by_verdict = defaultdict[Verdict, list[Outcome]](list)
    gateway_killed = 0
    for outcome in result.outcomes:
        if gateway_died(outcome, result.injected):
            gateway_killed += 1
        else:
            by_verdict[outcome.verdict].append(outcome)
    failed = by_verdict[Verdict.LOST] + by_verdict[Verdict.MISMATCH]
    taken = takeovers(result.outcomes, result.injected, result.utterances)
    live = [outcome.arrivals[0].at for outcome in result.outcomes if outcome.live and outcome.arrivals]
    return Report(
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        revision=revision(),
        machine=describe(),
        load_average=round(os.getloadavg()[1], 1),
        redis=redis,
        plan=plan,
        requests=len(by_verdict[Verdict.COMPLETE]) + len(failed),
        lost=len(by_verdict[Verdict.LOST]),
        wrong=len(by_verdict[Verdict.MISMATCH]),
        gateway_killed=gateway_killed,
        refused=len(by_verdict[Verdict.REFUSED]),
        takeover_p95_s=round(quantile([each.seconds for each in taken], 0.95), 3),
        longest_stall_s=round(longest_stall(result.outcomes), 3),
        first_audio=_times(live),
        takeovers=_by_cause(taken),
        faults=count(
            [each.fault for each in result.injected], {each.fault.target: each.group for each in result.injected}
        ),
        failures=[_describe(outcome, result) for outcome in sorted(failed, key=lambda outcome: outcome.start)],
    )


def page(result: Report) -> str:
    """Returns the report as Markdown."""
    machine, plan = result.machine, result.plan
    intro = (
        f"{plan.minutes:g} minutes, a fault every {plan.interval:g} s, seed {plan.seed}: "
        f"{REPLICAS} replicas of each stage, Redis {result.redis} ({plan.layout}).\n"
        f"{plan.listeners} live listeners and {plan.downloads} client that downloads files; "
        f"{machine.cores} cores of {machine.cpu}, Python {machine.python}, load average {result.load_average}; "
        f"{result.created}."
    )
    meaning = (
        "All audio is compared byte for byte with that of the same requests before the faults. A request is lost if it "
        "ends before it is\ncomplete although its gateway was not killed. A takeover lasts from the fault to the first "
        "audio of a live stream beyond what existed\nat the fault. No fault hits the last ready replica of a stage."
    )
    totals = [
        ("requests", result.requests, ""),
        ("lost", result.lost, "0"),
        ("wrong", result.wrong, "0"),
        ("gateway killed", result.gateway_killed, ""),
        ("refused and retried", result.refused, ""),
        ("takeover p95, s", result.takeover_p95_s, f"≤ {TAKEOVER_TARGET}"),
        ("longest stall, s", result.longest_stall_s, f"≤ {STALL_TARGET}"),
        ("first audio p50, s", result.first_audio.p50, ""),
        ("first audio p95, s", result.first_audio.p95, ""),
    ]
    causes = sorted({*result.faults, *result.takeovers})
    rows = [(cause, result.faults.get(cause, 0), *_cells(result.takeovers.get(cause))) for cause in causes]
    return "\n".join(
        [
            *("# Soak", "", intro, "", meaning, ""),
            *(markdown(("", "result", "target"), totals), ""),
            markdown(("fault", "number", "streams", "takeover p50 s", "p95 s", "max s"), rows),
            *(["", "## Failures", "", *(f"- {failure}" for failure in result.failures)] if result.failures else []),
            "",
        ]
    )


def _cells(times: Times | None) -> Sequence[object]:
    return structs.astuple(times) if times else (0, "", "", "")


def _by_cause(found: Sequence[Takeover]) -> dict[str, Times]:
    seconds = defaultdict[str, list[float]](list)
    for each in found:
        seconds[each.cause].append(each.seconds)
    return {cause: _times(values) for cause, values in sorted(seconds.items())}


def _times(values: Sequence[float]) -> Times:
    return Times(len(values), *(round(quantile(values, share), 3) for share in (0.5, 0.95, 1.0)))


def _describe(outcome: Outcome, result: Result) -> str:
    """Returns what happened to a request, with the faults from 10 s before it to its end."""
    seconds = outcome.end - outcome.start
    recent = [
        f"{each.fault} at {each.at - outcome.start:+.1f} s"
        for each in result.injected
        if outcome.start - 10 <= each.at <= outcome.end
    ]
    name = outcome.request_id or "a request without a response"
    return (
        f"{outcome.verdict}: {name} ({'live' if outcome.live else 'file'}) at {outcome.gateway}, "
        f"after {seconds:.1f} s: {outcome.message}; faults: {', '.join(recent) or 'none'}"
    )
