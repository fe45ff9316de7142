"""The pipeline that `syrinx up` runs without a file."""

from pathlib import Path

import pytest

from syrinx_operator.local.machine import usable_cores
from syrinx_operator.local.sizing import sized_pipeline
from syrinx_operator.resource.spec import default_pipeline


def replicas(cores: int, memory_gib: float = 64) -> tuple[int, int]:
    spec = sized_pipeline(cores, memory_gib).spec
    return spec.talker.replicas, spec.codec.replicas


def test_two_cores_run_the_default_pipeline() -> None:
    assert sized_pipeline(1, 64) == sized_pipeline(2, 64) == default_pipeline()


@pytest.mark.parametrize(("cores", "expected"), [(3, (1, 2)), (4, (2, 2)), (8, (4, 4)), (16, (8, 8)), (96, (16, 16))])
def test_more_cores_run_as_many_talkers_as_codecs(cores: int, expected: tuple[int, int]) -> None:
    assert replicas(cores) == expected


def test_the_processes_fit_the_memory() -> None:
    assert sum(replicas(64, memory_gib=4)) == 8
    assert replicas(8, memory_gib=0.25) == (1, 1)


@pytest.mark.parametrize(("quota", "cores"), [("100000 100000", 1), ("50000 100000", 1), ("99900000 100000", None)])
def test_a_container_has_the_cores_of_its_quota(tmp_path: Path, quota: str, cores: int | None) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    unlimited = usable_cores(tmp_path / "missing")
    assert usable_cores(tmp_path / "cpu.max") == (cores or unlimited)
    (tmp_path / "cpu.max").write_text("max 100000")
    assert usable_cores(tmp_path / "cpu.max") == unlimited
