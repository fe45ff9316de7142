"""Compares the simulator with measurements, row by row."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from simulator.cases import METRICS, RESULTS, Case, benched, error, published, simulate
from simulator.fit import START, search

SEEDS = 2
_UNITS = {"ttfa_mean": "TTFA mean ms", "ttfa_p95": "TTFA p95 ms", "throughput": "req/s", "underruns": "underruns %"}
_HEAD = """\
# How close the simulator comes

Made by `PYTHONPATH=bench python -m simulator calibrate`. Published figures and their sources are in
`bench/simulator/published.csv`, those of two cores in `cpu.json`. An error of +100 % is twice what was measured; a
group's is its typical factor, less one.

| costs | figures | were | typical error |
|---|---|---|---|""".splitlines()
_DOES_NOT_FIT = """\
## What does not fit, and why

- **The published service is another program.** Its codec decodes 72 frames of left context again in every call and
  serves the oldest request first, its talker takes no more than `max_num_seqs`, and with one codec row a clone
  keeps the codec until its end. For these tables the simulator does the same (`admission`, `context_frames`);
  Syrinx does none of it, so these costs say what that service does on that GPU, not what Syrinx would.
- **Chunks, and what a row bounds, are inferred**, not published: from how often its talker gave codes out and from
  the order in which four at once were heard. Captured shapes are taken to be of one row, and of 1, 2, 4 and 8 rows
  "with pairs".
- **Throughput of preset voices.** No single set of constants gives both TTFA and requests per second of these
  tables: fitted to all, one codec row serves 36 and 39 % fewer than measured at 8 and 32 at once.
- **Batched decoding cost preset voices more in the tables than it does here**: at 4 and 8 at once the talker's
  frames took half as long again. The simulator knows only that each further row of a decoder call slows a talker on
  the same device (`crowding`), and that calls at shapes that are not captured cost more. With pairs it therefore
  expects a gain where one study measured a loss: padding within a captured frame count, which they blame, is not in
  it.
- **Tables of one machine contradict each other.** The same H100, model and task have a p95 of 61,551 ms, 101,508 ms
  and 3,080 ms with one codec row at 8 at once: the first two were measured before
  #3306. Costs were fitted to the last alone; the others are predictions, and no constant cost predicts them.
- **Percentiles of few requests.** The published tables do not say of how many.
- **Two cores**: `syrinx bench`, the gateway and Redis compute on the same two cores as the stages, which one factor
  (`interference`) and one `hop` stand for; so the simulated service drowns earlier than the machine: at 6 and 8
  requests/s it is the slower one. Engine times were measured as CPU time.
"""


def compare(cases: Iterable[Case]) -> list[dict[str, Any]]:
    """Returns a row for each case and metric."""
    rows = []
    for case in cases:
        found = simulate(case.scenario, seeds=SEEDS)
        for name, measured in case.measured.items():
            row = {
                "costs": case.group,
                "case": case.variant,
                "load": case.load,
                "metric": name,
                "measured": round(measured, 3),
                "simulated": round(found[name], 3),
                "fitted": case.fitted,
            }
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
    lines += ["", _DOES_NOT_FIT]
    for group in START:
        lines += [
            f"## {group}",
            "",
            "| case | load | figure | measured | simulated | error |",
            "|---|---|---|---|---|---|",
        ]
        lines += [_line(row) for row in rows if row["costs"] == group]
        lines.append("")
    return "\n".join(lines)


def _line(row: dict[str, Any]) -> str:
    off = f"{100 * row['error']:+.0f} %" if "error" in row else ""
    case = row["case"] if row["fitted"] else f"{row['case']} (predicted)"
    figures = f"{row['measured']:g} | {row['simulated']:.4g}"
    return f"| {case} | {row['load']} | {_UNITS[row['metric']]} | {figures} | {off} |"


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
