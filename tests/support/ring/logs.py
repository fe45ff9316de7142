"""A plugin of pytest that shows, and keeps, the logs of the processes of a failed test."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

KEPT = "SYRINX_TEST_KEPT_LOGS"
"""The environment variable with the folder for copies of the logs; without it they are only shown."""
LINES = 100
_STARTED = pytest.StashKey[float]()
_BASE = pytest.StashKey[Path]()


@pytest.fixture(scope="session", autouse=True)
def _directory_of_logs(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> None:
    pytestconfig.stash[_BASE] = tmp_path_factory.getbasetemp()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_STARTED] = time.time()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    base = item.config.stash.get(_BASE, None)
    if report.failed and base is not None:
        for log in written_since(base, item.stash[_STARTED]):
            name = str(log.relative_to(base))
            lines = log.read_text(errors="replace").splitlines()
            report.sections.append((f"last lines of {name}", "\n".join(lines[-LINES:])))
            if kept := os.environ.get(KEPT):
                _keep(log, Path(kept) / _file_name(item.nodeid) / _file_name(name))
    return report


def written_since(base: Path, started: float) -> Iterator[Path]:
    """Yields the logs below `base` that were written to since then: also those of processes that tests share."""
    for folder, _, files in os.walk(base):
        for file in sorted(files):
            path = Path(folder, file)
            is_log = file == "log" or path.suffix in (".log", ".err")
            # The clock of a file system is coarse.
            if is_log and path.stat().st_size and path.stat().st_mtime >= started - 0.1:
                yield path


def _keep(log: Path, copy: Path) -> None:
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(log, copy)


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "_", text)[-150:]
