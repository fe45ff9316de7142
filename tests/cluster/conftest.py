"""Tests on the cluster of KUBECONFIG: `make test-cluster`. Parameters are in `parameters.py`."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.installation import Installation
from cluster.parameters import Parameters
from cluster.pipeline import Pipeline
from cluster.record import record
from syrinx_operator.local.machine import revision

HERE = Path(__file__).parent
VERSION = pytest.StashKey[str]()
"""Of Kubernetes."""
STARTED = time.monotonic()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips these tests unless requested, because they need a cluster."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def installed(request: pytest.FixtureRequest) -> Iterator[Installation]:
    """A test namespace with everything installed and a running operator."""
    installation = Installation(Parameters())
    print(f"\n{installation.parameters}\n{installation.cluster.configuration.host}")
    request.config.stash[VERSION] = installation.cluster.call("GET", "/version").json()["gitVersion"]
    try:
        installation.install()
        yield installation
    finally:
        if not installation.parameters.keep:
            installation.uninstall()


@pytest.fixture(autouse=True)
def explained(request: pytest.FixtureRequest, installed: Installation) -> Iterator[None]:
    """Adds the logs of operator and pods to a failed test."""
    failed_before = request.session.testsfailed
    yield
    if request.session.testsfailed > failed_before:
        for pipeline in installed.cluster.list("TTSPipeline"):
            print(Pipeline(installed, pipeline["metadata"]["name"]).describe())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Records a run on a cluster, if a file for it is set."""
    if (file := Parameters().record) and VERSION in config.stash:
        count = {kind: len(terminalreporter.stats.get(kind, ())) for kind in ("passed", "failed", "error", "skipped")}
        run = {
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "version": config.stash[VERSION],
            "passed": count["passed"],
            "failed": count["failed"] + count["error"],
            "skipped": count["skipped"],
            "seconds": round(time.monotonic() - STARTED, 1),
            "revision": revision(),
        }
        record(Path(file), run)
