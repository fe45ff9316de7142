"""The codec in training: what its codes may know, and that it computes what the streaming decoder will."""

import pytest
import torch
from torch import Tensor

from support import training as small
from syrinx_stages.contract.family import FAMILY
from training import codec as codecs
from training import decoder as decoding
from training.codec_model import Codec, build
from training.config import SMOKE
from training.encoder import LOOK_AHEAD
from training.quantizer import kmeans, nearest
from training.run import generator
from training.sentence import Sentence
from training.synthesis import Shard

CPU = torch.device("cpu")
FRAMES = 7


@pytest.fixture
def codec() -> Codec:
    """Codebooks that are begun, and weights and scales that are heard."""
    made = build(SMOKE.codec, CPU)
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, weight in made.decoder.named_parameters():
            if name.endswith(("layer_scale.scale", "gamma")):
                weight.uniform_(0.1, 0.4, generator=draw)
            elif "norm" in name:
                weight.uniform_(0.5, 1.5, generator=draw)
            elif name.endswith(("bias", "alpha", "beta")):
                weight.normal_(0, 0.1, generator=draw)
    made.quantizer(made.encoder(audio(3)), draw, first=True, step=0)
    return made


def audio(seed: int, frames: int = FRAMES) -> Tensor:
    return torch.randn(2, frames * FAMILY.samples_per_frame, generator=torch.Generator().manual_seed(seed)) * 0.2


@pytest.mark.parametrize("frame", range(1, FRAMES))
def test_codes_do_not_know_what_follows(codec: Codec, frame: int) -> None:
    """Or the talker learns to read the future from them, and nothing from the text."""
    heard, other = audio(0), audio(1)
    changed = heard.clone()
    known = frame * FAMILY.samples_per_frame + LOOK_AHEAD
    changed[:, known:] = other[:, known:]
    vectors, after = codec.encoder(heard), codec.encoder(changed)
    torch.testing.assert_close(after[..., :frame], vectors[..., :frame], rtol=0, atol=1e-5)
    same = codec.quantizer.encode(vectors)[:, :frame] == codec.quantizer.encode(after)[:, :frame]
    assert same.all()
    assert (after[..., frame:] - vectors[..., frame:]).abs().max() > 1e-3


def test_codes_hear_their_own_frame(codec: Codec) -> None:
    """And not a frame before it alone."""
    heard = audio(0)
    changed = heard.clone()
    changed[:, -FAMILY.samples_per_frame + LOOK_AHEAD :] = 0
    assert (codec.encoder(changed) - codec.encoder(heard)).abs().amax((0, 1))[-1] > 1e-3


@torch.no_grad()
def test_what_is_trained_is_what_streams(codec: Codec) -> None:
    codes = torch.randint(SMOKE.codec.codebook_size, (2, FRAMES, 16), generator=torch.Generator().manual_seed(1))
    decoder = codec.decoder.eval()
    vectors = decoder.quantizer(codes).transpose(1, 2)
    trained = decoding.waveform(decoder, decoding.hidden(decoder, vectors)).clamp(-1, 1)
    state, parts = decoder.new_state(2), []
    for chunk in codes.split(2, 1):
        pcm, state = decoder(chunk, torch.full((2,), chunk.shape[1]), state)
        parts.append(pcm)
    torch.testing.assert_close(torch.cat(parts, 1), trained, rtol=1e-3, atol=1e-4)


def test_quantised_vectors_are_what_the_decoder_looks_up(codec: Codec) -> None:
    codec.decoder.quantizer._values = None
    vectors = codec.encoder(audio(0))
    draw = torch.Generator().manual_seed(0)
    before = codec.decoder.quantizer(codec.quantizer.encode(vectors)).transpose(1, 2)
    found = codec.quantizer(vectors, draw, first=False, step=1)
    whole = (found.codes == codec.quantizer.encode(vectors)).all()
    assert found.vectors.shape == before.shape and found.codes.shape == (2, FRAMES, 16)
    assert found.commitment > 0 and whole is not None
    (found.vectors.square().sum() + found.commitment).backward()
    assert codec.encoder.out.weight.grad is not None


def test_codebooks_follow_what_they_see(codec: Codec) -> None:
    """The same vectors again and again: what is left of them falls."""
    vectors = codec.encoder(audio(4, 40)).detach()
    draw = generator(CPU, 1)
    errors = [float(codec.quantizer(vectors, draw, first=False, step=step).commitment.detach()) for step in range(60)]
    assert sum(errors[-10:]) < 0.9 * sum(errors[:10])


def test_centres_are_where_points_are() -> None:
    points = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]]).repeat(20, 1)
    centres = kmeans(points, 3, torch.Generator().manual_seed(0))
    assert nearest(points, centres).unique().numel() >= 2
    assert (points[:, None] - centres).square().sum(2).amin(1).mean() < 50


def encode(codec: Codec, shard: Shard) -> Tensor:
    return codecs.encode(codec, torch.from_numpy(shard.audio), shard.frames)


def test_an_utterance_is_encoded_by_itself(codec: Codec) -> None:
    """Not beside others, of whatever length."""
    texts = ["a longer sentence", "short", "another one", "short"]
    sentences = [Sentence(text, "english") for text in texts]
    lines = torch.arange(4).numpy().astype("int32")
    shard = small.tone_shard(sentences, lines)
    codes = encode(codec, shard)
    assert len(codes) == shard.frames.sum()
    first = 0
    for line in range(4):
        alone = encode(codec, small.tone_shard(sentences, lines[line : line + 1]))
        # Untrained codebooks have entries that are nearly the same: a last bit decides between them.
        assert (codes[first : first + len(alone)] == alone).float().mean() > 0.9
        first += len(alone)
