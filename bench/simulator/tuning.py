"""Measures the tuner and writes bench/results/tuning.{json,md,png}: fresh workloads, baselines, errors of trials."""

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from simulator import baselines, replicas, trials
from simulator.auto import policy, tune
from simulator.fresh import DAY_SECONDS, draw
from simulator.replicas import ReplicasReport
from simulator.rows import RESULTS, TUNER, Row, baselines_of, measured
from simulator.scenario import Scenario
from simulator.trials import Errors
from simulator.world import World, run_fixed, well
from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.tuner.policy import Policy

UNTOUCHED = "untouched"
_ROUNDS = ((60.0, 8), (300.0, 2))
"""(simulated seconds of each phase, settings kept) of each elimination round. The first one has every other number of
rows, and the next one the neighbors of the best."""
_BACK = 0.95
"""Ratio of the best setting's well-served requests from which a service is back after a shift."""
_BACK_SECONDS = 600.0


class Score(Struct, frozen=True, kw_only=True):
    """How a method served one workload for a day."""

    well: float
    """Ratio of requests served well."""
    regret: float
    """Integrated over the day: what is missing to the best fixed setting, as a ratio of that."""
    hurt: float
    """Ratio of all requests that changes made bad, against the incumbent's twin."""
    worse_than_untouched: float
    """Ratio of requests."""
    back_minutes: float | None = None
    """Minutes after a shift until the service is within 5 % of the best setting for the new load, ten minutes long and
    on average up to the end; None without a shift, infinite is written as the rest of the day."""


class FreshRow(Row[Score], frozen=True, kw_only=True):
    """One workload with one seed of its requests."""

    replicas: int
    shift: bool
    start: Setting
    best: Setting
    """The best fixed setting in hindsight."""
    best_well: float


class Summary(Struct, frozen=True, kw_only=True):
    """A method over all workloads and seeds. Ratios are fractions."""

    workloads: int
    seeds: int
    integrated_regret_mean: float
    integrated_regret_worst: float
    integrated_regret_by_seed: tuple[float, ...]
    """Means over the workloads."""
    gross_hurt: float
    """Mean."""
    gross_hurt_worst: float
    worse_than_untouched: float
    """Of the workload where it is worst."""
    back_minutes: tuple[float, ...] = ()
    """Of each workload with a shift, and each seed."""


class Fresh(Summary, frozen=True, kw_only=True):
    """The tuner, with all rows."""

    first_seed: int
    rows: tuple[FreshRow, ...]


class Report(Struct, frozen=True, kw_only=True):
    """All measurements."""

    command: str
    fresh: Fresh
    baselines: Mapping[str, Summary]
    aa: Errors
    """Changes that change nothing, under bursty traffic."""
    skewed: Errors
    """A change that is usually better by 5 points, and worse by 60 in a tenth of the pairs."""
    skewed_promoted: float
    replicas: ReplicasReport | None = None


# One workload -----------------------------------------------------------------------------------------------------


def measure(workload: int, seed: int) -> FreshRow:
    """Runs all methods on the same requests of a workload."""
    scenario = replace(draw(workload), seed=1000 * workload + seed)
    rules = policy(scenario)
    best = best_fixed(scenario, rules)
    reference, untouched = (run_fixed(scenario, each) for each in (best, scenario.initial))
    judge = _judge(scenario, rules, well(reference), well(untouched))
    day = tune(scenario, rules)
    scores = {TUNER: judge(day.world, day.hurt), UNTOUCHED: judge(untouched, 0.0)}
    for name, baseline in baselines.BASELINES.items():
        run = baselines.run(scenario, rules, baseline)
        scores[name] = judge(run.world, run.hurt)
    return FreshRow(
        workload=workload,
        seed=seed,
        requests=len(reference.outcomes),
        replicas=scenario.talkers,
        shift=len(scenario.phases) > 1,
        start=scenario.initial,
        best=best,
        best_well=round(well(reference), 4),
        scores=scores,
    )


def best_fixed(scenario: Scenario, rules: Policy) -> Setting:
    """Returns the setting that serves most requests of the scenario well, by successive elimination."""
    ladders = rules.rows[Knob.TALKER_ROWS], rules.rows[Knob.CODEC_ROWS], rules.ramps
    grid = [
        replace(scenario.initial, talker_max_num_seqs=talker, codec_max_num_seqs=codec, chunk_ramp=ramp)
        for talker, codec, ramp in itertools.product(ladders[0][::-2], ladders[1][::-2], ladders[2])
    ]
    for seconds, kept in _ROUNDS:
        part = _shortened(scenario, seconds)
        served = {setting: well(run_fixed(part, setting)) for setting in grid}
        best = sorted(grid, key=lambda setting, served=served: -served[setting])[:kept]  # type: ignore[misc]
        grid = list(dict.fromkeys(each for setting in best for each in (setting, *_neighbors(rules, setting))))
    return max(best, key=lambda setting: well(run_fixed(_shortened(scenario, 900.0), setting)))


def _neighbors(rules: Policy, setting: Setting) -> Sequence[Setting]:
    return [each for each in baselines.neighbors(rules, setting) if each.chunk_ramp == setting.chunk_ramp]


def _shortened(scenario: Scenario, seconds: float) -> Scenario:
    """Returns the scenario with phases of this length."""
    phases = (phase._replace(until=seconds * (at + 1)) for at, phase in enumerate(scenario.phases))
    return replace(scenario, phases=tuple(phases))


def _judge(scenario: Scenario, rules: Policy, best: float, untouched: float) -> Callable[[World, float], Score]:
    """Returns the function that scores a day."""
    after = None
    if len(scenario.phases) > 1:
        later = best_fixed(replace(scenario, phases=scenario.phases[1:]), rules)
        after = run_fixed(scenario, later)

    def judge(world: World, hurt: float) -> Score:
        served = well(world)
        return Score(
            well=round(served, 4),
            regret=round(max(0.0, 1 - served / best), 4) if best else 0.0,
            hurt=round(hurt, 5),
            worse_than_untouched=round(max(0.0, untouched - served), 4),
            back_minutes=None if after is None else _back_minutes(world, after),
        )

    return judge


def _back_minutes(world: World, best: World) -> float:
    """Returns the minutes after the shift until a service is as good as under the best setting for the new load."""
    shift, end = world.scenario.phases[0].until, world.scenario.seconds
    edges = np.arange(shift, end + 1, 60.0)
    served, possible = (_cumulative(each, edges) for each in (world, best))
    span = int(_BACK_SECONDS / 60)
    for minute in range(len(edges) - span):
        ten = served[minute + span] - served[minute], possible[minute + span] - possible[minute]
        rest = served[-1] - served[minute], possible[-1] - possible[minute]
        if all(got >= _BACK * most for got, most in (ten, rest)):
            return float(minute)
    return float(len(edges) - 1)


def _cumulative(world: World, edges: Iterable[float]) -> Sequence[int]:
    """Returns the numbers of well-served requests before each edge."""
    limit = world.scenario.objective.seconds
    times = sorted(outcome.at for outcome in world.outcomes if outcome.is_well(limit))
    return [bisect_left(times, edge) for edge in edges]


# All of them ------------------------------------------------------------------------------------------------------


def summary(rows: Sequence[FreshRow], method: str) -> Summary:
    """Returns a method's figures over all rows."""
    scores = [row.scores[method] for row in rows]
    seeds = sorted({row.seed for row in rows})
    regrets = {seed: [row.scores[method].regret for row in rows if row.seed == seed] for seed in seeds}
    return Summary(
        workloads=len({row.workload for row in rows}),
        seeds=len(seeds),
        integrated_regret_mean=_mean([each.regret for each in scores]),
        integrated_regret_worst=max(each.regret for each in scores),
        integrated_regret_by_seed=tuple(_mean(each) for each in regrets.values()),
        gross_hurt=_mean([each.hurt for each in scores]),
        gross_hurt_worst=max(each.hurt for each in scores),
        worse_than_untouched=max(each.worse_than_untouched for each in scores),
        back_minutes=tuple(each.back_minutes for each in scores if each.back_minutes is not None),
    )


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 5)


def main(workloads: int, seeds: int, first_seed: int, runs: int, jobs: int) -> None:
    """Measures and writes the results. Workloads and A/A machines are drawn by seeds from `first_seed` on."""
    keys = list(itertools.product(range(first_seed, first_seed + workloads), range(seeds)))
    rows = []
    with ProcessPoolExecutor(jobs) as pool:
        for row in measured(pool, measure, keys, FreshRow):
            print(_line(row), flush=True)
            rows.append(row)
        rows.sort(key=lambda row: (row.workload, row.seed))
        aa = trials.no_op(pool, first_seed, runs)
        skewed = trials.skewed(pool, first_seed, 10 * runs)
    tuned = summary(rows, TUNER)
    report = Report(
        command=f"PYTHONPATH=bench:tests python -m simulator tuning --seeds {seeds} --workloads {workloads} "
        f"--first-seed {first_seed} --runs {runs}",
        fresh=Fresh(
            **msgspec.structs.asdict(tuned),
            first_seed=first_seed,
            rows=tuple(rows),
        ),
        baselines=baselines_of(rows, partial(summary, rows)),
        aa=aa,
        skewed=skewed,
        skewed_promoted=skewed.promoted,
        replicas=_recorded().replicas,
    )
    _record(report)
    plot(report, RESULTS / "tuning.png")


def scale(workloads: int, seeds: int, first_seed: int, jobs: int) -> None:
    """Measures the numbers of replicas, and adds them to the results, also before all are known."""
    for report in replicas.reports(workloads, seeds, first_seed, jobs):
        _record(replace(_recorded(), replicas=report))


def _recorded() -> Report:
    return msgspec.json.decode((RESULTS / "tuning.json").read_bytes(), type=Report)


def _record(report: Report) -> None:
    (RESULTS / "tuning.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    write_table(RESULTS / "tuning.json", RESULTS / "tuning.md")


# Tables -----------------------------------------------------------------------------------------------------------


def write_table(source: Path, target: Path) -> None:
    """Writes the JSON results as a Markdown page."""
    report = msgspec.json.decode(source.read_bytes(), type=Report)
    fresh = report.fresh
    lines = [
        "# How good the tuner is",
        "",
        f"Measured by `{report.command}`: {fresh.workloads} workloads that a generator drew, from a bad or a good "
        f"start, each for {DAY_SECONDS / 60:g} minutes of the real services in simulated time and with {fresh.seeds} "
        "seeds of its requests. A request is served well if it meets the TTFA objective and has no gap.",
        "",
        "- Regret: what the whole day misses to the best fixed setting in hindsight, which elimination finds with the "
        "same requests, as a ratio of what that serves well.",
        "- Hurt: ratio of all requests that changes and trials made bad, against a copy of the pipeline that keeps the "
        "setting then in force; net for each change, until the next one and for ten minutes at most.",
        "- Back: minutes after a shift of the load at midday until within 5 % of the best setting for the new load.",
        "- The baselines see the same counters and set all knobs each five minutes.",
        "",
        "| method | regret, mean | by seed | worst | hurt, mean | worst | worse than untouched, worst | back, median | "
        "worst |",
        "|---|---|---|---|---|---|---|---|---|",
        *(_summary_row(name, each) for name, each in {TUNER: fresh, **report.baselines}.items()),
        "",
        "## Errors of trials",
        "",
        "| change | trials | promoted | rolled back | inconclusive |",
        "|---|---|---|---|---|",
        _errors_row("changes nothing (A/A), bursty traffic", report.aa),
        _errors_row("+5 points, -60 in a tenth of the pairs", report.skewed),
        "",
        "## The tuner by workload",
        "",
        "Means over the seeds, and the range in brackets. Settings are `talker.maxNumSeqs / codec.maxNumSeqs, first "
        "chunk's frames`.",
        "",
        "| workload | replicas | requests | start | untouched | best | well | tuner, well | regret | hurt | back |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *(_workload_row(list(rows)) for _, rows in itertools.groupby(fresh.rows, lambda row: row.workload)),
        "",
        "![Regret of each workload by method](tuning.png)",
        "",
        *(replicas.table(report.replicas) if report.replicas else ()),
    ]
    target.write_text("\n".join(lines))


def _summary_row(name: str, each: Summary) -> str:
    by_seed = f"{min(each.integrated_regret_by_seed):.1%} to {max(each.integrated_regret_by_seed):.1%}"
    back = f"{np.median(each.back_minutes):.0f} | {max(each.back_minutes):.0f}" if each.back_minutes else "- | -"
    return (
        f"| {name} | {each.integrated_regret_mean:.1%} | {by_seed} | {each.integrated_regret_worst:.1%} | "
        f"{each.gross_hurt:.2%} | {each.gross_hurt_worst:.2%} | {each.worse_than_untouched:.1%} | {back} |"
    )


def _errors_row(name: str, each: Errors) -> str:
    return f"| {name} | {each.runs} | {each.promoted:.1%} | {each.rolled_back:.1%} | {each.inconclusive:.1%} |"


def _workload_row(rows: Sequence[FreshRow]) -> str:
    tuner, untouched = ([row.scores[name] for row in rows] for name in (TUNER, UNTOUCHED))
    backs = [f"{each.back_minutes:.0f}" for each in tuner if each.back_minutes is not None]
    cells = [
        str(rows[0].workload),
        str(rows[0].replicas),
        f"{rows[0].requests:,}",
        _short(rows[0].start),
        _range([each.well for each in untouched]),
        " or ".join(dict.fromkeys(_short(row.best) for row in rows)),
        _range([row.best_well for row in rows]),
        _range([each.well for each in tuner]),
        _range([each.regret for each in tuner]),
        f"{max(each.hurt for each in tuner):.2%}",
        ", ".join(backs) or "-",
    ]
    return f"| {' | '.join(cells)} |"


def _range(values: Sequence[float]) -> str:
    mean, least, most = sum(values) / len(values), min(values), max(values)
    return f"{mean:.1%}" if most - least < 0.001 else f"{mean:.1%} ({least:.1%} to {most:.1%})"


def _short(setting: Setting) -> str:
    return f"{setting.talker_max_num_seqs} / {setting.codec_max_num_seqs}, {setting.chunk_ramp[0]}"


def _line(row: FreshRow) -> str:
    scores = ", ".join(f"{name} {each.regret:.1%}" for name, each in row.scores.items())
    return f"workload {row.workload}, seed {row.seed}: best {row.best_well:.1%}; regret {scores}"


def plot(report: Report, target: Path) -> None:
    """Plots the regret and the hurt of each workload and seed, by method."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = report.fresh.rows
    methods = list(rows[0].scores)
    figure, both = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained", sharey=True)
    for axes, name, title in zip(both, ("regret", "hurt"), ("regret", "requests that changes made bad"), strict=True):
        for at, method in enumerate(methods):
            values = [100 * getattr(row.scores[method], name) for row in rows]
            axes.plot(values, [at] * len(values), "o", alpha=0.35, color="tab:blue")
            axes.plot([sum(values) / len(values)], [at], "|", markersize=24, color="black")
        axes.set_xscale("symlog", linthresh=1.0)
        axes.set_xlim(left=0.0)
        axes.set_xlabel(f"{title} (%); line: mean")
    both[0].set_yticks(range(len(methods)), methods)
    both[0].invert_yaxis()
    figure.savefig(target, dpi=120)
    pyplot.close(figure)
