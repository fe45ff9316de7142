"""Fixtures: an emulated cluster, and a `Harness` of helpers for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.kube import KubeCluster
from support.operator import CRD, Harness
from support.rbac import rights


@pytest.fixture
async def cluster() -> AsyncIterator[KubeCluster]:
    async with KubeCluster(crd=CRD, rights=rights(), pod_monitors=True) as running:
        yield running


@pytest.fixture
def harness(cluster: KubeCluster, tmp_path: Path) -> Harness:
    return Harness(cluster, tmp_path)
