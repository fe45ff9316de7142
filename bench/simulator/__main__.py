"""`python -m simulator scale | calibrate | engines | tuning | replicas`."""

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
    tuned = commands.add_parser("tuning", help="measure the tuner beside baselines, and the errors of its trials")
    tuned.add_argument("--workloads", type=int, default=15, help="number of drawn workloads")
    tuned.add_argument("--seeds", type=int, default=3, help="number of runs of each, with other requests")
    tuned.add_argument("--first-seed", type=int, default=1000, help="seed of the first workload")
    tuned.add_argument("--runs", type=int, default=1000, help="number of A/A trials")
    tuned.add_argument("--jobs", type=int, default=2, help="number of processes")
    scaled = commands.add_parser("replicas", help="measure the numbers of replicas that the tuner chooses")
    scaled.add_argument("--workloads", type=int, default=8, help="number of drawn workloads")
    scaled.add_argument("--seeds", type=int, default=3, help="number of drawn days of each")
    scaled.add_argument("--first-seed", type=int, default=1000, help="seed of the first workload")
    scaled.add_argument("--jobs", type=int, default=2, help="number of processes")
    given = parser.parse_args()
    if given.command == "scale":
        scale.main(given.json)
    elif given.command == "calibrate":
        calibrate.main(given.fit)
    elif given.command == "tuning":
        tuning.main(given.workloads, given.seeds, given.first_seed, given.runs, given.jobs)
    elif given.command == "replicas":
        tuning.scale(given.workloads, given.seeds, given.first_seed, given.jobs)
    else:
        # Only this command needs torch.
        from simulator import engines

        engines.main(RESULTS / "engines_cpu.json")


if __name__ == "__main__":
    main()
