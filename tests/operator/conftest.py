"""Fixtures: an emulated cluster, and a `Desk` of helpers for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.kube import KubeCluster
from support.operator import CRD, Desk, rights


@pytest.fixture
async def cluster() -> AsyncIterator[KubeCluster]:
    async with KubeCluster(crd=CRD, rights=rights(), pod_monitors=True) as running:
        yield running


@pytest.fixture
def desk(cluster: KubeCluster, tmp_path: Path) -> Desk:
    return Desk(cluster, tmp_path)
