"""The recorded measurements of the tuner, and their page and plot."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from simulator import inversion, replicas, shifts
from simulator.days import UNTOUCHED, Score
from simulator.fresh import DAY_SECONDS
from simulator.inversion import Inversion
from simulator.replicas import ReplicasReport
from simulator.rows import RESULTS, TUNER, Row
from simulator.shifts import Shift
from simulator.trials import Errors
from syrinx_operator.resource.knobs import Setting

_FILE = RESULTS / "tuning.json"


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
    """Mean over the seeds, of the workload where it is worst."""
    worse_than_untouched_worst: float
    """Of the run where it is worst."""
    back_minutes: tuple[float, ...] = ()
    """Of each workload with a shift, and each seed."""


class Fresh(Summary, frozen=True, kw_only=True):
    """The tuner, with all rows."""

    first_seed: int
    rows: tuple[FreshRow, ...]


class Report(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All measurements. Each part is there once it was measured."""

    command: str = ""
    """Of what is in `fresh` and `baselines`."""
    fresh: Fresh | None = None
    baselines: Mapping[str, Summary] = {}
    trials_command: str = ""
    aa: Errors | None = None
    """Changes that change nothing, under bursty traffic."""
    skewed: Errors | None = None
    """A change that is usually better by 5 points, and worse by 60 in a tenth of the pairs."""
    skewed_promoted: float | None = None
    shifts_command: str = ""
    shifts: Mapping[str, Shift] = {}
    """Changes of the load by name."""
    stationary_hours: int = 0
    """Of loads that do not change."""
    false_shifts_per_48h: float | None = None
    inversion: Inversion | None = None
    replicas: ReplicasReport | None = None


def summary(rows: Sequence[FreshRow], method: str) -> Summary:
    """Returns a method's figures over all rows that have it."""
    rows = [row for row in rows if method in row.scores]
    scores = [row.scores[method] for row in rows]
    seeds = sorted({row.seed for row in rows})
    regrets = {seed: [row.scores[method].regret for row in rows if row.seed == seed] for seed in seeds}
    lost = [
        _mean([row.scores[UNTOUCHED].well - row.scores[method].well for row in rows if row.workload == workload])
        for workload in {row.workload for row in rows}
    ]
    return Summary(
        workloads=len({row.workload for row in rows}),
        seeds=len(seeds),
        integrated_regret_mean=_mean([each.regret for each in scores]),
        integrated_regret_worst=max(each.regret for each in scores),
        integrated_regret_by_seed=tuple(_mean(each) for each in regrets.values()),
        gross_hurt=_mean([each.hurt for each in scores]),
        gross_hurt_worst=max(each.hurt for each in scores),
        worse_than_untouched=max(0.0, *lost),
        worse_than_untouched_worst=max(each.worse_than_untouched for each in scores),
        back_minutes=tuple(each.back_minutes for each in scores if each.back_minutes is not None),
    )


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 5)


def recorded() -> Report:
    """Returns the recorded measurements."""
    return msgspec.json.decode(_FILE.read_bytes(), type=Report) if _FILE.exists() else Report()


def record(**parts: Any) -> None:
    """Replaces parts of the report."""
    report = replace(recorded(), **parts)
    _FILE.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    _FILE.with_suffix(".md").write_text(table(report))


# Tables -----------------------------------------------------------------------------------------------------------


def table(report: Report) -> str:
    """Returns the report as Markdown."""
    lines = [
        "# How good the tuner is",
        "",
        "The real services in simulated time. A request is served well if it meets the TTFA objective and has no gap.",
        "",
        *(_days(report.command, report.fresh, report.baselines) if report.fresh else ()),
        *(_trials(report.trials_command, report.aa, report.skewed) if report.aa and report.skewed else ()),
        *(
            shifts.table(report.shifts, report.shifts_command, report.stationary_hours, report.false_shifts_per_48h)
            if report.shifts and report.false_shifts_per_48h is not None
            else ()
        ),
        *(inversion.table(report.inversion) if report.inversion else ()),
        *(replicas.table(report.replicas) if report.replicas else ()),
    ]
    return "\n".join(lines)


def _days(command: str, fresh: Fresh, baselines: Mapping[str, Summary]) -> list[str]:
    return [
        "## Days of drawn workloads",
        "",
        f"Measured by `{command}`: {fresh.workloads} workloads that a generator drew, from a bad or a good start, each "
        f"for {DAY_SECONDS / 60:g} minutes and with {fresh.seeds} seeds of its requests.",
        "",
        "- Regret: what the whole day misses to the best fixed setting in hindsight, which elimination finds, as a "
        "ratio of what that serves well.",
        "- Hurt: ratio of all requests that changes and trials made bad, against a copy of the pipeline that keeps the "
        "setting then in force; net for each change, until the next one and for ten minutes at most.",
        "- Back: minutes after a shift of the load at midday until within 5 % of the best setting for the new load.",
        "- The baselines see the same counters and set all knobs each five minutes. They run with fewer seeds of the "
        "requests.",
        "",
        "| method | regret, mean | by seed | worst | hurt, mean | worst | worse than untouched, "
        "mean of a workload | a run | back, median | worst |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(_summary_row(name, each) for name, each in {TUNER: fresh, **baselines}.items()),
        "",
        "Of each workload: means over the seeds, and the range in brackets. Settings are `talker.maxNumSeqs / "
        "codec.maxNumSeqs, first chunk's frames`.",
        "",
        "| workload | replicas | requests | start | untouched | best | well | tuner, well | regret | hurt | back |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *(_workload_row(list(rows)) for _, rows in itertools.groupby(fresh.rows, lambda row: row.workload)),
        "",
        "![Regret of each workload by method](tuning.png)",
        "",
    ]


def _trials(command: str, aa: Errors, skewed: Errors) -> list[str]:
    return [
        "## Errors of trials",
        "",
        f"Measured by `{command}`.",
        "",
        "| change | trials | promoted | rolled back | inconclusive |",
        "|---|---|---|---|---|",
        _errors_row("changes nothing (A/A), bursty traffic", aa),
        _errors_row("+5 points, -60 in a tenth of the pairs", skewed),
        "",
    ]


def _summary_row(name: str, each: Summary) -> str:
    by_seed = f"{min(each.integrated_regret_by_seed):.1%} to {max(each.integrated_regret_by_seed):.1%}"
    back = f"{np.median(each.back_minutes):.0f} | {max(each.back_minutes):.0f}" if each.back_minutes else "- | -"
    return (
        f"| {name} | {each.integrated_regret_mean:.1%} | {by_seed} | {each.integrated_regret_worst:.1%} | "
        f"{each.gross_hurt:.2%} | {each.gross_hurt_worst:.2%} | {each.worse_than_untouched:.1%} | "
        f"{each.worse_than_untouched_worst:.1%} | {back} |"
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


def plot(rows: Sequence[FreshRow]) -> None:
    """Plots the regret and the hurt of each workload and seed, by method."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    methods = list(rows[0].scores)
    figure, both = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained", sharey=True)
    for axes, name, title in zip(both, ("regret", "hurt"), ("regret", "requests that changes made bad"), strict=True):
        for at, method in enumerate(methods):
            values = [100 * getattr(row.scores[method], name) for row in rows if method in row.scores]
            axes.plot(values, [at] * len(values), "o", alpha=0.35, color="tab:blue")
            axes.plot([sum(values) / len(values)], [at], "|", markersize=24, color="black")
        axes.set_xscale("symlog", linthresh=1.0)
        axes.set_xlim(left=0.0)
        axes.set_xlabel(f"{title} (%); line: mean")
    both[0].set_yticks(range(len(methods)), methods)
    both[0].invert_yaxis()
    figure.savefig(RESULTS / "tuning.png", dpi=120)
    pyplot.close(figure)
