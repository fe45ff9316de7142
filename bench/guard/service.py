"""`python -m guard.service`: adds what the checks cost a service to the results of `python -m guard`.

Run it in the project's root with PYTHONPATH=bench:tests after several pairs of runs on one GPU, the one right after the
other: `python -m gpu.service --only closed --concurrency 64 --checks on --out DIRECTORY --name on-1`, then
with `--checks off` and `off-1`, and so on.
"""

import argparse
from pathlib import Path

from msgspec import structs

from gpu.results import ServiceRun, load
from guard.report import RESULTS, Made, Report, Service, write
from syrinx_operator.commands.bench.report import load as load_report

CLIENTS = 64


def audio_per_second(run: ServiceRun) -> float:
    """Returns the seconds of audio that the clients got in a second."""
    (point,) = (each for each in run.points if each.load == "closed" and each.amount == CLIENTS)
    return round(point.stats.audio_seconds_per_second, 1)


def main() -> None:
    """Compares the runs."""
    parser = argparse.ArgumentParser(prog="python -m guard.service", description=__doc__)
    parser.add_argument("runs", type=Path, help="directory with on-*_service.json and off-*_service.json")
    parser.add_argument("--results", type=Path, default=RESULTS, help="their directory (default: bench/results)")
    arguments = parser.parse_args()
    on, off = ([load(each) for each in sorted(arguments.runs.glob(f"{name}-*_service.json"))] for name in ("on", "off"))
    service = Service(
        gpu=on[0].gpu or "a CPU",
        model=on[0].model,
        with_checks=list(map(audio_per_second, on)),
        without=list(map(audio_per_second, off)),
    )
    cost = 1 - sum(service.with_checks) / sum(service.without)
    report = load_report(arguments.results / "guard.json", Report)
    made = {**report.made, "service": Made.now("guard.service")}
    write(structs.replace(report, cost_at_64=round(cost, 4), service=service, made=made), arguments.results)


if __name__ == "__main__":
    main()
