"""`python -m scale`: measures what grows with the pipeline, and writes results/scale.json and results/scale.md."""

import argparse
import asyncio
from pathlib import Path

from msgspec.structs import replace

from scale import feeds, load, replicas, scrape, takeover
from scale.report import recorded, report, table
from syrinx_operator.commands.bench.report import save
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
    scans, costs, scraped = takeover.measure(), feeds.measure(), asyncio.run(scrape.measure())
    growth = {
        "capacity_report_us": replicas.measure_reports(),
        "submission_us": replicas.measure_submissions(),
        "refusal_us": replicas.measure_refusals(),
        "playback_report_us": replicas.measure_playback(),
    }
    result = report(
        arguments.streams, runs, new_runs, scans, costs, scraped, redis_version(), growth | recorded(arguments.results)
    )
    save(result, arguments.results / "scale.json")
    (arguments.results / "scale.md").write_text(table(result), encoding="utf-8")
    print(table(result))


if __name__ == "__main__":
    main()
