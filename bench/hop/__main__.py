"""`python -m hop`: measures the hops between stages and writes results/hop.json and results/hop.md."""

import argparse
from pathlib import Path

from hop.client import read_on_redis_py, write_on_redis_py
from hop.measure import CASES, measure
from hop.report import Row, report, table
from hop.sides import read, write
from syrinx_operator.commands.bench.report import save
from syrinx_stages.connector.server import redis_version

RESULTS = Path(__file__).parents[1] / "results"


def main() -> None:
    """Measures every case with the connections of Syrinx and with those of redis-py."""
    parser = argparse.ArgumentParser(prog="python -m hop", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="duration of each case and client (default: 4)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="output directory (default: bench/results)")
    arguments = parser.parse_args()
    rows = []
    for case in CASES:
        hop = measure(case, write, read, arguments.seconds)
        rows.append(Row(case, hop, measure(case, write_on_redis_py, read_on_redis_py, arguments.seconds)))
        print(f"{case.kind} x {case.streams}: p50 {hop.p50_ms} ms, p99 {hop.p99_ms} ms", flush=True)
    result = report(rows, redis_version())
    save(result, arguments.results / "hop.json")
    (arguments.results / "hop.md").write_text(table(result), encoding="utf-8")
    print(table(result))


if __name__ == "__main__":
    main()
