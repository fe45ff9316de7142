"""The talker against records of the official package (`tests/fixtures/official/make_talker.py`).

Same prompt, same logits to 1e-4, same greedy codes: for every task type, text layout, language, dialect and voice.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from support import talker_recipe as recipe
from support.talker import generate, reference_voice, speech_request, write_checkpoint
from syrinx_stages.contract.messages import SpeechRequest
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.talker import Talker
from syrinx_stages.model.tokenizer import Tokenizer
from syrinx_stages.talker.inputs import Prompt, embed
from syrinx_stages.talker.prompt import PromptBuilder

Loaded = tuple[Checkpoint, Talker, Tokenizer]


@pytest.fixture(scope="module")
def records() -> dict[str, np.ndarray]:
    with np.load(recipe.RECORDS) as file:
        return dict(file)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Loaded]:
    def load(directory: Path) -> Loaded:
        checkpoint = Checkpoint(str(directory))
        return checkpoint, checkpoint.load_talker(), checkpoint.load_tokenizer()

    kinds = dict.fromkeys(kind for kind, _ in recipe.CASES.values())
    return {kind: load(write_checkpoint(tmp_path_factory.mktemp("model") / "x", *kind)) for kind in kinds}


@pytest.fixture(scope="module")
def bundled() -> Loaded:
    checkpoint = Checkpoint("bundled")
    return checkpoint, checkpoint.load_talker(), checkpoint.load_tokenizer()


def case(name: str, loaded: dict[tuple[str, str], Loaded]) -> tuple[Talker, SpeechRequest, Prompt]:
    kind, fields = recipe.CASES[name]
    checkpoint, talker, tokenizer = loaded[kind]
    request = speech_request(kind[0], fields)
    with torch.inference_mode():
        prompt = PromptBuilder(tokenizer, checkpoint.config).build(request, reference_voice(kind[0], fields))
    return talker, request, prompt


def assert_near(found: torch.Tensor, expected: np.ndarray) -> None:
    """Asserts a relative error below 1e-4."""
    assert tuple(found.shape) == expected.shape
    assert np.abs(found.numpy() - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("name", recipe.CASES)
def test_prompt_equals_the_official_one(name: str, loaded: dict[tuple[str, str], Loaded], records) -> None:
    talker, _, ids = case(name, loaded)
    with torch.inference_mode():
        prompt = embed(talker, ids)
    assert_near(prompt.embeds, records[f"case/{name}/embeds"])
    assert_near(prompt.pad_row, records[f"case/{name}/pad"])
    rows = records[f"case/{name}/rows"]
    assert_near(torch.stack([prompt.text_row(frame) for frame in range(len(rows))]), rows)
    assert torch.equal(prompt.text_row(len(rows)), prompt.pad_row)


@pytest.mark.parametrize("name", recipe.CASES)
def test_greedy_codes_equal_the_official_ones(name: str, loaded: dict[tuple[str, str], Loaded], records) -> None:
    talker, request, prompt = case(name, loaded)
    expected = records[f"case/{name}/codes"]
    assert generate(talker, [prompt], [request], len(expected)).codes[0].tolist() == expected.tolist()


def logit_cases() -> list[str]:
    with np.load(recipe.RECORDS) as file:
        return [name.split("/")[1] for name in file.files if name.endswith("/logits")]


@pytest.mark.parametrize("name", logit_cases())
def test_logits_equal_the_official_ones(name: str, loaded: dict[tuple[str, str], Loaded], records) -> None:
    talker, request, prompt = case(name, loaded)
    expected, residual = records[f"case/{name}/logits"], records[f"case/{name}/residual_logits"]
    generated = generate(talker, [prompt], [request], len(expected))
    assert_near(generated.logits[0, :, : recipe.CODES], expected)
    assert_near(generated.residual_logits[0, : len(residual)], residual)


@pytest.mark.parametrize(("sentence", "layout"), [("harbour", "whole"), ("letter", "streamed")])
def test_bundled_checkpoint_equals_the_official_package(sentence: str, layout: str, bundled: Loaded, records) -> None:
    checkpoint, talker, tokenizer = bundled
    fields = {"text": recipe.BUNDLED[sentence], "voice": "us", "language": "english"}
    request = speech_request("custom_voice", fields | {"non_streaming_text": layout == "whole"})
    with torch.inference_mode():
        prompt = PromptBuilder(tokenizer, checkpoint.config).build(request)
    expected = records[f"bundled/{sentence}/{layout}"]
    codes = generate(talker, [prompt], [request], len(expected) + 1).codes[0]
    assert codes[:-1].tolist() == expected.tolist()
    assert codes[-1, 0] == talker.config.codec_eos_token_id


def test_bfloat16_logits_are_close() -> None:
    """With the bundled checkpoint in bfloat16, as on a GPU, the first logits agree with float32 to two digits."""
    request = speech_request("custom_voice", {"text": recipe.BUNDLED["letter"], "voice": "us", "language": "english"})
    scores = []
    for dtype in (torch.float32, torch.bfloat16):
        checkpoint = Checkpoint("bundled", dtype=dtype)
        talker = checkpoint.load_talker()
        with torch.inference_mode():
            prompt = PromptBuilder(checkpoint.load_tokenizer(), checkpoint.config).build(request)
        generated = generate(talker, [prompt], [request], 2)
        assert generated.logits.dtype == dtype
        scores.append(generated.logits[0, 0, : talker.config.codebook_size].float())
    assert float((scores[0] - scores[1]).abs().max()) < 0.03 * float(scores[0].abs().max())
