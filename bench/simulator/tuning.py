"""Measures the tuner for bench/results/tuning.{json,md,png}, a part by each command: fresh workloads and baselines,
errors of trials, changes of the load, a published inversion,
numbers of replicas."""

from concurrent.futures import ProcessPoolExecutor
from functools import partial

import msgspec

from simulator import days, fresh, hindsight, inversion, replicas, report, shifts, trials
from simulator.rows import TUNER, baselines_of
from syrinx_operator.resource.knobs import Setting


def measure_days(workloads: int, seeds: int, compared_seeds: int, first_seed: int, jobs: int) -> None:
    """Measures the tuner and baselines on days of workloads that are drawn by seeds from `first_seed` on."""
    with ProcessPoolExecutor(jobs) as pool:
        best = hindsight.best_settings(pool, range(first_seed, first_seed + workloads))
        found = list(days.run_all(pool, best, seeds, compared_seeds))
    rows = [_row(workload, seed, best[workload].day, each) for workload, seed, each in found]
    tuned = msgspec.structs.asdict(report.summary(rows, TUNER))
    command = _command("tuning", workloads=workloads, seeds=seeds, compared_seeds=compared_seeds, first_seed=first_seed)
    fresh_days = report.Fresh(**tuned, first_seed=first_seed, rows=tuple(rows))
    report.record(command=command, fresh=fresh_days, baselines=baselines_of(rows, partial(report.summary, rows)))
    report.plot(rows)


def _row(workload: int, seed: int, best: Setting, found: days.Days) -> report.FreshRow:
    scenario = fresh.draw(workload)
    is_shifted = len(scenario.phases) > 1
    return report.FreshRow(
        workload=workload,
        seed=seed,
        requests=sum(found.best.requests),
        replicas=scenario.talkers,
        shift=is_shifted,
        start=scenario.initial,
        best=best,
        best_well=round(found.best.ratio, 4),
        scores=days.scores(found, round(scenario.phases[0].until / 60) if is_shifted else None),
    )


def measure_trials(runs: int, first_seed: int, jobs: int) -> None:
    """Measures the errors of trials, with A/A machines that are drawn by seeds from `first_seed` on."""
    with ProcessPoolExecutor(jobs) as pool:
        aa, skewed = trials.no_op(pool, first_seed, runs), trials.skewed(pool, first_seed, 10 * runs)
    command = _command("trials", runs=runs, first_seed=first_seed)
    report.record(trials_command=command, aa=aa, skewed=skewed, skewed_promoted=skewed.promoted)


def measure_shifts(seeds: int, stationary: int, first_seed: int, jobs: int) -> None:
    """Measures how soon changes of the load are noticed, and how often by chance."""
    with ProcessPoolExecutor(jobs) as pool:
        found = shifts.noticed(pool, range(first_seed, first_seed + seeds))
        false = shifts.mistakes(pool, range(first_seed, first_seed + stationary))
    hours = stationary * shifts.HOURS
    command = _command("shifts", seeds=seeds, stationary=stationary, first_seed=first_seed)
    per_48h = round(48 * false / hours, 2)
    report.record(shifts_command=command, shifts=found, stationary_hours=hours, false_shifts_per_48h=per_48h)


def measure_inversion(seeds: int, first_seed: int, jobs: int) -> None:
    """Measures what the rows of a codec are worth to preset voices and to clones, and which ones the tuner finds."""
    command = _command("inversion", seeds=seeds, first_seed=first_seed)
    with ProcessPoolExecutor(jobs) as pool:
        report.record(inversion=inversion.measure(pool, range(first_seed, first_seed + seeds), command))


def measure_replicas(workloads: int, seeds: int, first_seed: int, jobs: int) -> None:
    """Measures the numbers of replicas."""
    command = _command("replicas", workloads=workloads, seeds=seeds, first_seed=first_seed)
    with ProcessPoolExecutor(jobs) as pool:
        report.record(replicas=replicas.measure(pool, workloads, first_seed, seeds, command))


def _command(name: str, **options: int) -> str:
    given = " ".join(f"--{option.replace('_', '-')} {value}" for option, value in options.items())
    return f"PYTHONPATH=bench:tests python -m simulator {name} {given}"
