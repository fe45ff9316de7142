"""`python -m hop`: measures the hops between stages and writes results/hop.json and results/hop.md."""

import argparse
from pathlib import Path

from hop import sides
from hop.measure import CASES, measure
from hop.report import report, row, table
from syrinx_operator.commands.bench.report import save
from syrinx_stages.connector.server import redis_version

RESULTS = Path(__file__).parents[1] / "results"


def main() -> None:
    """Measures every case with the Syrinx connector and with the naive loop."""
    parser = argparse.ArgumentParser(prog="python -m hop", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="duration of each case and loop (default: 4)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="output directory (default: bench/results)")
    arguments = parser.parse_args()
    rows = []
    for case in CASES:
        hop = measure(case, sides.write, sides.read, arguments.seconds)
        rows.append(row(case, hop, measure(case, sides.write_naive, sides.read_naive, arguments.seconds)))
        print(f"{case.kind} x {case.streams}: p50 {hop.p50_ms} ms, p99 {hop.p99_ms} ms", flush=True)
    result = report(rows, redis_version())
    save(result, arguments.results / "hop.json")
    (arguments.results / "hop.md").write_text(table(result), encoding="utf-8")
    print(table(result))


if __name__ == "__main__":
    main()
