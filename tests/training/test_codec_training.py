"""Codec training: the encoder is causal, and the forward pass matches the streaming decoder."""

import pytest
import torch
from torch import Tensor

from support import training as small
from syrinx_stages.contract.family import FAMILY
from training.codec import forward as codec_forward
from training.codec import train as codecs
from training.codec.model import LOOKAHEAD, CodebookUpdater, Codec, build, quantize
from training.config import SMOKE
from training.data.corpus import Sentence
from training.data.synthesis import Shard
from training.run import seeded_generator

CPU = torch.device("cpu")
FRAMES = 7


@pytest.fixture
def codec() -> Codec:
    """A codec with initialized codebooks, and with weights and scales large enough to matter."""
    codec = build(SMOKE.codec, CPU)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, weight in codec.decoder.named_parameters():
            if name.endswith(("layer_scale.scale", "gamma")):
                weight.uniform_(0.1, 0.4, generator=generator)
            elif "norm" in name:
                weight.uniform_(0.5, 1.5, generator=generator)
            elif name.endswith(("bias", "alpha", "beta")):
                weight.normal_(0, 0.1, generator=generator)
    quantize(codec.decoder.quantizer, codec.encoder(audio(3)), CodebookUpdater(generator, 0, first=True))
    return codec


def audio(seed: int, frames: int = FRAMES) -> Tensor:
    return torch.randn(2, frames * FAMILY.samples_per_frame, generator=torch.Generator().manual_seed(seed)) * 0.2


@pytest.mark.parametrize("frame", range(1, FRAMES))
def test_codes_do_not_depend_on_the_future(codec: Codec, frame: int) -> None:
    """Otherwise the talker would read the future from the codes and ignore the text."""
    samples, other = audio(0), audio(1)
    changed = samples.clone()
    known = frame * FAMILY.samples_per_frame + LOOKAHEAD
    changed[:, known:] = other[:, known:]
    vectors, after = codec.encoder(samples), codec.encoder(changed)
    torch.testing.assert_close(after[..., :frame], vectors[..., :frame], rtol=0, atol=1e-5)
    before, later = (quantize(codec.decoder.quantizer, each).codes[:, :frame] for each in (vectors, after))
    assert (before == later).all()
    assert (after[..., frame:] - vectors[..., frame:]).abs().max() > 1e-3


@torch.no_grad()
def test_forward_pass_matches_the_streaming_decoder(codec: Codec) -> None:
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(SMOKE.codec.shape["codebook_size"], (2, FRAMES, 16), generator=generator)
    decoder = codec.decoder.eval()
    vectors = decoder.quantizer(codes).transpose(1, 2)
    trained = codec_forward.waveform(decoder, codec_forward.hidden_states(decoder, vectors)).clamp(-1, 1)
    state, parts = decoder.new_state(2), []
    for chunk in codes.split(2, 1):
        pcm, state = decoder(chunk, torch.full((2,), chunk.shape[1]), state)
        parts.append(pcm)
    torch.testing.assert_close(torch.cat(parts, 1), trained, rtol=1e-3, atol=1e-4)


def test_quantized_vectors_match_the_decoders_lookup(codec: Codec) -> None:
    codec.decoder.quantizer._values = None
    vectors = codec.encoder(audio(0))
    generator = torch.Generator().manual_seed(0)
    before = codec.decoder.quantizer(quantize(codec.decoder.quantizer, vectors).codes).transpose(1, 2)
    found = quantize(codec.decoder.quantizer, vectors, CodebookUpdater(generator, 1, first=False))
    assert found.vectors.shape == before.shape and found.codes.shape == (2, FRAMES, 16)
    assert found.commitment > 0
    (found.vectors.square().sum() + found.commitment).backward()
    assert codec.encoder.out.weight.grad is not None


def test_codebook_updates_reduce_the_error(codec: Codec) -> None:
    """On the same vectors again and again."""
    vectors = codec.encoder(audio(4, 40)).detach()
    generator = seeded_generator(CPU, 1)
    updaters = [CodebookUpdater(generator, step, first=False) for step in range(60)]
    errors = [float(quantize(codec.decoder.quantizer, vectors, each).commitment.detach()) for each in updaters]
    assert sum(errors[-10:]) < 0.9 * sum(errors[:10])


def encode(codec: Codec, shard: Shard) -> Tensor:
    return codecs.encode(codec, torch.from_numpy(shard.content), shard.frames)


def test_utterances_are_encoded_independently(codec: Codec) -> None:
    """Other utterances in the batch make no difference."""
    texts = ["a longer sentence", "short", "another one", "short"]
    sentences = [Sentence(text, "english") for text in texts]
    lines = torch.arange(4).numpy().astype("int32")
    shard = small.tone_shard(sentences, lines)
    codes = encode(codec, shard)
    assert len(codes) == shard.frames.sum()
    first = 0
    for line in range(4):
        alone = encode(codec, small.tone_shard(sentences, lines[line : line + 1]))
        # Untrained codebooks have nearly equal entries, so rounding can decide between them.
        assert (codes[first : first + len(alone)] == alone).float().mean() > 0.9
        first += len(alone)
