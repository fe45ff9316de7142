"""The talker on a CPU with widths that no kernel likes: rows stay independent of their batch."""

from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from support import small_talker
from syrinx_stages.model.config import ModelConfig
from syrinx_stages.model.talker import KVCache, Talker

ROWS = 5
LENGTHS = (3, 9, 4, 40, 17)


def random_talker(talker: dict[str, Any], predictor: dict[str, Any]) -> Talker:
    settings = small_talker.settings(**talker)
    settings["talker_config"]["code_predictor_config"] |= predictor
    module = Talker(msgspec.convert(settings, ModelConfig).talker_config).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for weight in module.parameters():
        weight.normal_(0, 0.3, generator=generator)
    return module


def prefilled(talker: Talker, prompts: list[Tensor]) -> list[KVCache]:
    caches = [talker.new_cache() for _ in prompts]
    for prompt, cache in zip(prompts, caches, strict=True):
        talker.prefill(prompt, cache)
    return caches


@pytest.mark.parametrize(
    ("talker", "predictor"),
    [
        ({"head_dim": 18, "intermediate_size": 17}, {"head_dim": 6, "hidden_size": 9, "intermediate_size": 100}),
        ({"head_dim": 18, "hidden_size": 36}, {"head_dim": 6, "hidden_size": 36}),
        ({"head_dim": 10, "hidden_size": 50, "text_hidden_size": 7}, {"head_dim": 2, "hidden_size": 33}),
        ({"head_dim": 10, "hidden_size": 33, "intermediate_size": 30}, {"head_dim": 8, "intermediate_size": 17}),
    ],
    ids=str,
)
@torch.inference_mode()
def test_rows_do_not_depend_on_the_batch(talker: dict[str, Any], predictor: dict[str, Any]) -> None:
    module = random_talker(talker, predictor)
    width, generator = module.config.hidden_size, torch.Generator().manual_seed(1)
    prompts = [torch.randn(length, width, generator=generator) for length in LENGTHS]
    inputs = torch.randn(ROWS, width, generator=generator)
    together = module.decode(inputs, prefilled(module, prompts))
    alone = [module.decode(inputs[row : row + 1], prefilled(module, prompts[row : row + 1])) for row in range(ROWS)]
    assert torch.equal(together, torch.cat(alone))
    scores: list[Tensor] = []

    def sample(logits: Tensor, group: int) -> Tensor:
        scores.append(logits.clone())
        return logits.argmax(-1)

    code0 = torch.arange(ROWS)
    module.predict(together, code0, sample)
    batch = torch.stack(scores, 1)
    for row in range(ROWS):
        scores.clear()
        module.predict(together[row : row + 1], code0[row : row + 1], sample)
        assert torch.equal(torch.stack(scores, 1), batch[row : row + 1]), row
