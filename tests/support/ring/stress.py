"""Runs suites several times, in random order, beside processes that keep the processor busy."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from support.ring.order import SEED
from support.ring.run import FAILURES, batches, clear, run, text
from support.ring.suites import Suite

LOOP = "import os\nwhile os.getppid() == {parent}:\n    sum(range(100_000))"
"""Ends with its parent, however that ends."""


def stress(suites: Sequence[Suite], runs: int, load: int, kept: Path = FAILURES) -> dict[str, Any]:
    """Runs the suites `runs` times beside `load` busy loops. Returns tests and failures per test, and prints these."""
    clear(suites, kept)
    tests = 0
    failures: Counter[str] = Counter()
    first: dict[str, str] = {}
    with busy(load):
        for seed in range(1, runs + 1):
            print(f"=== run {seed} of {runs}, beside {load} busy loops ===", flush=True)
            outcomes = {}
            for batch in batches(suites):
                outcomes |= run(batch, kept, **{SEED: str(seed)})
            tests = sum(outcome.tests for outcome in outcomes.values())
            found = {name: why for outcome in outcomes.values() for name, why in outcome.failures.items()}
            failures.update(found.keys())
            first = {**found, **first}
    print(text({f"{name}: {count} of {runs}": first[name] for name, count in failures.most_common()}), flush=True)
    return {"tests": tests, "failures": dict(failures)}


@contextlib.contextmanager
def busy(load: int) -> Iterator[None]:
    """Runs this many processes that compute all the time."""
    loops = [subprocess.Popen([sys.executable, "-c", LOOP.format(parent=os.getpid())]) for _ in range(load)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
