"""Fixtures: an emulated cluster, and a `Harness` of helpers for it."""

from __future__ import annotations

import functools
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from support.kube import KubeCluster
from support.operator import CRD, Harness
from support.operator_process import run
from support.rbac import rights


@pytest.fixture(scope="session", autouse=True)
def _certificates() -> Iterator[None]:
    """Loads the machine's certificates once, not for each operator of a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", functools.cache(ssl.create_default_context))
        yield


@pytest.fixture
async def cluster() -> AsyncIterator[KubeCluster]:
    async with KubeCluster(crd=CRD, rights=rights(), pod_monitors=True) as running:
        yield running


@pytest.fixture
def command(cluster: KubeCluster, tmp_path: Path) -> Callable[..., Awaitable[tuple[int, str]]]:
    """Runs a command with the cluster's kubeconfig; returns its exit status and output."""
    return functools.partial(run, cluster, tmp_path)


@pytest.fixture
def harness(cluster: KubeCluster, tmp_path: Path) -> Harness:
    return Harness(cluster, tmp_path)
