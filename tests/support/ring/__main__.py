"""`python -m support.ring`: the commands behind `make test`, `make test-all`, `make stress` and others."""

from __future__ import annotations

import argparse
import sys

from support.ring.record import origin, save_stress, save_suites
from support.ring.run import run_all
from support.ring.stress import stress
from support.ring.suites import Ring, named, of


def main() -> int:
    """Runs one command. Returns 1 if a test failed."""
    parser = argparse.ArgumentParser(prog="python -m support.ring", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run", help="run suites; `test`: those of `make test`")
    one.add_argument("suites", nargs="+")
    night = commands.add_parser("night", help="run suites (default: all without special hardware), and record them")
    night.add_argument("suites", nargs="*")
    load = commands.add_parser("stress", help="run a suite several times beside busy loops, and record it")
    load.add_argument("suite")
    load.add_argument("--runs", type=int, required=True)
    load.add_argument("--load", type=int, required=True)
    arguments = parser.parse_args()
    try:
        return {"run": _run, "night": _night, "stress": _stress}[arguments.command](arguments)
    except ValueError as error:
        parser.error(str(error))


def _run(arguments: argparse.Namespace) -> int:
    return run_all(named(arguments.suites))


def _night(arguments: argparse.Namespace) -> int:
    start = origin()
    suites = named(arguments.suites) if arguments.suites else of(Ring.TEST, Ring.NIGHT)
    return run_all(suites, record=lambda outcomes: save_suites(outcomes, start))


def _stress(arguments: argparse.Namespace) -> int:
    suites, start = named([arguments.suite]), origin()
    found = stress(suites, arguments.runs, arguments.load)
    save_stress({"suite": arguments.suite, "load": arguments.load, "runs": arguments.runs, **found, **start})
    return int(bool(found["failures"]))


if __name__ == "__main__":
    sys.exit(main())
