"""`python -m simulator tuning | replicas | calibration`."""

import argparse

from simulator import calibration, tuning


def main() -> None:
    """Runs one of the simulator's commands."""
    parser = argparse.ArgumentParser(prog="python -m simulator", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    tuned = commands.add_parser("tuning", help="measure the tuner beside baselines, and the errors of its trials")
    tuned.add_argument("--runs", type=int, default=200, help="number of A/A trials")
    scaled = commands.add_parser("replicas", help="measure the numbers of replicas that the tuner chooses")
    for command, workloads in ((tuned, 15), (scaled, 8)):
        command.add_argument("--workloads", type=int, default=workloads, help="number of drawn workloads")
        command.add_argument("--seeds", type=int, default=3, help="number of runs of each, with other requests")
        command.add_argument("--first-seed", type=int, default=1000, help="seed of the first workload")
        command.add_argument("--jobs", type=int, default=2, help="number of processes")
    compared = commands.add_parser("calibration", help="compare forecasts of the tuner's model with outcomes")
    compared.add_argument("--workloads", type=int, default=20, help="number of drawn workloads in simulated time")
    compared.add_argument("--loads", type=int, default=4, help="number of drawn loads of this machine")
    compared.add_argument("--model", help="directory written by gpu.checkpoint: on the GPU, not the bundled voice")
    compared.add_argument("--first-seed", type=int, default=1000, help="seed of the first of each")
    compared.add_argument("--jobs", type=int, default=2, help="number of processes of the simulation")
    given = parser.parse_args()
    if given.command == "tuning":
        tuning.main(given.workloads, given.seeds, given.first_seed, given.runs, given.jobs)
    elif given.command == "calibration":
        calibration.main(given.workloads, given.first_seed, given.jobs, given.loads, given.model)
    else:
        tuning.scale(given.workloads, given.seeds, given.first_seed, given.jobs)


if __name__ == "__main__":
    main()
