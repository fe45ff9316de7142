"""`python -m simulator scale | calibrate | engines | tuning`."""

import argparse
from pathlib import Path

import simulator.calibrate as calibrate
import simulator.scale as scale
import simulator.tuning as tuning
from simulator.cases import RESULTS


def main() -> None:
    """Runs one of the simulator's commands."""
    parser = argparse.ArgumentParser(prog="python -m simulator", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    sized = commands.add_parser("scale", help="measure the simulator's speed")
    sized.add_argument("--json", type=Path, help="write the measurements to this file")
    fitted = commands.add_parser("calibrate", help="compare the simulator with measurements of real machines")
    fitted.add_argument("--fit", action="store_true", help="fit the costs again and print them for costs.py")
    commands.add_parser("engines", help="measure the engines of this machine for calibrate")
    tuned = commands.add_parser("tuning", help="measure the tuner: regret, harm and A/A tests (15 minutes)")
    tuned.add_argument("--runs", type=int, default=1000, help="number of A/A runs")
    given = parser.parse_args()
    if given.command == "scale":
        scale.main(given.json)
    elif given.command == "calibrate":
        calibrate.main(given.fit)
    elif given.command == "tuning":
        tuning.main(given.runs)
    else:
        # Only this command needs torch.
        from simulator import engines

        engines.main(RESULTS / "engines_cpu.json")


if __name__ == "__main__":
    main()
