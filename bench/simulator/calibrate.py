"""Compares the simulator with measurements, row by row."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from simulator.cases import HERE, METRICS, RESULTS, Case, benched, error, published, simulate
from simulator.costs import fitted_cpu, fitted_gpu
from simulator.scenario import Costs

ROUNDS = 10
SECONDS = 40.0
"""Simulated seconds of each case during the fit."""
_FIRST_STEP = 0.25
"""Initial step of a log parameter."""

START: dict[str, tuple[Callable[..., Costs], tuple[float, ...]]] = {
    "CPU2": (fitted_cpu, (0.0095, 0.002, 0.8, 0.004, 1.1)),
    "H100_CUSTOMVOICE": (fitted_gpu, (0.0100, 0.0018, 0.055, 0.0032, 0.000014, 0.1, 0.012)),
    "H100_BASE": (fitted_gpu, (0.0112, 0.00006, 0.241, 0.04, 0.0004, 0.2, 0.04)),
    "H20_CUSTOMVOICE": (fitted_gpu, (0.0100, 0.0018, 0.055, 0.0032, 0.000014, 0.1, 0.012)),
    "H20_BASE": (fitted_gpu, (0.04, 0.0016, 0.46, 0.0735, 0.001, 0.09, 0.0735)),
}
SEEDS = 2
_UNITS = {"ttfa_mean": "TTFA mean ms", "ttfa_p95": "TTFA p95 ms", "throughput": "req/s", "underruns": "underruns %"}
_HEAD = """\
# Accuracy of the simulator

Made by `PYTHONPATH=bench python -m simulator calibrate`. Published values and their sources are in
`bench/simulator/published.csv`, those of two cores in `cpu.json` there. An error of +100 % is twice the measured
value. The error of a group is its typical factor minus one.

| costs | values | kind | typical error |
|---|---|---|---|""".splitlines()


def compare(cases: Iterable[Case]) -> list[dict[str, Any]]:
    """Returns a row for each case and metric."""
    rows = []
    for case in cases:
        found = simulate(case.scenario, seeds=SEEDS)
        for name, measured in case.measured.items():
            row: dict[str, Any] = {"costs": case.group, "case": case.variant, "load": case.load, "metric": name}
            row |= {"measured": round(measured, 3), "simulated": round(found[name], 3), "fitted": case.fitted}
            if name in METRICS:
                row["error"] = round(float(np.exp(error(found[name], measured))) - 1, 3)
            rows.append(row)
    return rows


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the typical error of each group, separately for fitted and predicted cases."""
    found = []
    for group in START:
        for fitted in (True, False):
            errors = [
                row["error"] for row in rows if row["costs"] == group and row["fitted"] == fitted and "error" in row
            ]
            if errors:
                typical = float(np.exp(np.mean(np.abs(np.log1p(errors)))) - 1)
                found.append({"costs": group, "fitted": fitted, "figures": len(errors), "error": round(typical, 3)})
    return found


def _markdown(rows: Sequence[dict[str, Any]], groups: Sequence[dict[str, Any]]) -> str:
    lines = [*_HEAD]
    for each in groups:
        kind = "fitted" if each["fitted"] else "predicted"
        lines.append(f"| {each['costs']} | {each['figures']} | {kind} | {100 * each['error']:.0f} % |")
    lines += ["", (HERE / "deviations.md").read_text()]
    for group in START:
        lines += [f"## {group}", "", "| case | load | metric | measured | simulated | error |", "|---|" + "---|" * 5]
        lines += [_line(row) for row in rows if row["costs"] == group]
        lines.append("")
    return "\n".join(lines)


def _line(row: dict[str, Any]) -> str:
    off = f"{100 * row['error']:+.0f} %" if "error" in row else ""
    case = row["case"] if row["fitted"] else f"{row['case']} (predicted)"
    figures = f"{row['measured']:g} | {row['simulated']:.4g}"
    return f"| {case} | {row['load']} | {_UNITS[row['metric']]} | {figures} | {off} |"


def loss(costs: Costs, cases: Sequence[Case]) -> float:
    """Returns the mean absolute log error of all metrics."""
    errors = []
    for case in cases:
        found = simulate(msgspec.structs.replace(case.scenario, seconds=min(SECONDS, case.scenario.seconds)), costs)
        errors += [abs(error(found[name], case.measured[name])) for name in METRICS if name in case.measured]
    return float(np.mean(errors))


def search(group: str, cases: Sequence[Case]) -> tuple[tuple[float, ...], float]:
    """Coordinate search over log parameters: a step in each direction, halved if neither improves."""
    build, start = START[group]
    values = np.log(np.array(start))
    steps = np.full(len(values), _FIRST_STEP)
    best = loss(build(*np.exp(values)), cases)
    for _ in range(ROUNDS):
        for at in range(len(values)):
            for sign in (1, -1):
                tried = values.copy()
                tried[at] += sign * steps[at]
                now = loss(build(*np.exp(tried)), cases)
                if now < best:
                    values, best = tried, now
                    steps[at] *= 1.3
                    break
            else:
                steps[at] /= 2
        if steps.max() < 0.02:
            break
    return tuple(float(f"{value:.3g}") for value in np.exp(values)), best


def main(fit: bool) -> None:
    """Writes `bench/results/calibration.{json,md}`. With `fit`, fits the costs and prints them instead."""
    cases = [*published(), *benched()]
    if fit:
        for group in START:
            found, left = search(group, [case for case in cases if case.group == group and case.fitted])
            print(f"{group}: {found}, mean error {left:.3f}", flush=True)
        return
    rows = compare(cases)
    groups = summary(rows)
    (RESULTS / "calibration.json").write_text(json.dumps({"summary": groups, "rows": rows}, indent=1) + "\n")
    (RESULTS / "calibration.md").write_text(_markdown(rows, groups))
    for each in groups:
        print(json.dumps(each))
