"""Fixtures: an emulated cluster, and a `Harness` of helpers for it."""

from __future__ import annotations

import functools
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from support.kube import KubeCluster
from support.operator import CRD, Harness
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
def harness(cluster: KubeCluster, tmp_path: Path) -> Harness:
    return Harness(cluster, tmp_path)
