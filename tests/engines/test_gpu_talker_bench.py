"""The GPU talker benchmarks, in Triton's interpreter."""

import support.interpreter  # noqa: F401, I001 (before any kernel)

import json

import msgspec
import pytest
import torch

from gpu import checkpoint, talker
from syrinx_stages.model.config import ModelConfig, TalkerConfig


def official(size: str) -> TalkerConfig:
    return msgspec.convert(checkpoint.talker_settings(size, 0), ModelConfig).talker_config


def test_floor_is_the_time_to_read_weights_and_cache():
    config = official("1b7")
    alone = talker.floor_ms(config, 1, 50)
    # A layer has 50.3 million weights, one of the predictor 15.7; the heads have 8.4 and 2.1.
    weights = 28 * 50.33e6 + 15 * (5 * 15.73e6 + 2.10e6) + 8.39e6
    assert alone == pytest.approx(2 * weights / 4.8e12 * 1000, rel=0.01)
    assert alone == pytest.approx(1.1, abs=0.02)
    # 28 layers keep 2 x 8 x 128 numbers of a position.
    remembered = 2 * 28 * 2 * 8 * 128 * 51 / 4.8e12 * 1000
    assert talker.floor_ms(config, 65, 50) - alone == pytest.approx(64 * remembered, rel=1e-6)
    assert talker.floor_ms(official("0b6"), 1, 50) < 0.75 * alone


def test_random_talker_has_the_same_weights_in_every_dtype_and_never_samples_eos(tmp_path):
    checkpoint.write_configs(tmp_path, "0b6")
    file = tmp_path / "config.json"
    settings = json.loads(file.read_text())
    settings["talker_config"] |= {"hidden_size": 64, "num_hidden_layers": 1, "text_hidden_size": 32, "head_dim": 32}
    settings["talker_config"]["code_predictor_config"]["num_hidden_layers"] = 1
    file.write_text(json.dumps(settings))
    exact, rounded = (
        checkpoint.RandomCheckpoint(str(tmp_path), "cpu", dtype).load_talker()
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert rounded.codec_head.weight.dtype is torch.bfloat16
    for name, weight in exact.named_parameters():
        assert torch.equal(weight, rounded.get_parameter(name).float()), name
    assert exact.codec_head.weight.std() == pytest.approx(checkpoint.LOGIT_STD / 8, rel=0.01)
    assert not exact.codec_head.weight[exact.config.codec_eos_token_id].any()
