"""The model family's facts agree with the messages and with the bundled checkpoint."""

from __future__ import annotations

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import TaskType
from syrinx_stages.model.config import read_model_config, read_speech_tokenizer_config
from syrinx_stages.model.describe import checkpoint_directory


def test_task_types_are_those_of_the_messages() -> None:
    assert set(FAMILY.task_types) == set(TaskType)


def test_bundled_checkpoint_belongs_to_the_family() -> None:
    directory = checkpoint_directory("bundled")
    config, tokenizer = read_model_config(directory), read_speech_tokenizer_config(directory)
    assert config.model_type == FAMILY.name
    assert config.talker_config.num_code_groups == FAMILY.code_groups
    assert tokenizer.output_sample_rate == FAMILY.sample_rate
    assert tokenizer.decoder_config.samples_per_frame == FAMILY.samples_per_frame
