"""`python -m simulator scale | calibrate`."""

from __future__ import annotations

import argparse
from pathlib import Path

import simulator.calibrate as calibrate
import simulator.scale as scale


def main() -> None:
    """Runs one of the simulator's commands."""
    parser = argparse.ArgumentParser(prog="python -m simulator", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    sized = commands.add_parser("scale", help="how fast it is, and how large a service it takes")
    sized.add_argument("--json", type=Path, help="write the measurements there")
    fitted = commands.add_parser("calibrate", help="compare it with what was measured on real machines")
    fitted.add_argument("--fit", action="store_true", help="search for the costs anew; prints them for costs.py")
    given = parser.parse_args()
    if given.command == "scale":
        scale.main(given.json)
    else:
        calibrate.main(given.fit)


main()
