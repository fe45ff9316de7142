"""Tests of the inputs of a stage process: configuration, settings file and replica name."""

import json
from pathlib import Path

import pytest

from syrinx_stages.contract.settings import CodecSettings, GatewaySettings, StageConfig, TalkerSettings
from syrinx_stages.runtime.errors import StartError
from syrinx_stages.runtime.start import load_start_config


def load(tmp_path: Path, stage: str = "talker", environment: dict[str, str] | None = None, **fields) -> StageConfig:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"pipeline": "p", "generation": "g", "model": "bundled", **fields}))
    return load_start_config(stage, str(path), {"POD_NAME": "demo-talker-1"} if environment is None else environment)


def settings_file(tmp_path: Path, content: object) -> str:
    path = tmp_path / "settings.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_a_configured_name_overrides_the_pod_name(tmp_path: Path) -> None:
    assert load(tmp_path, replica="talker-0").replica == "talker-0"


@pytest.mark.parametrize("environment", [{}, {"POD_NAME": ""}])
def test_refuses_to_start_without_a_name(tmp_path: Path, environment: dict[str, str]) -> None:
    with pytest.raises(StartError, match=r"config\.json: replica: .*POD_NAME"):
        load(tmp_path, environment=environment)


@pytest.mark.parametrize(
    ("stage", "values", "settings"),
    [
        ("talker", {"max_num_seqs": 4}, TalkerSettings(max_num_seqs=4, lead_limit_seconds=3.0)),
        ("codec", {"capture_pairs": [[2, 4]]}, CodecSettings(chunk_ramp=(1, 2), capture_pairs=((2, 4),))),
        ("gateway", {"max_queue": 0}, GatewaySettings(max_queue=0, max_queue_seconds=4.0)),
    ],
)
def test_the_settings_file_overrides_only_the_settings_it_has(
    tmp_path: Path, stage: str, values: dict[str, object], settings: object
) -> None:
    config = load(
        tmp_path, stage, settings_file=settings_file(tmp_path, {"settings": values, "generation": 7}),
        settings_generation=9, talker={"max_num_seqs": 8, "lead_limit_seconds": 3.0}, codec={"chunk_ramp": [1, 2]},
        gateway={"max_queue_seconds": 4.0},
    )  # fmt: skip
    assert (getattr(config, stage), config.settings_generation) == (settings, 7)


def test_settings_of_a_newer_operator_are_ignored_and_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file is that of all replicas of a stage, also of those of an earlier image."""
    path = settings_file(tmp_path, {"settings": {"max_num_seqs": 4, "pitch": 3}, "generation": 7})
    config = load(tmp_path, settings_file=path)
    assert (config.talker.max_num_seqs, config.settings_generation) == (4, 7)
    assert "ignores the unknown settings pitch" in caplog.text


def test_a_missing_settings_file_keeps_the_configuration_and_an_unreadable_one_is_an_error(tmp_path: Path) -> None:
    settings = {"settings_file": str(tmp_path / "none"), "settings_generation": 9, "talker": {"max_num_seqs": 2}}
    config = load(tmp_path, **settings)
    with pytest.raises(StartError, match=f"cannot read {tmp_path}: Is a directory"):
        load(tmp_path, settings_file=str(tmp_path))
    assert (config.talker.max_num_seqs, config.settings_generation) == (2, 9)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "settings.json: .*"),
        ([], "settings.json: Expected `object`"),
        ({"generation": 1}, "settings.json: .*`settings`"),
        ({"settings": {}, "generation": "x"}, r"settings.json: .*\$\.generation"),
        ({"settings": {"max_num_seqs": 0}}, "settings.json: settings: .*max_num_seqs"),
        ({"settings": {}, "seconds": 60}, "settings.json: seconds: .*no time limit"),
        ({"settings": {"max_num_seqs": 33}}, r"settings.json: settings\.max_num_seqs: 33 .*max_resident \(32\)"),
    ],
)
def test_an_invalid_settings_file_is_named_with_its_field(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(StartError, match=message):
        load(tmp_path, settings_file=settings_file(tmp_path, content))
