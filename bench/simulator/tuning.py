"""Measures the tuner and writes bench/results/tuning.{json,md,png}: regret and harm over workloads, and A/A tests."""

import itertools
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec
from msgspec import Struct

from simulator import costs
from simulator.auto import harm, policy, tune
from simulator.cases import RESULTS
from simulator.scenario import Costs, Scenario
from simulator.world import fixed
from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.tuner.policy import Objective, Policy

COMMAND = "PYTHONPATH=bench python -m simulator tuning"
ROUNDS = ((120.0, 30), (600.0, 8), (7200.0, 1))
"""(simulated seconds, settings kept) of each elimination round. The first round has all settings."""
DAY = 24 * 3600.0
AA_HOURS = 2.0
AA_ROWS = 4
"""Capacity of a replica in the A/A tests. More rows have no effect."""
_USUAL = (2, 2, 3, 4, 5, 7, 9, 12)
_FOREVER = 1e9
_THREE = {"CustomVoice": 5.0, "VoiceDesign": 2.0, "Base": 2.0}


class Result(Struct, frozen=True, kw_only=True):
    """Result of one workload."""

    name: str
    start: Setting
    best: Setting
    """The best fixed setting within the bounds."""
    chosen: Setting
    """The tuner's setting at the end."""
    asked: float
    """Requests per second."""
    goodput_start: float
    """Good requests per second under the starting setting."""
    goodput_best: float
    goodput_chosen: float
    regret: float
    """(best - chosen) / best goodput."""
    trials: int
    """Within the day."""
    trials_to_choice: int
    """Up to the last promotion."""
    hours_to_choice: float
    harm: float
    """Ratio of the day's requests that trials made bad."""


class AaResult(Struct, frozen=True, kw_only=True):
    """Result of all runs."""

    runs: int
    trials: int
    false_promotions: int
    """Runs with a promotion."""


class Report(Struct, frozen=True, kw_only=True):
    """All measurements."""

    command: str
    workloads: tuple[Result, ...]
    aa: AaResult


def workloads() -> list[Scenario]:
    """Returns all workloads."""
    return [
        _one("two cores, presets", costs.CPU2, {"CustomVoice": 2.5}, 300, start=(1, 1)),
        _one("two cores, presets, busy", costs.CPU2, {"CustomVoice": 3.5}, 300, start=(2, 32)),
        _one("two cores, presets and clones", costs.CPU2, {"CustomVoice": 1.2, "Base": 0.4}, 500, start=(1, 8)),
        _one("four nodes of two cores", costs.CPU2, {"CustomVoice": 9.0}, 300, start=(2, 1), replicas=4),
        _one("H100 (published), presets", costs.H100_CUSTOMVOICE, {"CustomVoice": 2.0}, 500, start=(10, 1), rows=True),
        _one("H100 (published), clones", costs.H100_BASE, {"Base": 0.75}, 2000, start=(10, 1), rows=True),
        _one(
            "H100 (published), presets and clones",
            costs.H100_BASE,
            {"CustomVoice": 0.5, "Base": 0.25},
            2000,
            start=(10, 1),
            rows=True,
        ),
        _one("H20 (published), clones, late ramp", costs.H20_BASE, {"Base": 0.4}, 2000, (1, 1), ramp=(16, 16, 25)),
        _one("two H20 (published), clones", costs.H20_BASE, {"Base": 0.8}, 2000, start=(4, 1), rows=True, replicas=2),
        _one("H200, presets, light", costs.H200_PROTOTYPE, {"CustomVoice": 4.0}, 75, start=(1, 1), resident=64),
        _one("H200, presets", costs.H200_PROTOTYPE, {"CustomVoice": 12.0}, 100, start=(4, 1), resident=64),
        _one("H200, clones", costs.H200_PROTOTYPE, {"Base": 6.0}, 150, (2, 2), resident=64, ramp=(8, 8, 12, 16)),
        _one("H200, all task types", costs.H200_PROTOTYPE, _THREE, 150, start=(4, 64), resident=64, burst=2.0),
    ]


def _one(
    name: str,
    machine: Costs,
    rates: Mapping[str, float],
    ms: float,
    start: tuple[int, int],
    resident: int = 32,
    *,
    replicas: int = 1,
    ramp: tuple[int, ...] = _USUAL,
    rows: bool = False,
    burst: float = 1.0,
) -> Scenario:
    """Returns a workload. `ms` is the TTFA objective of every task type, `start` the rows of talker and codec."""
    return Scenario(
        name=name,
        seconds=_FOREVER,
        load=((_FOREVER, dict(rates)),),
        objectives={task_type: Objective(ms / 1000, 0.95) for task_type in rates},
        initial=Setting(talker_max_num_seqs=start[0], codec_max_num_seqs=start[1], chunk_ramp=ramp),
        talkers=replicas,
        codecs=replicas,
        costs=machine,
        talker_resident=resident,
        codec_resident=resident,
        admission="rows" if rows else "resident",
        burst=burst,
    )


def measure(scenario: Scenario) -> Result:
    """Finds the best setting by brute force, runs the tuner for a day, and compares them."""
    rules = policy(scenario)
    best = brute_force(scenario, rules)
    day = tune(msgspec.structs.replace(scenario, seconds=DAY), rules)
    promoted = [each for each in day.events if each.event.reason == "Promoted"]
    last = promoted[-1].at if promoted else 0.0
    ended = [each for each in day.finished() if each.at <= last]
    judged = msgspec.structs.replace(scenario, seconds=ROUNDS[-1][0])
    goodput = {setting: fixed(judged, setting) for setting in {best, day.chosen, scenario.initial}}
    return Result(
        name=scenario.name,
        start=scenario.initial,
        best=best,
        chosen=day.chosen,
        asked=sum(sum(rates.values()) for _, rates in scenario.load) / len(scenario.load),
        goodput_start=goodput[scenario.initial],
        goodput_best=goodput[best],
        goodput_chosen=goodput[day.chosen],
        regret=max(0.0, 1 - goodput[day.chosen] / goodput[best]) if goodput[best] else 0.0,
        trials=len(day.finished()),
        trials_to_choice=len(ended),
        hours_to_choice=last / 3600,
        harm=harm(day),
    )


def brute_force(scenario: Scenario, rules: Policy) -> Setting:
    """Returns the best setting by successive elimination: the best ones are simulated for longer."""
    candidates = [
        msgspec.structs.replace(scenario.initial, talker_max_num_seqs=talker, codec_max_num_seqs=codec, chunk_ramp=ramp)
        for talker, codec, ramp in itertools.product(
            rules.rows[Knob.TALKER_ROWS], rules.rows[Knob.CODEC_ROWS], rules.ramps
        )
    ]
    for seconds, kept in ROUNDS:
        judged = msgspec.structs.replace(scenario, seconds=seconds)
        candidates.sort(key=lambda setting: fixed(judged, setting), reverse=True)
        candidates = candidates[:kept]
    return candidates[0]


def aa_scenario(seed: int) -> Scenario:
    """Returns a service that misses its objective under any setting; the seed selects the replicas and the load."""
    replicas, load = (3, 1, 1, 1)[seed % 4], (0.8, 1.2, 1.6)[seed % 3]
    return Scenario(
        name=f"A/A {seed}",
        seed=seed,
        seconds=AA_HOURS * 3600,
        load=((1e9, {"CustomVoice": load * replicas}),),
        burst=1.0 + seed % 2,
        objectives={"CustomVoice": Objective(0.1, 0.95)},
        initial=Setting(talker_max_num_seqs=4, codec_max_num_seqs=4, chunk_ramp=(2, 2, 3, 4, 5, 7, 9, 12)),
        talkers=replicas,
        codecs=replicas,
        talker_resident=AA_ROWS,
        codec_resident=AA_ROWS,
        costs=costs.CPU2,
    )


def aa_run(seed: int) -> tuple[int, bool]:
    """Tunes a service on which no allowed setting has an effect.

    Returns the number of ended trials, and whether one was promoted.
    """
    simulated = aa_scenario(seed)
    rules = policy(simulated)
    rows = (AA_ROWS, 8, 16, 32)
    rules = msgspec.structs.replace(
        rules, rows={Knob.TALKER_ROWS: rows, Knob.CODEC_ROWS: rows}, ramps=(simulated.initial.chunk_ramp,)
    )
    ended = tune(simulated, rules).finished()
    return len(ended), any(each.event.reason == "Promoted" for each in ended)


def main(runs: int) -> None:
    """Measures and writes the results. Takes about a quarter of an hour on two cores."""
    results = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for result in pool.map(measure, workloads()):
            print(_row(result), flush=True)
            results.append(result)
        trials, promoted = zip(*pool.map(aa_run, range(runs), chunksize=8), strict=True)
    aa = AaResult(runs=runs, trials=sum(trials), false_promotions=sum(promoted))
    report = Report(command=COMMAND, workloads=tuple(results), aa=aa)
    (RESULTS / "tuning.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    write_table(RESULTS / "tuning.json", RESULTS / "tuning.md")
    plot(results, RESULTS / "tuning.png")


def write_table(source: Path, target: Path) -> None:
    """Writes the JSON results as a Markdown page."""
    report = msgspec.json.decode(source.read_bytes(), type=Report)
    worst = max(report.workloads, key=lambda result: result.regret)
    aa = report.aa
    target.write_text(
        "\n".join(
            [
                "# What the tuner finds, and what it costs listeners",
                "",
                f"Made by `{report.command}` ({len(report.workloads)} workloads of one simulated day each, "
                f"{aa.runs} A/A runs). A good request meets the TTFA objective and never "
                "underran. Rows are `talker.maxNumSeqs / codec.maxNumSeqs, first chunk's frames`.",
                "",
                "Best is the best setting within the bounds, found by brute force with the same requests. Regret is "
                "the loss of goodput of the final setting against it. Harm is the ratio of the day's requests that "
                "trials made bad, compared with a run of the same requests without the trial.",
                "",
                "| workload | requests/s | start | good | best | good | found | good | regret | "
                "trials to it (all day) | hours | harm |",
                "|---|---|---|---|---|---|---|---|---|---|---|---|",
                *map(_row, report.workloads),
                "",
                f"Largest regret: {worst.regret:.1%} ({worst.name}). "
                f"Largest harm: {max(result.harm for result in report.workloads):.2%}.",
                "",
                f"A/A: {aa.runs} runs of {AA_HOURS:g} hours in which no knob has an effect and an objective is "
                f"always missed; {aa.trials} trials; {aa.false_promotions} runs had a false promotion "
                f"({aa.false_promotions / aa.runs:.1%}).",
                "",
                "![Ratio of good requests: start, best, found](tuning.png)",
                "",
            ]
        )
    )


def plot(results: Sequence[Result], target: Path) -> None:
    """Plots start, found and best setting side by side."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    height = 0.27
    for offset, (label, values) in enumerate(
        (
            ("start", [min(1.0, result.goodput_start / result.asked) for result in results]),
            ("found by the tuner", [min(1.0, result.goodput_chosen / result.asked) for result in results]),
            ("best, by brute force", [min(1.0, result.goodput_best / result.asked) for result in results]),
        )
    ):
        axes.barh([row + offset * height for row in range(len(results))], values, height, label=label)
    axes.set_yticks([row + height for row in range(len(results))], [result.name for result in results])
    axes.invert_yaxis()
    axes.set_xlabel("ratio of good requests")
    figure.legend(loc="outside lower center", ncols=3)
    figure.savefig(target, dpi=120)
    pyplot.close(figure)


def _row(result: Result) -> str:
    asked = result.asked
    cells = [
        result.name,
        f"{asked:g}",
        _short(result.start),
        f"{min(1.0, result.goodput_start / asked):.1%}",
        _short(result.best),
        f"{min(1.0, result.goodput_best / asked):.1%}",
        _short(result.chosen),
        f"{min(1.0, result.goodput_chosen / asked):.1%}",
        f"{result.regret:.1%}",
        f"{result.trials_to_choice} ({result.trials})",
        f"{result.hours_to_choice:.1f}",
        f"{result.harm:.2%}",
    ]
    return f"| {' | '.join(cells)} |"


def _short(setting: Setting) -> str:
    return f"{setting.talker_max_num_seqs} / {setting.codec_max_num_seqs}, {setting.chunk_ramp[0]}"
