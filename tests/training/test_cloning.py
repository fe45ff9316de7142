"""Training of voice cloning: its references, inputs and encoders are those of the service."""

from collections.abc import Iterator
from importlib.util import find_spec
from itertools import permutations
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from msgspec import structs
from safetensors.torch import save_file
from torch import Tensor

from support import training as small
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import SpeechRequest, TaskType
from syrinx_stages.model.codec.encoder import load_codec_encoder
from syrinx_stages.model.config import ModelConfig, SpeechTokenizerConfig
from syrinx_stages.model.talker import Talker
from syrinx_stages.model.tokenizer import Tokenizer
from syrinx_stages.talker.inputs import embed
from syrinx_stages.talker.prompt import PromptBuilder, Voice
from training import checkpoint, export, speaker
from training.cli import main
from training.codec import model as codec_model
from training.codec import reference_encoder
from training.codec.loss import Audio
from training.config import BASE, BASE_SMOKE, TrainingConfig
from training.data import corpus, synthesis
from training.data.corpus import Sentence
from training.data.layout import BatchBuilder, PackedStep, Utterances
from training.data.references import choose_references, join_utterances
from training.data.synthesis import Shard
from training.judging import similarity
from training.talker import forward as talker_forward
from training.talker.train import Dataset

CPU = torch.device("cpu")
CLONING = BASE_SMOKE.cloning
SENTENCES = [Sentence("The old teacher found a bag.", "english"), Sentence("No.", "english")]
FRAMES = np.array([30, 7, 9, 8, 20, 11], np.int32)
SPEAKERS = np.array([0, 1, 0, 1, 0, 2], np.int32)
LINES = np.array([0, 1, 1, 1, 0, 1], np.int32)
TRAINING = structs.replace(BASE_SMOKE.talker, rows=2, row_positions=128)
JOIN_ALL = structs.replace(CLONING, continued_share=1.0, max_joined_frames=45)
WIDTH = BASE_SMOKE.talker.shape["hidden_size"]


@pytest.fixture(scope="session")
def base_config(tokenizer_files: Path) -> ModelConfig:
    return checkpoint.model_config(BASE_SMOKE, tokenizer_files)


@pytest.fixture
def data(bpe: Tokenizer, base_config: ModelConfig) -> Utterances:
    rng = np.random.default_rng(1)
    codes = rng.integers(BASE_SMOKE.codec.shape["codebook_size"], size=(FRAMES.sum(), 16)).astype(np.uint8)
    coded = Shard(codes, FRAMES, SPEAKERS, LINES, rng.normal(size=(6, WIDTH)).astype(np.float16))
    return Dataset(BASE_SMOKE, base_config, bpe, SENTENCES, lambda number: coded, CPU).utterances(1)


def test_references_are_other_utterances_of_the_same_speaker() -> None:
    rng = np.random.default_rng(0)
    speakers, eligible = rng.integers(5, size=200), rng.random(200) < 0.5
    chosen = choose_references(speakers, eligible, 1)
    assert (speakers[chosen] == speakers[:, None]).all()
    assert (chosen != np.arange(200)[:, None]).all()
    assert eligible[chosen].all()
    assert len(np.unique(chosen)) > 0.9 * eligible.sum()
    alone = choose_references(np.array([0, 1, 1, 2]), np.array([True, True, False, False]), 1)
    assert (alone == np.array([[0], [1], [1], [3]])).all(), "without others, its own"
    assert (choose_references(np.array([0, 0]), np.array([False, False]), 1) == np.array([[0], [1]])).all()


def parts(data: Utterances, index: int) -> tuple[list[int], list[list[int]]]:
    """Returns the tokens and the codes of an utterance."""
    token, frame = int(data.first_token[index]), int(data.first_frame[index])
    tokens = data.tokens[token : token + int(data.token_counts[index])]
    return tokens.tolist(), data.codes[frame : frame + int(data.frames[index])].tolist()


def originals(data: Utterances, joined: Utterances, index: int) -> list[int]:
    """Returns the one or two utterances of `data` that an utterance consists of, by its codes; checks its tokens."""
    tokens, codes = parts(joined, index)
    whole = [parts(data, one) for one in range(len(FRAMES))]
    candidates = [[one] for one in range(len(FRAMES))]
    candidates += [[one, two] for one, two in permutations(range(len(FRAMES)), 2)]
    (found,) = [each for each in candidates if [frame for one in each for frame in whole[one][1]] == codes]
    assert tokens == [token for one in found for token in whole[one][0]]
    return found


def test_joined_utterances_are_one_after_the_other(data: Utterances) -> None:
    """Each utterance occurs once, and the parts of a pair have the same speaker."""
    joined = join_utterances(data, SPEAKERS, JOIN_ALL)
    found = [originals(data, joined, index) for index in range(len(joined.frames))]
    assert sorted(one for each in found for one in each) == list(range(len(FRAMES)))
    pairs = [each for each in found if len(each) == 2]
    assert pairs
    assert all(SPEAKERS[one] == SPEAKERS[two] and FRAMES[one] + FRAMES[two] <= 45 for one, two in pairs)
    for each, references in zip(found, joined.references, strict=True):
        assert set(SPEAKERS[references]) == {SPEAKERS[each[0]]}
    assert len(join_utterances(data, SPEAKERS, structs.replace(CLONING, continued_share=0.0)).frames) == len(FRAMES)


def expected_inputs(
    talker: Talker, builder: PromptBuilder, voice: Voice, text: str, codes: Tensor, *, streaming: bool, after: str = ""
) -> Tensor:
    """Returns the inputs of the service. after: the text of the reference, whose codes `voice` has."""
    request = SpeechRequest(
        id="", accepted_at=0.0, text=text, task_type=TaskType.BASE, language="english", has_reference=True,
        x_vector_only=not after, reference_text=after or None, non_streaming_text=not streaming,
    )  # fmt: skip
    prompt = embed(talker, builder.build(request, voice))
    rows = torch.stack([prompt.text_row(index) for index in range(len(codes))])
    return torch.cat((prompt.embeds, talker.embed_frame(codes) + rows))


@torch.no_grad()
@pytest.mark.parametrize("streaming", [False, True])
def test_inputs_match_the_services(bpe: Tokenizer, base_config: ModelConfig, data: Utterances, streaming: bool) -> None:
    """With the speaker embedding alone, and for a sentence that continues its reference."""
    talker = Talker(base_config.talker_config)
    talker_forward.initialize(talker, torch.Generator().manual_seed(5))
    talker_forward.share_norms(talker)
    joined = join_utterances(data, SPEAKERS, JOIN_ALL)
    found = [originals(data, joined, index) for index in range(len(joined.frames))]
    pair, single = (next(index for index, each in enumerate(found) if len(each) == count) for count in (2, 1))
    placed = PackedStep(
        torch.tensor([pair, single]), torch.tensor([0, 128]), torch.tensor([streaming] * 2), torch.tensor([False] * 2)
    )
    batch = BatchBuilder(base_config, bpe.encode("\n")[0], TRAINING, CPU).build(joined, placed, None)
    inputs = talker_forward.embed(talker, batch, torch.float32)
    builder = PromptBuilder(bpe, base_config)
    for row, index in enumerate((pair, single)):
        *reference, spoken = found[index]
        codes = [torch.tensor(parts(data, one)[1]) for one in found[index]]
        embedding = joined.embeddings[joined.references[index, 0]].float()
        expected = expected_inputs(
            talker,
            builder,
            Voice(embedding, codes[0] if reference else None),
            SENTENCES[LINES[spoken]].text,
            codes[-1],
            streaming=streaming,
            after=SENTENCES[LINES[reference[0]]].text if reference else "",
        )
        torch.testing.assert_close(inputs[row, : len(expected)], expected, rtol=1e-4, atol=1e-5)
        assert (batch.sentences[row, len(expected) :] == -1).all()


@pytest.fixture
def tones() -> Audio:
    """Four speakers, eight utterances each."""
    return small.tone_audio(f"utterance number {index}" for index in range(32))


def test_speaker_encoder_learns_to_tell_speakers_apart(tmp_path: Path, tones: Audio) -> None:
    cloning = structs.replace(CLONING, speaker_steps=60, speaker_batch=16)
    trainer = speaker.Trainer(structs.replace(BASE_SMOKE, cloning=cloning), WIDTH, tmp_path, CPU)
    assert trainer.train(tones, lambda: False, lambda line: None)
    embeddings = speaker.embed(trainer.encoder, tones.samples, tones.frames()).astype(np.float32)
    embeddings -= embeddings.mean(0)
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    same = tones.speakers.numpy()[:, None] == tones.speakers.numpy()
    similarities = embeddings @ embeddings.T
    assert similarities[same].mean() > similarities[~same].mean() + 0.3


def test_embeddings_are_the_services(tmp_path: Path, tones: Audio) -> None:
    """Of the start of each utterance, in batches of equal length."""
    encoder = speaker.Trainer(BASE_SMOKE, WIDTH, tmp_path, CPU).encoder.eval()
    frames = tones.frames()
    found = speaker.embed(encoder, tones.samples, frames)
    for index in (0, 5, 31):
        used = max(length for length in speaker._LENGTHS if length <= frames[index]) * FAMILY.samples_per_frame
        first = int(tones.starts[index])
        alone = encoder.embed(tones.samples[first : first + used].float() / 32768)
        np.testing.assert_allclose(found[index], alone.numpy(), rtol=2e-3, atol=2e-3)


@pytest.fixture
def codec(tones: Audio) -> Iterator[codec_model.Codec]:
    """A codec with initialized codebooks."""
    built = codec_model.build(BASE_SMOKE.codec, CPU)
    with torch.no_grad():
        updater = codec_model.CodebookUpdater(torch.Generator().manual_seed(2), 0, first=True)
        samples = tones.samples[: 40 * FAMILY.samples_per_frame][None].float() / 32768
        codec_model.quantize(built.decoder.quantizer, built.encoder(samples), updater, parallel=True)
    yield built


def test_reference_encoder_learns_the_codecs_vectors(tmp_path: Path, tones: Audio, codec: codec_model.Codec) -> None:
    cloning = structs.replace(CLONING, encoder_steps=60)
    trainer = reference_encoder.Trainer(structs.replace(BASE_SMOKE, cloning=cloning), tmp_path, CPU)
    assert trainer.train(codec, tones, lambda: False, lambda line: None)
    lines = (tmp_path / "encoder.jsonl").read_text().splitlines()
    errors = [float(line.partition('"error": ')[2].partition(",")[0]) for line in lines]
    assert np.mean(errors[-10:]) < 0.7 * np.mean(errors[:3])


@pytest.mark.parametrize("config", [BASE_SMOKE, BASE])
def test_reference_encoder_is_transformers_mimi(
    tmp_path: Path, tones: Audio, codec: codec_model.Codec, config: TrainingConfig
) -> None:
    """The service loads what is exported, and encodes with it as training does."""
    if config is BASE:
        codec = codec_model.build(structs.replace(BASE.codec, initial_decoder=None), CPU)
        with torch.no_grad():
            for part in (codec.decoder.quantizer.rvq_first, codec.decoder.quantizer.rvq_rest):
                for book in part._books:
                    book.embedding_sum.normal_()
                    book.cluster_usage.fill_(1)
    torch.manual_seed(3)
    encoder = reference_encoder.ReferenceEncoder(config.cloning, config.codec)
    export._use_once(codec.decoder.quantizer)
    found = reference_encoder.tensors(encoder, codec.decoder.quantizer)
    tensors = {f"encoder.{name}": each.contiguous().clone() for name, each in found.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    settings = checkpoint.codec_settings(config.codec)
    settings["encoder_config"] = reference_encoder.settings(config.cloning, config.codec)
    served = load_codec_encoder(tmp_path, msgspec.convert(settings, SpeechTokenizerConfig), CPU, torch.float32)
    samples = tones.samples[: 12 * FAMILY.samples_per_frame].float() / 32768
    with torch.no_grad():
        expected = codec_model.quantize(codec.decoder.quantizer, encoder(samples[None]), parallel=True).codes[0]
    # Entries that are nearly equally near can differ by rounding.
    assert (served.encode(samples) == expected).float().mean() > 0.98


def test_similarity_compares_speech_with_references_of_all_speakers() -> None:
    vectors = np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 1, 2]]
    names = ["a", "b", "c", "a", "b", "c"]
    right = similarity.compare(vectors, vectors, vectors, names)
    assert (right.own, right.others, right.between, right.identified) == (1, 0, 0, 1)
    wrong = similarity.compare(vectors[[1, 1, 2, 0, 1, 2]], vectors, vectors, names)
    assert (wrong.lowest, wrong.espeak) == (0, 1)
    assert wrong.identified == pytest.approx(5 / 6, abs=1e-3)
    with pytest.raises(ValueError, match="speakers"):
        similarity.compare(vectors[:1], vectors[:1], vectors[:1], ["a"])


@pytest.mark.skipif(find_spec("resemblyzer") is None, reason="resemblyzer is not installed")
def test_verifier_tells_speakers_apart() -> None:
    """Those of espeak-ng, although it learned from recordings."""
    voices = ("en-us", "en-us+f1", "en-us+m3")
    audio = [[synthesis.utterance(each, voice, 158) for each in corpus.held_out("natural")[:2]] for voice in voices]
    first, second = (similarity.Verifier().embed(list(each)) for each in zip(*audio, strict=True))
    similarities = first @ second.T
    assert (similarities.argmax(1) == np.arange(3)).all()
    assert similarities.diagonal().min() > 0.7


def test_codes_need_a_trained_encoder(tmp_path: Path) -> None:
    small.prepare_run(tmp_path / "run", BASE_SMOKE)
    with pytest.raises(ValueError, match="run the step `encoder` first"):
        main(["codes", "--out", str(tmp_path / "run"), "--preset", "base-smoke", "--device", "cpu"])
