"""The codec decoder against records of the official package (`tests/fixtures/official/make_codec.py`)."""

import pytest
import torch
from torch import Tensor

from support import official_codec
from support.official_codec import VOICE, decode, load_decoder, relative_error
from syrinx_stages.model.codec.decoder import CodecDecoder

FRAME = 1920


@pytest.fixture(scope="module")
def expected() -> dict[str, Tensor]:
    return official_codec.expected()


@pytest.fixture(scope="module")
def decoder() -> CodecDecoder:
    return load_decoder()


def test_waveform_equals_the_official_one(decoder: CodecDecoder, expected: dict[str, Tensor]) -> None:
    pcm = decode(decoder, expected["decoder.codes"])
    assert pcm.shape == (2, 60 * FRAME)
    assert pcm.abs().max() == 1  # Parts of the record are clipped, so clipping is compared too.
    assert relative_error(pcm[:, : 2 * FRAME], expected["decoder.pcm.first"]) < 1e-4
    assert relative_error(pcm[:, -4 * FRAME :], expected["decoder.pcm.last"]) < 1e-4


def test_bundled_decoder_equals_the_official_one(expected: dict[str, Tensor]) -> None:
    pcm = decode(load_decoder(VOICE), expected["voice.codes"])
    assert relative_error(pcm[:, -4 * FRAME :], expected["voice.pcm.last"]) < 1e-5


def test_every_tensor_has_an_effect(decoder: CodecDecoder, expected: dict[str, Tensor]) -> None:
    codes = expected["decoder.codes"][:1, :2]  # The second frame attends to the first.
    before = decode(decoder, codes)
    weights = {name: tensor.clone() for name, tensor in decoder.state_dict().items()}
    unheard = set()
    for name, tensor in weights.items():
        decoder.load_state_dict(weights | {name: 1.5 * tensor + 0.1})
        if torch.equal(decode(decoder, codes), before):
            unheard.add(name)
    decoder.load_state_dict(weights)
    assert torch.equal(decode(decoder, codes), before)
    # These projections belong to the encoder.
    assert unheard == {"quantizer.rvq_first.input_proj.weight", "quantizer.rvq_rest.input_proj.weight"}


def test_unused_codebook_entries_do_not_divide_by_zero(decoder: CodecDecoder, expected: dict[str, Tensor]) -> None:
    weights = {name: tensor.clone() for name, tensor in decoder.state_dict().items()}
    book = "quantizer.rvq_first.vq.layers.0._codebook."
    unused = {book + name: torch.zeros_like(weights[book + name]) for name in ("cluster_usage", "embedding_sum")}
    decoder.load_state_dict(weights | unused)
    pcm = decode(decoder, expected["decoder.codes"][:, :2])
    decoder.load_state_dict(weights)
    assert pcm.isfinite().all()
