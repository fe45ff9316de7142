"""`python -m fleet`: measures the operator with idle pipelines; writes operator.json and operator.md."""

import argparse
import asyncio
import datetime
from pathlib import Path

from msgspec import Struct

from fleet.measure import measure
from syrinx_operator.commands.bench.report import markdown, save
from syrinx_operator.local.machine import Machine, describe, revision

RESULTS = Path(__file__).parents[1] / "results"
MAX_REQUESTS = 1.0
MAX_RSS_MB = 300.0
RELIST_SECONDS = 300.0
"""The operator's default of SYRINX_RELIST_SECONDS."""


class Report(Struct, frozen=True, kw_only=True):
    """The results of a run."""

    created: str
    """UTC, ISO 8601."""
    revision: str | None
    machine: Machine
    pipelines: int
    namespaces: int
    seconds: float
    """Duration of the measurement."""
    seconds_until_ready: float
    """Time from the operator's start until it reports all pipelines as ready, with the emulator on the same machine."""
    requests_per_minute_per_idle_pipeline: float
    """With the reads of Secrets, which recur every five minutes: their number at the start divided by that time."""
    requests: dict[str, int]
    """Requests to the API server during the measurement, by verb and kind."""
    rss_mb: float
    """Resident memory of the operator, in 1,000,000 bytes."""
    cpu_share: float
    """Processor time of the operator as a share of one core."""


def main() -> None:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser(prog="python -m fleet", description=__doc__)
    parser.add_argument("--pipelines", type=int, default=500, help="number of pipelines (default: 500)")
    parser.add_argument("--namespaces", type=int, default=10, help="number of namespaces (default: 10)")
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of the measurement (default: 60)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="output directory (default: bench/results)")
    arguments = parser.parse_args()
    ready_seconds, idle = asyncio.run(measure(arguments.pipelines, arguments.namespaces, arguments.seconds))
    others = sum(count for name, count in idle.requests.items() if name != "GET secrets")
    per_minute = 60 * (others / idle.seconds + idle.secret_reads / RELIST_SECONDS)
    result = Report(
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        revision=revision(),
        machine=describe(),
        pipelines=arguments.pipelines,
        namespaces=arguments.namespaces,
        seconds=round(idle.seconds, 1),
        seconds_until_ready=round(ready_seconds, 1),
        requests_per_minute_per_idle_pipeline=round(per_minute / arguments.pipelines, 3),
        requests=idle.requests,
        rss_mb=round(idle.rss_mb, 1),
        cpu_share=round(idle.cpu_seconds / idle.seconds, 3),
    )
    save(result, arguments.results / "operator.json")
    (arguments.results / "operator.md").write_text(table(result), encoding="utf-8")
    print(table(result))


def table(result: Report) -> str:
    """Returns the report as a Markdown table."""
    machine = result.machine
    rows = [
        (
            "requests to the API server a minute and pipeline",
            result.requests_per_minute_per_idle_pipeline,
            MAX_REQUESTS,
        ),
        ("resident memory, MB", result.rss_mb, MAX_RSS_MB),
        ("processor time, share of one core", result.cpu_share, 1.0),
    ]
    return (
        f"The operator with {result.pipelines} idle pipelines in {result.namespaces} namespaces, for "
        f"{result.seconds:g} s, against an emulated API server\n({machine.cores} cores of {machine.cpu}, "
        f"Python {machine.python}; {result.created}). It reported all as ready {result.seconds_until_ready:g} s "
        f"after its start,\nwith the emulator on the same machine.\n\n"
        + markdown(("", "measured", "at most"), [tuple(map(str, row)) for row in rows])
    )


if __name__ == "__main__":
    main()
