"""The results as a file and as a table."""

import datetime

from msgspec import Struct

from hop.measure import Case, Hop
from syrinx_operator.commands.bench.report import markdown
from syrinx_operator.local.machine import Machine, describe, revision

COLUMNS = (
    *("hop", "streams", "p50 ms", "p99 ms", "max ms", "redis-py: p50 ms", "p99 ms"),
    *("CPU ms of 1,000 entries: writer", "reader", "Redis", "redis-py: writer", "reader", "Redis"),
)
TARGETS = "Targets: p50 at most 0.5 ms for one stream, p99 at most 2 ms for 64 streams written in one step (codes)."


class Row(Struct, frozen=True):
    """The results of one case with the connections of Syrinx and with those of redis-py, in the same run."""

    case: Case
    syrinx: Hop
    redis_py: Hop


class Report(Struct, frozen=True):
    """The results of a run."""

    created: str
    """UTC, ISO 8601."""
    revision: str | None
    machine: Machine
    redis: str
    """The server's version."""
    rows: list[Row]


def report(rows: list[Row], redis: str) -> Report:
    """Returns the report of a run on this machine that ends now."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Report(now, revision(), describe(), redis, rows)


def table(result: Report) -> str:
    """Returns the report as a Markdown table."""
    machine = result.machine
    about = f"{machine.cores} cores of {machine.cpu}, Python {machine.python}, Redis {result.redis}; {result.created}"
    rows = markdown(COLUMNS, map(_cells, result.rows))
    what = (
        "One hop between two processes on loopback: from `publisher.put` to the decoded entry in the reader's event "
        "loop.\nA step writes to all streams; codes: one frame of 32 bytes, audio: 4 frames of PCM, 15 KB.\nredis-py: "
        "the same connector and scripts on connections of redis-py's asyncio client, with hiredis as parser."
    )
    return "\n".join(["# The Redis hop", "", what, "", about + ".", "", rows, "", TARGETS, ""])


def _cells(item: Row) -> list[object]:
    syrinx, redis_py, case = item.syrinx, item.redis_py, item.case
    return [
        *(case.kind, case.streams, syrinx.p50_ms, syrinx.p99_ms, syrinx.max_ms),
        *(
            f"{redis_py.p50_ms} (× {redis_py.p50_ms / syrinx.p50_ms:.1f})",
            f"{redis_py.p99_ms} (× {redis_py.p99_ms / syrinx.p99_ms:.1f})",
        ),
        *(f"{1000 * hop.cpu_ms[name]:.1f}" for hop in (syrinx, redis_py) for name in ("writer", "reader", "redis")),
    ]
