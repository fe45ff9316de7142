"""`python -m tests.simulation.model`: checks the protocol and the planted mistakes. Exits with 1 if one surprises."""

from __future__ import annotations

import argparse
import sys
import time

from .check import Result, combined, search
from .model import Bounds, Faults
from .planted import PLANTED
from .store import Protocol


def main() -> int:
    """Prints a line for each search, and the trace of each violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.model", description=__doc__)
    parser.add_argument("--faults", type=int, default=2, help="how many kinds of faults happen in one run (default: 2)")
    parser.add_argument("--traces", action="store_true", help="print the traces of the planted mistakes")
    arguments = parser.parse_args()
    failed = False
    for bounds in combined(arguments.faults):
        result = _report(f"the protocol with {_described(bounds.faults)}", Protocol(), bounds, traces=True)
        failed |= result.violated is not None
    for planted in PLANTED:
        result = _report(planted.mistake, planted.protocol, planted.bounds, arguments.traces)
        failed |= result.violated is None
    return int(failed)


def _report(title: str, protocol: Protocol, bounds: Bounds, traces: bool) -> Result:
    started = time.monotonic()
    result = search(protocol, bounds)
    outcome = f"violated after {len(result.trace)} steps: {result.violated}" if result.violated else "holds"
    print(f"{title}: {result.states} states, depth {result.depth}, {time.monotonic() - started:.1f} s: {outcome}")
    if traces:
        for step, _ in result.trace:
            print("   ", *(part for part in (step.action, step.owner, step.detail) if part != ""))
    sys.stdout.flush()
    return result


def _described(faults: Faults) -> str:
    return ", ".join(f"{count} {name}" for name, count in faults._asdict().items() if count)


if __name__ == "__main__":
    sys.exit(main())
