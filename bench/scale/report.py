"""The results as a file and as a table. Of several runs, the worst counts."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from scale.load import Run
from syrinx_operator.commands.bench.report import markdown
from syrinx_operator.local.machine import Machine


class Report(Struct, frozen=True, kw_only=True):
    """The results."""

    created: str
    """UTC, ISO 8601."""
    revision: str | None
    machine: Machine
    redis: str
    """The server's version."""
    streams: int
    """Live streams in `runs`."""
    redis_us_per_stream_second: float
    """Redis's processor time, the worst of `runs`."""
    redis_us_per_new_stream_second: float
    """The same of `new_runs`."""
    hop_p99_ms: float
    """An entry's way from talker to codec, the worst of `new_runs`: such streams wait for it."""
    runs: list[Run]
    """Streams with a lead over playback."""
    new_runs: list[Run]
    """Streams that have just begun: entries of one frame of codes and four of audio."""
    takeover_scan_us: float
    """Time in Redis of a scan beside the most pending claims: a median, the worst run."""
    takeover_scans_us: dict[int, list[float]]
    """Each run, by pending claims."""
    feed_entry_us: dict[int, float]
    """Redis's processor time of an entry, by the number of inboxes that share the streams."""
    capacity_report_us: dict[int, float]
    """Redis's processor time of a capacity report, by replicas of a cell."""
    submission_us: dict[int, float]
    """The same of a submission, by requests that wait."""
    refusal_us: dict[int, float]
    """The same of a submission that is refused, by requests that wait: of 50 clients in turn."""
    playback_report_us: dict[int, float]
    """The same of a playback report of a gateway, by talkers of a cell."""
    scrape_ms: float
    """The longest scrape of a gateway."""
    scrape_holds_loop_ms: float
    """The longest time that a scrape held the gateway's event loop."""
    scrape_bytes: int


def table(result: Report) -> str:
    """Returns the report as Markdown tables."""
    machine = result.machine
    about = f"{machine.cores} cores of {machine.cpu}, Python {machine.python}, Redis {result.redis}; {result.created}"
    streams = f"{result.streams} live streams"
    costs, new_costs = ([run.redis_us_per_stream_second for run in runs] for runs in (result.runs, result.new_runs))
    rows = [
        (f"Redis, {streams} with a lead, µs a stream-second", "≤ 70", _each(costs)),
        (f"Redis, {streams} that have just begun, µs a stream-second", "", _each(new_costs)),
        (f"talker to codec, {streams} that have just begun, p99 ms", "", _each(r.hop_p99_ms for r in result.new_runs)),
        *(
            (f"takeover scan, {count:,} claims pending, µs", "≤ 50", _each(found))
            for count, found in result.takeover_scans_us.items()
        ),
        *(
            (f"all inboxes, {readers} readers, µs an entry", "", f"{cost}")
            for readers, cost in result.feed_entry_us.items()
        ),
        *_by(result.capacity_report_us, "capacity report, {:,} replicas, µs"),
        *_by(result.submission_us, "submission, {:,} requests wait, µs"),
        *_by(result.refusal_us, "refused submission, {:,} requests wait, µs"),
        *_by(result.playback_report_us, "playback report, {:,} talkers read it, µs"),
        (f"scrape of a gateway ({result.scrape_bytes / 1000:.0f} KB), ms", "≤ 20", f"{result.scrape_ms}"),
        ("the same: event loop held, ms", "", f"{result.scrape_holds_loop_ms}"),
    ]
    what = (
        "What grows with a pipeline. Times of Redis are processor time of a server of its own, with the real connector "
        "and scripts;\nthat of a scan is the median time of the script. A clock replaces the engines: a frame of codes "
        "every 80 ms. Entries have up to 12 frames of codes and 12 of audio if a stream has a lead over playback, "
        "and one of codes and four of audio if it has just begun;\nthere is a playback report for each entry of audio."
    )
    return "\n".join(["# Scale", "", what, "", about + ".", "", markdown(("", "target", "each run"), rows), ""])


def _by(costs: Mapping[int, float], text: str) -> list[tuple[str, str, str]]:
    return [(text.format(count), "", f"{cost}") for count, cost in costs.items()]


def _each(values: Iterable[float]) -> str:
    return ", ".join(f"{value}" for value in sorted(values))
