"""Tests on the cluster of KUBECONFIG: `make test-cluster`. Parameters are in `parameters.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.installation import Installation
from cluster.parameters import Parameters
from cluster.pipeline import Pipeline

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips these tests unless requested, because they need a cluster."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def installed() -> Iterator[Installation]:
    """A test namespace with everything installed and a running operator."""
    installation = Installation(Parameters())
    print(f"\n{installation.parameters}\n{installation.cluster.configuration.host}")
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
