"""Command line: runs many seeds, or replays one.

PYTHONPATH=tests python -m support.simulation --seeds 10000 --json bench/results/simulation.json
PYTHONPATH=tests python -m support.simulation --seed 42
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.simulation.planted import BUGS
from support.simulation.runner import Outcome, find_planted, outcomes
from support.simulation.scenario import run

SHOWN = 10
"""Failing seeds that are printed."""


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status: 0 if nothing was wrong and every planted bug was found."""
    parser = argparse.ArgumentParser(prog="python -m support.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this seed, and print its faults and its history")
    parser.add_argument("--seeds", type=int, default=500, help="run the seeds from 0 to this number")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes to use")
    parser.add_argument("--bug", choices=[bug.name for bug in BUGS], help="replay with a planted bug")
    parser.add_argument("--json", type=Path, help="write the results to this file, and find the planted bugs")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return replay(options.seed, options.bug)
    return run_all(options.seeds, options.jobs, options.json)


def replay(seed: int, bug_name: str | None) -> int:
    """Runs one seed and prints everything about it."""
    bug = next((bug for bug in BUGS if bug.name == bug_name), None)
    if bug is not None:
        with bug.plant():
            world = run(seed, bug.faults, verbose=True)
    else:
        world = run(seed, verbose=True)
    for client in world.clients:
        got = "departed" if client.departed else "cut off" if client.cut_off else f"status {client.status}"
        print(f"client {client.wish.number} at {client.wish.at:.3f} s: {client.wish}, {got}, {client.request_id[:8]}")
    for at, text in world.history.events:
        print(f"{at:9.4f} {text}")
    for violation in world.violations:
        print(f"VIOLATION {violation}")
    return 1 if world.violations else 0


def run_all(seeds: int, jobs: int, json_path: Path | None) -> int:
    """Runs seeds, prints those that fail, and writes the results."""
    started = time.monotonic()
    results = list(outcomes(range(seeds), jobs))
    failed = sorted((result for result in results if result.violations), key=lambda result: result.seed)
    for result in failed[:SHOWN]:
        print(f"seed {result.seed}: {'; '.join(result.violations)}")
    if failed:
        print(f"replay: PYTHONPATH=tests {Path(sys.executable).name} -m support.simulation --seed {failed[0].seed}")
    seconds = time.monotonic() - started
    print(f"{seeds} seeds in {seconds:.0f} s: {len(failed)} violate the protocol")
    if json_path is None:
        return 1 if failed else 0
    planted = [{"name": name, "found_in": found_in} for name, found_in in find_planted(jobs)]
    summary = {**summarize(results, seconds, jobs), "planted": planted}
    json_path.write_text(json.dumps(summary, indent=2) + "\n")
    for each in planted:
        print(f"{each['name']}: found in {each['found_in']} seeds")
    return 1 if failed or any(each["found_in"] is None for each in planted) else 0


def summarize(results: Sequence[Outcome], seconds: float, jobs: int) -> dict[str, Any]:
    """Returns the numbers of a run."""
    return {
        "seeds": len(results),
        "violations": sum(bool(result.violations) for result in results),
        "requests": sum(result.requests for result in results),
        "served": sum(result.served for result in results),
        "seconds": round(seconds, 1),
        "jobs": jobs,
    }


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
