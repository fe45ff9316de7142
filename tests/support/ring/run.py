"""Runs suites, one after the other, and keeps what failed tests leave."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from support.ring.junit import Outcome, read
from support.ring.logs import KEPT
from support.ring.suites import Suite

ROOT = Path(__file__).parents[3]
FAILURES = ROOT / ".failures"
"""Has a folder for the suites of each call that failed: `report.txt`, and the logs of processes of failed tests."""
STATUS = {2: "interrupted", 3: "internal error", 4: "wrong arguments", 5: "no test was selected"}
"""What pytest's exit status says when no test failed."""


def batches(suites: Sequence[Suite]) -> Iterator[list[Suite]]:
    """Yields the suites in groups, each for one call of pytest: those that differ only in their files."""
    for _, group in itertools.groupby(suites, Suite.alike):
        yield list(group)


def run_all(
    suites: Sequence[Suite], kept: Path = FAILURES, record: Callable[[dict[str, Outcome]], None] = lambda outcomes: None
) -> int:
    """Runs all suites, whatever fails, calls `record` after each call of pytest, and prints a summary.

    Returns 1 if anything failed.
    """
    clear(suites, kept)
    outcomes: dict[str, Outcome] = {}
    for batch in batches(suites):
        outcomes |= run(batch, kept)
        record(outcomes)
    print("\n" + summary(outcomes), flush=True)
    return int(any(each.failures for each in outcomes.values()))


def run(batch: Sequence[Suite], kept: Path = FAILURES, **environment: str) -> dict[str, Outcome]:
    """Runs suites in one call of pytest. Returns the outcome of each; `kept`: where the failures are kept."""
    folder = _folder(batch, kept)
    print(f"=== {' '.join(suite.name for suite in batch)} ===", flush=True)
    needs = dict.fromkeys(need for suite in batch for need in suite.needs)
    if needs and (status := subprocess.run(["make", *needs], cwd=ROOT).returncode):
        outcomes = {suite.name: Outcome(failures={f"set-up of {suite.name}": f"make: {status}"}) for suite in batch}
    else:
        outcomes = _test(batch, {KEPT: str(folder / "logs"), **batch[0].environment, **environment})
    if failures := {name: why for each in outcomes.values() for name, why in each.failures.items()}:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.txt").write_text(text(failures))
    return outcomes


def _test(batch: Sequence[Suite], environment: Mapping[str, str]) -> dict[str, Outcome]:
    """Calls pytest. The seconds of each suite are its share of the whole, by the sums of the tests."""
    started = time.monotonic()

    def suite_of(file: str) -> str:
        return next((suite.name for suite in batch if file.startswith(suite.paths)), batch[0].name)

    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "junit.xml"
        status = _call([*_command(batch), f"--junitxml={report}"], {**os.environ, **environment})
        found = read(report, suite_of) if report.exists() else {}
    outcomes = {suite.name: found.get(suite.name, Outcome()) for suite in batch}
    whole = sum(each.seconds for each in outcomes.values()) or 1.0
    for outcome in outcomes.values():
        outcome.seconds *= (time.monotonic() - started) / whole
    if status and not any(each.failures for each in outcomes.values()):
        why = f"status {status}: {STATUS.get(status, '')}"
        outcomes[batch[0].name].failures[f"pytest of {' '.join(outcomes)}"] = why
    return outcomes


def clear(suites: Sequence[Suite], kept: Path = FAILURES) -> None:
    """Removes what earlier runs of these suites left."""
    for batch in batches(suites):
        shutil.rmtree(_folder(batch, kept), ignore_errors=True)


def summary(outcomes: Mapping[str, Outcome]) -> str:
    """Returns a line for each suite, and the names of the tests that failed."""
    lines = [
        f"{name:16} {each.tests:5} tests {each.skipped:4} skipped {len(each.failures):4} failed {each.seconds:6.0f} s"
        for name, each in outcomes.items()
    ]
    lines += [f"FAILED {name}: {test}" for name, each in outcomes.items() for test in each.failures]
    return "\n".join(lines)


def text(failures: Mapping[str, str]) -> str:
    """Returns names, each with its lines indented."""
    return "".join(f"{name}\n{textwrap.indent(why, '    ')}\n" for name, why in failures.items())


def _folder(batch: Sequence[Suite], kept: Path) -> Path:
    return kept / "+".join(suite.name for suite in batch)


def _command(batch: Sequence[Suite]) -> list[str]:
    suite = batch[0]
    command = [f"{suite.venv}/bin/python", "-m", "pytest", "-q", "-o", "junit_family=xunit1", *suite.options]
    if suite.marks:
        command += ["-m", suite.marks]
    if suite.workers:
        command += ["-n", str(suite.workers)]
    if suite.by_file:
        # In the order of their names, not the long ones first.
        command += ["--dist", "loadfile", "--no-loadscope-reorder"]
    return [*command, *(path for each in batch for path in each.paths)]


def _call(command: Sequence[str], environment: Mapping[str, str]) -> int:
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    try:
        return process.wait()
    except KeyboardInterrupt:
        # pytest was interrupted as well, and ends the processes of its tests.
        process.wait()
        raise
