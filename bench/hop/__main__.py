"""`python -m hop`: measures the hops between stages and writes results/hop.json and results/hop.md."""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

import msgspec

from hop import naive, sides
from hop.cases import CASES, RESULTS
from hop.measure import measure
from hop.report import report, row, table
from syrinx_stages.connector.server import find_redis_server


def main() -> None:
    """Measures every case, ours and the naive loop one after the other."""
    parser = argparse.ArgumentParser(prog="python -m hop", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="for each case and each loop (4)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder to write to (bench/results)")
    given = parser.parse_args()
    rows = []
    for case in CASES:
        ours = measure(case, sides.write, sides.read, given.seconds)
        rows.append(row(case, ours, measure(case, naive.write, naive.read, given.seconds)))
        print(f"{case.kind} x {case.streams}: p50 {ours.p50_ms} ms, p99 {ours.p99_ms} ms", flush=True)
    found = report(rows, _redis_version())
    given.results.mkdir(parents=True, exist_ok=True)
    (given.results / "hop.json").write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    (given.results / "hop.md").write_text(table(found), encoding="utf-8")
    print(table(found))


def _redis_version() -> str:
    told = subprocess.run([find_redis_server(), "--version"], capture_output=True, text=True, check=True).stdout
    return told.split("v=")[1].split()[0]


if __name__ == "__main__":
    main()
