"""`python -m scale`: measures what grows with the pipeline, and writes results/scale.json and results/scale.md."""

import argparse
import asyncio
import datetime
from pathlib import Path

from msgspec.structs import replace

from scale import feeds, load, replicas, scrape, takeover
from scale.report import Report, table
from syrinx_operator.commands.bench.report import save
from syrinx_operator.local.machine import describe, revision
from syrinx_stages.connector.server import redis_version

RESULTS = Path(__file__).parents[1] / "results"


def main() -> None:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser(prog="python -m scale", description=__doc__)
    parser.add_argument("--streams", type=int, default=256, help="number of live streams (default: 256)")
    parser.add_argument("--runs", type=int, default=3, help="runs of the live streams (default: 3)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="output directory (default: bench/results)")
    arguments = parser.parse_args()
    size = replace(load.Size(), streams=arguments.streams)
    runs = [load.measure(size) for _ in range(arguments.runs)]
    new_runs = [load.measure(replace(size, lead_seconds=0.0, chunk_frames=4)) for _ in range(arguments.runs)]
    scans, feed_costs = takeover.measure(), feeds.measure()
    scrape_ms, holds_loop_ms, scrape_bytes = asyncio.run(scrape.measure())
    result = Report(
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        revision=revision(),
        machine=describe(),
        redis=redis_version(),
        streams=size.streams,
        redis_us_per_stream_second=max(run.redis_us_per_stream_second for run in runs),
        redis_us_per_new_stream_second=max(run.redis_us_per_stream_second for run in new_runs),
        hop_p99_ms=max(run.hop_p99_ms for run in new_runs),
        runs=runs,
        new_runs=new_runs,
        takeover_scan_us=round(max(scans[max(scans)]), 1),
        takeover_scans_us={pending: [round(each, 1) for each in found] for pending, found in scans.items()},
        feed_entry_us={readers: round(cost, 2) for readers, cost in feed_costs.items()},
        capacity_report_us=replicas.measure_reports(),
        submission_us=replicas.measure_submissions(),
        refusal_us=replicas.measure_refusals(),
        playback_report_us=replicas.measure_playback(),
        scrape_ms=round(scrape_ms, 2),
        scrape_holds_loop_ms=round(holds_loop_ms, 2),
        scrape_bytes=scrape_bytes,
    )
    save(result, arguments.results / "scale.json")
    (arguments.results / "scale.md").write_text(table(result), encoding="utf-8")
    print(table(result))


if __name__ == "__main__":
    main()
