"""The talker's training inputs and logits match those of the service."""

from itertools import cycle

import numpy as np
import pytest
import torch
from msgspec import structs
from torch import Tensor

from syrinx_stages.contract.messages import SpeechRequest, TaskType
from syrinx_stages.model.config import ModelConfig
from syrinx_stages.model.talker import Talker
from syrinx_stages.model.tokenizer import Tokenizer
from syrinx_stages.talker.inputs import EmbeddedPrompt, embed
from syrinx_stages.talker.prompt import PromptBuilder
from training.config import SMOKE
from training.data.corpus import Sentence
from training.data.layout import IGNORED, Batch, BatchBuilder, PackedStep, Utterances, lengths, pack
from training.data.synthesis import Shard
from training.run import seeded_generator
from training.talker import forward as talker_forward
from training.talker.train import Dataset

CPU = torch.device("cpu")
SENTENCES = [
    Sentence("The old teacher found a bag.", "english"),
    Sentence("No.", "english"),
    Sentence("Call 555-0142 at 10:30, please!", "english"),
    Sentence("Ja, Anna.", "german"),
    Sentence("Über Nacht.", "german"),
    Sentence("Schön, daß Sie da sind!", "german"),
]
FRAMES = [30, 5, 41, 12, 9, 17]
LAYOUTS = [(False, False), (False, True), (True, False), (True, True), (False, False), (True, False)]
"""(streaming text, auto_language language) of each sentence."""
REQUEST = SpeechRequest(id="", accepted_at=0.0, text="", task_type=TaskType.CUSTOM_VOICE)
TRAINING = structs.replace(SMOKE.talker, rows=3, row_positions=128)


Served = list[tuple[EmbeddedPrompt, Tensor, int]]


@pytest.fixture
def codes() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(SMOKE.codec.shape["codebook_size"], (count, 16), generator=generator) for count in FRAMES]


@pytest.fixture
def data(bpe: Tokenizer, model_config: ModelConfig, codes: list[Tensor]) -> Utterances:
    numbers = np.arange(len(SENTENCES), dtype=np.int32)
    coded = Shard(torch.cat(codes).to(torch.uint8).numpy(), np.array(FRAMES, np.int32), numbers % 4, numbers)
    return Dataset(SMOKE, model_config, bpe, SENTENCES, lambda number: coded, CPU).utterances(1)


@pytest.fixture
def builder(bpe: Tokenizer, model_config: ModelConfig) -> BatchBuilder:
    return BatchBuilder(model_config, bpe.encode("\n")[0], TRAINING, CPU)


@pytest.fixture
def placed(data: Utterances) -> PackedStep:
    streaming, auto_language = torch.tensor(LAYOUTS).T
    return PackedStep(torch.arange(6), torch.tensor([0, 100, 128, 210, 256, 330]), streaming, auto_language)


@pytest.fixture
def batch(builder: BatchBuilder, data: Utterances, placed: PackedStep) -> Batch:
    return builder.build(data, placed, None)


@pytest.fixture
def served(
    talker: Talker, bpe: Tokenizer, model_config: ModelConfig, placed: PackedStep, codes: list[Tensor]
) -> Served:
    """The service's prompt of each sentence, its frames and where it is placed."""
    voices = list(model_config.talker_config.speakers)
    builder = PromptBuilder(bpe, model_config)
    requests = [
        structs.replace(
            REQUEST,
            text=sentence.text,
            voice=voice,
            language="auto" if auto_language else sentence.language,
            non_streaming_text=not streaming,
        )
        for sentence, voice, (streaming, auto_language) in zip(SENTENCES, cycle(voices), LAYOUTS, strict=False)
    ]
    prompts = [embed(talker, builder.build(request)) for request in requests]
    return list(zip(prompts, codes, placed.starts.tolist(), strict=True))


@torch.no_grad()
def test_inputs_match_the_services_prompts_and_frames(
    talker: Talker, model_config: ModelConfig, batch: Batch, served: Served
) -> None:
    inputs = talker_forward.embed(talker, batch, torch.float32).flatten(0, 1)
    covered = torch.zeros(len(inputs), dtype=torch.bool)
    for prompt, frames, start in served:
        rows = torch.stack([prompt.text_row(index) for index in range(len(frames))])
        expected = torch.cat((prompt.embeds, talker.embed_frame(frames) + rows))
        span = slice(start, start + len(expected))
        torch.testing.assert_close(inputs[span], expected, rtol=1e-4, atol=1e-5)
        labels = batch.labels.flatten()[span]
        first = len(prompt.embeds) - 1
        assert (labels[:first] == IGNORED).all()
        assert labels[first:-1].tolist() == frames[:, 0].tolist()
        assert labels[-1] == model_config.talker_config.codec_eos_token_id
        covered[span] = True
    assert (batch.labels.flatten()[~covered] == IGNORED).all()
    assert (batch.sentences.flatten()[~covered] == -1).all()


@torch.no_grad()
def test_logits_match_prefill_and_decode(talker: Talker, batch: Batch, served: Served) -> None:
    inputs = talker_forward.embed(talker, batch, torch.float32)
    states = talker_forward.talker_states(talker, inputs, batch).flatten(0, 1)
    for prompt, frames, start in served:
        cache = talker.new_cache()
        hidden = [talker.prefill(prompt.embeds, cache)]
        for index, frame in enumerate(frames):
            hidden.append(talker.decode(talker.embed_frame(frame[None]) + prompt.text_row(index), [cache])[0])
        first = start + len(prompt.embeds) - 1
        logits = talker.logits(states[first : first + len(hidden)])
        torch.testing.assert_close(logits, talker.logits(torch.stack(hidden)), rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_predictor_logits_match_the_services(talker: Talker, batch: Batch) -> None:
    states = talker_forward.talker_states(talker, talker_forward.embed(talker, batch, torch.float32), batch)
    hidden, frames = states.flatten(0, 1)[batch.predicted], batch.predicted_codes
    sampled: list[Tensor] = []

    def sample(logits: Tensor, group: int) -> Tensor:
        sampled.append(logits)
        return frames[:, group]

    talker.predict(hidden, frames[:, 0], sample)
    logits = talker_forward.predictor_logits(talker, hidden, batch.predicted_inputs)
    torch.testing.assert_close(logits, torch.stack(sampled), rtol=1e-3, atol=1e-3)


def test_only_the_first_heads_norm_is_trained(talker: Talker, batch: Batch) -> None:
    """A checkpoint has one norm for all heads."""
    found = talker_forward.losses(talker, talker_forward.embed(talker, batch, torch.float32), batch)
    (found.code0 + found.rest).backward()
    for name, weight in talker.named_parameters():
        assert weight.grad is not None, name
        if "qk_norm" in name:
            assert (weight.grad.abs().sum(1) > 0).nonzero().flatten().tolist() == [0, len(weight) - 1]


def test_noise_depends_on_the_step(builder: BatchBuilder, data: Utterances, placed: PackedStep, batch: Batch) -> None:
    noisy = [builder.build(data, placed, seeded_generator(CPU, TRAINING.seed, step)) for step in (3, 3, 4)]
    assert torch.equal(noisy[0].frames, noisy[1].frames)
    assert not torch.equal(noisy[0].frames, noisy[2].frames)
    share = (noisy[0].frames != batch.frames)[batch.is_frame].float().mean()
    assert 0.01 < share < 0.2
    assert torch.equal(noisy[0].labels, batch.labels)


def test_every_sentence_is_packed_once_within_a_row() -> None:
    sizes = np.random.default_rng(0).integers(5, 120, 500).tolist()
    steps = list(pack(sizes, range(500), rows=4, width=128, keep_partial=True))
    assert sorted(sentence for step in steps for _, sentence in step) == list(range(500))
    for step in steps:
        starts = [start for start, _ in step]
        ends = [start + sizes[sentence] for start, sentence in step]
        assert all(end <= following for end, following in zip(ends, [*starts[1:], 512], strict=True))
        assert all(start // 128 == (end - 1) // 128 for start, end in zip(starts, ends, strict=True))
    full = [sum(sizes[sentence] for _, sentence in step) for step in steps[:-2]]
    assert np.mean(full) > 0.85 * 4 * 128


def test_lengths_match_the_layouts(batch: Batch, data: Utterances) -> None:
    streaming, auto_language = np.array(LAYOUTS).astype(np.int64).T
    expected = lengths(data.token_counts.numpy(), data.frames.numpy(), streaming, auto_language)
    found = [int((batch.sentences == sentence).sum()) for sentence in range(len(SENTENCES))]
    assert found == expected.tolist()
