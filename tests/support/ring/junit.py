"""Reads pytest's JUnit report."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

LINES = 15
"""Of each failure."""


@dataclass
class Outcome:
    """What came of one run of a suite."""

    tests: int = 0
    skipped: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    """The last lines of the failure of each test that failed."""
    seconds: float = 0.0


def read(report: Path, suite_of: Callable[[str], str]) -> dict[str, Outcome]:
    """Returns the outcome of each suite; `suite_of` returns the suite of a file. Seconds: the sum of all tests."""
    outcomes: dict[str, Outcome] = {}
    seen = set[str]()
    for case in ElementTree.parse(report).iter("testcase"):
        outcome = outcomes.setdefault(suite_of(case.get("file", "")), Outcome())
        name = _node(case)
        # A test that fails, and whose fixtures then fail too, is two cases.
        outcome.tests += name not in seen
        outcome.skipped += case.find("skipped") is not None
        outcome.seconds += float(case.get("time", 0))
        for problem in (*case.findall("failure"), *case.findall("error")):
            outcome.failures[name] = _last_lines(problem)
        seen.add(name)
    return outcomes


def _node(case: ElementTree.Element) -> str:
    """Returns the test's ID as pytest accepts it."""
    file = case.get("file", "")
    classes = case.get("classname", "").removeprefix(file.removesuffix(".py").replace("/", ".")).strip(".")
    return "::".join(filter(None, (file, *classes.split("."), case.get("name"))))


def _last_lines(problem: ElementTree.Element) -> str:
    return "\n".join((problem.text or problem.get("message", "")).rstrip().splitlines()[-LINES:])
