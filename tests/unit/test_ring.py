"""The commands behind `make test`, `make test-all` and `make stress`."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from support.ring.record import ROOT, origin, save_suites
from support.ring.run import run_all
from support.ring.stress import stress
from support.ring.suites import SUITES, Ring, Suite, of

TWO = """
import pytest

def test_that_passes(): ...

@pytest.mark.skip
def test_that_is_skipped(): ...

class TestClass:
    def test_that_fails(self, tmp_path):
        (tmp_path / "talker.log").write_text("".join(f"line {n}\\n" for n in range(200)))
        assert 1 == 2, "on purpose"
"""
QUICK = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "PYTHONPATH": str(ROOT / "tests")}
LOGS = ("-p", "support.ring.logs", "-p", "no:cacheprovider")


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    """A suite of three tests, one of which fails."""
    file = tmp_path / "test_two.py"
    file.write_text(TWO)
    return Suite("unit", Ring.TEST, (str(file),), options=LOGS, environment=QUICK, venv=sys.prefix)


def test_a_failure_is_recorded_and_its_logs_are_kept(suite: Suite, tmp_path: Path) -> None:
    results, kept = tmp_path / "tests.json", tmp_path / "failures"
    start = origin()
    assert run_all([suite], kept, lambda outcomes: save_suites(outcomes, start, results)) == 1
    [line] = json.loads(results.read_text())["suites"]
    [failure] = line.pop("failures")
    assert failure.endswith("test_two.py::TestClass::test_that_fails")
    assert line.pop("seconds") > 0
    assert line == {"suite": "unit", "tests": 3, "skipped": 1, **start}
    report = (kept / "unit" / "report.txt").read_text()
    assert failure in report and "on purpose" in report
    [log] = (kept / "unit" / "logs").rglob("*talker.log")
    assert log.read_text().endswith("line 199\n")


def test_no_test_is_a_failure(suite: Suite, tmp_path: Path) -> None:
    assert run_all([replace(suite, options=(*LOGS, "-k", "nothing"))], tmp_path / "failures") == 1
    assert "no test was selected" in (tmp_path / "failures" / "unit" / "report.txt").read_text()


def test_stress_counts_failures_of_each_test(suite: Suite, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = stress([suite], runs=2, load=1, kept=tmp_path / "failures")
    assert found["tests"] == 3
    assert [(name.rpartition("::")[2], count) for name, count in found["failures"].items()] == [("test_that_fails", 2)]
    output = capfd.readouterr().out
    assert "test_that_fails: 2 of 2\n" in output and "AssertionError: on purpose" in output


# The table -------------------------------------------------------------------------------------------------------


def test_every_folder_of_tests_is_in_a_suite() -> None:
    paths = {path for suite in SUITES.values() for path in suite.paths}
    tested = {file.relative_to(ROOT).parts[:2] for file in (ROOT / "tests").rglob("test_*.py")}
    assert {"/".join(parts) for parts in tested} - paths == set()


def test_what_make_test_leaves_out_of_a_folder_runs_at_night() -> None:
    for suite in of(Ring.TEST):
        night = SUITES.get(f"{suite.name}-night")
        if night is None:
            modules = [file.read_text() for path in suite.paths for file in (ROOT / path).rglob("test_*.py")]
            assert modules and not any(re.search(r"mark\.night\b", each) for each in modules)
            continue
        marks = suite.marks.removesuffix(" and not bench")
        assert (night.paths, night.marks) == (suite.paths, f"not {marks} and not bench")
        assert set(night.needs) >= set(suite.needs)
