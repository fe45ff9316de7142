"""Tests of the log line with the resolved configuration of a process."""

import json
import logging
from pathlib import Path

import msgspec
import pytest

from syrinx_operator.local.supervisor import Announcement, at_its_ports
from syrinx_stages.contract.settings import StageConfig, resolved_config_line
from syrinx_stages.runtime.process import log_config
from syrinx_stages.runtime.start import load_start_config

CONFIG = StageConfig(pipeline="demo", generation="g", model="bundled", replica="demo-talker-0")


def test_the_line_is_json_with_the_config_and_its_hash():
    line = json.loads(resolved_config_line("talker", "demo-talker-0", CONFIG))
    assert (line["process"], line["replica"]) == ("talker", "demo-talker-0")
    assert msgspec.convert(line["config"], StageConfig) == CONFIG
    assert len(line["config_sha256"]) == 12 and int(line["config_sha256"], 16) >= 0


def test_the_hash_depends_on_values_and_not_on_their_order():
    def digest(config: object) -> str:
        return json.loads(resolved_config_line("talker", "", config))["config_sha256"]

    assert digest({"a": 1, "b": {"c": 2, "d": 3}}) == digest({"b": {"d": 3, "c": 2}, "a": 1})
    assert digest(CONFIG) == digest(msgspec.to_builtins(CONFIG))
    assert digest(CONFIG) != digest(msgspec.structs.replace(CONFIG, max_resident=7))


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture):
    """Logs the configuration of one replica and returns the parsed line."""

    def log(replica: str, tmp_path: Path, /, **fields: object) -> dict[str, object]:
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"pipeline": "p", "generation": "g", "model": "bundled", **fields}))
        config = load_start_config("talker", str(path), {"POD_NAME": replica, "REDIS_PASSWORD": "hunter2"})
        caplog.clear()
        with caplog.at_level(logging.DEBUG):
            log_config("talker", config)
        (record,) = caplog.records
        prefix, _, text = record.getMessage().partition(": ")
        assert prefix == "configuration" and "hunter2" not in text
        return json.loads(text)

    return log


def test_a_process_logs_resolved_values(logged, tmp_path: Path):
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"settings": {"max_num_seqs": 3}, "generation": 5}))
    line = logged("demo-talker-1", tmp_path, settings_file=str(settings))
    assert line["replica"] == "demo-talker-1"
    assert (line["config"]["talker"]["max_num_seqs"], line["config"]["settings_generation"]) == (3, 5)
    assert line["config"]["drain_seconds"] == 30.0, "defaults are included"


def test_a_process_that_syrinx_up_restarts_logs_the_same_hash(logged, tmp_path: Path):
    config = at_its_ports(CONFIG, Announcement(*(f"http://127.0.0.1:{port}" for port in (8801, 8802, 8803))))
    assert (config.port, config.admin_port, config.settings_port) == (8801, 8802, 8803), (
        "the restart listens there again"
    )
    lines = [logged("", tmp_path, **msgspec.to_builtins(each)) for each in (CONFIG, config)]
    assert lines[0] == lines[1]
