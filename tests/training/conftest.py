"""Shared by the tests of training."""

from pathlib import Path

import pytest
import torch

from syrinx_stages.model.config import ModelConfig
from syrinx_stages.model.talker import Talker
from syrinx_stages.model.tokenizer import Tokenizer, load_tokenizer
from training import corpus, forward, shapes, tokenizer
from training.config import SMOKE, CorpusConfig


@pytest.fixture(scope="session")
def tokenizer_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tokenizer")
    config = CorpusConfig(generated={"english": 200, "german": 100}, sentences_a_source=0)
    sentences = corpus.make(config, Path("/nowhere"), lambda line: None)
    tokenizer.train([sentence.text for sentence in sentences], SMOKE.talker.merges, directory)
    return directory


@pytest.fixture(scope="session")
def model_config(tokenizer_files: Path) -> ModelConfig:
    return shapes.model_config(SMOKE, tokenizer_files)


@pytest.fixture(scope="session")
def bpe(tokenizer_files: Path, model_config: ModelConfig) -> Tokenizer:
    return load_tokenizer(tokenizer_files, model_config)


@pytest.fixture
def talker(model_config: ModelConfig) -> Talker:
    """Weights that no two positions share by chance, and norms that are not 1."""
    made = Talker(model_config.talker_config)
    draw = torch.Generator().manual_seed(5)
    forward.initialise(made, draw)
    with torch.no_grad():
        for name, weight in made.named_parameters():
            weight.uniform_(0.5, 1.5, generator=draw) if "norm" in name else weight.mul_(3)
            if name.endswith("bias"):
                weight.normal_(0, 0.1, generator=draw)
    forward.share_norms(made)
    return made
