"""`bench/results/tests.json`: tests and seconds of `make test`, the last run of each suite, and runs under load."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from support.ring.junit import Outcome
from support.ring.suites import SUITES, Ring, of

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "bench" / "results" / "tests.json"


def origin() -> dict[str, str]:
    """Returns date and revision; `+` after the revision: files differ from it."""
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{RESULTS.relative_to(ROOT)}")
    revision = _git("rev-parse", "HEAD") + ("+" if changed else "")
    return {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "revision": revision}


def save_suites(outcomes: Mapping[str, Outcome], origin: Mapping[str, str], results: Path = RESULTS) -> None:
    """Replaces the lines of these suites and, if all of `make test` are among them, its sums."""
    record = _read(results)
    lines = {each["suite"]: each for each in record["suites"]}
    for name, outcome in outcomes.items():
        lines[name] = {
            "suite": name,
            "tests": outcome.tests,
            "seconds": round(outcome.seconds, 1),
            "failures": list(outcome.failures),
            "skipped": outcome.skipped,
            **origin,
        }
    record["suites"] = [lines[name] for name in SUITES if name in lines]
    ring = [outcomes[suite.name] for suite in of(Ring.TEST) if suite.name in outcomes]
    if len(ring) == len(of(Ring.TEST)):
        record["ring"] = {
            "tests": sum(each.tests for each in ring),
            "seconds": round(sum(each.seconds for each in ring), 1),
            "skipped": sum(each.skipped for each in ring),
        }
    _write(record, results)


def save_stress(line: Mapping[str, Any], results: Path = RESULTS) -> None:
    """Replaces the line of the same suite and load."""
    record = _read(results)
    others = [each for each in record["stress"] if (each["suite"], each["load"]) != (line["suite"], line["load"])]
    record["stress"] = sorted([*others, line], key=lambda each: (each["suite"], each["load"]))
    _write(record, results)


def _read(results: Path) -> dict[str, Any]:
    return json.loads(results.read_text()) if results.exists() else {"ring": {}, "stress": [], "suites": []}


def _write(record: Mapping[str, Any], results: Path) -> None:
    results.write_text(json.dumps(record, indent=2) + "\n")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
