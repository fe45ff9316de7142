"""The operator's options."""

from __future__ import annotations

import pytest

from syrinx_operator import __version__
from syrinx_operator.cluster.config import Access, ConfigError, options


def test_without_anything():
    found = options({})
    assert found.pipelines.stages_image == f"syrinx/stages:{__version__}"
    assert (found.pipelines.redis_image, found.pipelines.operator_namespace) == ("redis:7.2-alpine", "default")
    assert (found.access, found.resync_seconds, found.lease_seconds, found.port) == (Access.PROXY, 15.0, 15.0, 8080)


def test_in_a_cluster_pods_are_reached_directly():
    assert options({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}).access is Access.DIRECT
    assert options({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "SYRINX_STAGE_ACCESS": "proxy"}).access is Access.PROXY


def test_what_is_given():
    found = options(
        {
            "SYRINX_STAGES_IMAGE": "a",
            "SYRINX_REDIS_IMAGE": "b",
            "SYRINX_OPERATOR_NAMESPACE": "c",
            "SYRINX_RESYNC_SECONDS": "2.5",
            "SYRINX_LEASE_SECONDS": "30",
            "SYRINX_PORT": "0",
            "POD_NAME": "operator-7",
        }
    )
    pipelines = found.pipelines
    assert (pipelines.stages_image, pipelines.redis_image, pipelines.operator_namespace) == ("a", "b", "c")
    assert (found.resync_seconds, found.lease_seconds, found.port, found.identity) == (2.5, 30.0, 0, "operator-7")


def test_two_processes_of_one_machine_are_two_operators():
    assert options({}).identity != options({}).identity


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SYRINX_RESYNC_SECONDS", "soon"),
        ("SYRINX_RESYNC_SECONDS", "0"),
        ("SYRINX_RESYNC_SECONDS", "nan"),
        ("SYRINX_LEASE_SECONDS", "0.5"),
        ("SYRINX_PORT", "65536"),
        ("SYRINX_PORT", "-1"),
        ("SYRINX_PORT", "80.5"),
        ("SYRINX_STAGE_ACCESS", "sideways"),
        ("SYRINX_PROMETHEUS_TOKEN_FILE", "/run/token"),
    ],
)
def test_what_is_wrong_is_named(name, text):
    with pytest.raises(ConfigError, match=name):
        options({name: text})
