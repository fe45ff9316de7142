"""Fixtures for the training tests."""

from pathlib import Path

import pytest
import torch

from syrinx_stages.model.config import ModelConfig
from syrinx_stages.model.talker import Talker
from syrinx_stages.model.tokenizer import Tokenizer, load_tokenizer
from training import checkpoint
from training.config import SMOKE, CorpusConfig
from training.data import corpus
from training.talker import forward as talker_forward


@pytest.fixture(scope="session")
def tokenizer_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tokenizer")
    config = CorpusConfig(generated={"english": 200, "german": 100}, max_sentences_per_source=0)
    sentences = corpus.build(config, Path("/nowhere"), lambda line: None)
    checkpoint.train_tokenizer([sentence.text for sentence in sentences], SMOKE.talker.merges, directory)
    return directory


@pytest.fixture(scope="session")
def model_config(tokenizer_files: Path) -> ModelConfig:
    return checkpoint.model_config(SMOKE, tokenizer_files)


@pytest.fixture(scope="session")
def bpe(tokenizer_files: Path, model_config: ModelConfig) -> Tokenizer:
    return load_tokenizer(tokenizer_files, model_config)


@pytest.fixture
def talker(model_config: ModelConfig) -> Talker:
    """A talker with norms other than 1 and weights large enough to tell positions apart."""
    talker = Talker(model_config.talker_config)
    generator = torch.Generator().manual_seed(5)
    talker_forward.initialize(talker, generator)
    with torch.no_grad():
        for name, weight in talker.named_parameters():
            weight.uniform_(0.5, 1.5, generator=generator) if "norm" in name else weight.mul_(3)
            if name.endswith("bias"):
                weight.normal_(0, 0.1, generator=generator)
    talker_forward.share_norms(talker)
    return talker
