"""`python -m simulator tuning | trials | shifts | inversion | replicas | calibration`."""

import argparse
from collections.abc import Callable

from simulator import calibration, tuning


def main() -> None:
    """Runs one of the simulator's commands."""
    parser = argparse.ArgumentParser(prog="python -m simulator", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    days = commands.add_parser("tuning", help="measure the tuner and baselines on days of drawn workloads")
    days.add_argument("--compared-seeds", type=int, default=1, help="number of runs with the baselines")
    trials = commands.add_parser("trials", help="measure the errors of trials")
    trials.add_argument("--runs", type=int, default=200, help="number of A/A trials")
    shifts = commands.add_parser("shifts", help="measure how soon changes of the load are noticed")
    shifts.add_argument("--seeds", type=int, default=10, help="number of runs of each change")
    shifts.add_argument("--stationary", type=int, default=8, help="number of loads that do not change")
    inverted = commands.add_parser("inversion", help="measure what rows of a codec are worth to two kinds of voices")
    inverted.add_argument("--seeds", type=int, default=3, help="number of runs")
    scaled = commands.add_parser("replicas", help="measure the numbers of replicas that the tuner chooses")
    for command, workloads in ((days, 15), (scaled, 8)):
        command.add_argument("--workloads", type=int, default=workloads, help="number of drawn workloads")
        command.add_argument("--seeds", type=int, default=3, help="number of runs of each, with other requests")
    compared = commands.add_parser("calibration", help="compare forecasts of the tuner's model with outcomes")
    compared.add_argument("--workloads", type=int, default=20, help="number of drawn workloads in simulated time")
    compared.add_argument("--loads", type=int, default=4, help="number of drawn loads of this machine")
    compared.add_argument("--model", help="directory written by gpu.checkpoint: on the GPU, not the bundled voice")
    for command in (days, trials, shifts, inverted, scaled, compared):
        command.add_argument("--first-seed", type=int, default=1000, help="seed of the first of each")
        command.add_argument("--jobs", type=int, default=2, help="number of processes")
    given = vars(parser.parse_args())
    measure: dict[str, Callable[..., None]] = {
        "tuning": tuning.measure_days,
        "trials": tuning.measure_trials,
        "shifts": tuning.measure_shifts,
        "inversion": tuning.measure_inversion,
        "replicas": tuning.measure_replicas,
        "calibration": calibration.main,
    }
    measure[given.pop("command")](**given)


if __name__ == "__main__":
    main()
