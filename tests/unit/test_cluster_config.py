"""The operator's options and the log line that reports them."""

from __future__ import annotations

import msgspec
import pytest

from syrinx_operator.cluster.config import ConfigError, config_line, options
from syrinx_operator.cluster.watch.stage_api import StageAccess

MINIMAL = {"SYRINX_STAGES_IMAGE": "stages:1"}


def test_the_stages_image_is_required():
    with pytest.raises(ConfigError, match="SYRINX_STAGES_IMAGE is not set"):
        options({})


def test_pods_are_reached_directly_inside_a_cluster():
    inside = MINIMAL | {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    environments = (MINIMAL, inside, inside | {"SYRINX_STAGE_ACCESS": "proxy"})
    assert [options(each).access for each in environments] == [StageAccess.PROXY, StageAccess.DIRECT, StageAccess.PROXY]


def test_reads_every_variable():
    images = {"SYRINX_STAGES_IMAGE": "a", "SYRINX_REDIS_IMAGE": "b", "SYRINX_OPERATOR_NAMESPACE": "c"}
    seconds = {"SYRINX_RESYNC_SECONDS": "2.5", "SYRINX_LEASE_SECONDS": "30", "SYRINX_PORT": "0"}
    found = options(images | seconds | {"SYRINX_LEASE": "speech", "POD_NAME": "operator-7"})
    pipelines = found.pipelines
    assert (pipelines.stages_image, pipelines.redis_image, pipelines.operator_namespace) == ("a", "b", "c")
    assert (found.lease_name, found.identity) == ("speech", "operator-7")
    assert (found.resync_seconds, found.lease_seconds, found.port) == (2.5, 30.0, 0)


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
def test_names_the_variable_with_an_invalid_value(name, text):
    with pytest.raises(ConfigError, match=name):
        options(MINIMAL | {name: text})


def test_the_configuration_line_is_json_without_secrets():
    environment = MINIMAL | {
        "POD_NAME": "operator-7",
        "SYRINX_PROMETHEUS_URL": "https://user:pass@prom.example:9090/p?token=x",
    }
    line = config_line(options(environment))
    record = msgspec.json.decode(line)
    assert (record["process"], record["replica"]) == ("operator", "operator-7")
    assert record["config"]["prometheus"]["url"] == "https://prom.example:9090/p"
    assert record["config"]["pipelines"]["redis_image"] == "redis:7.2-alpine"
    assert "pass" not in line and "token=x" not in line


def test_replicas_of_one_installation_log_the_same_configuration_hash():
    def config_hash(**environment: str) -> str:
        return msgspec.json.decode(config_line(options(MINIMAL | environment)))["config_sha256"]

    assert config_hash(POD_NAME="operator-7") == config_hash(POD_NAME="operator-8")
    assert config_hash(POD_NAME="operator-7") != config_hash(POD_NAME="operator-7", SYRINX_LEASE_SECONDS="30")
