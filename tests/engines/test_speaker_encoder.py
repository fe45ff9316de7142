"""Mel spectrogram and x-vector against records of the official package (`tests/fixtures/official/make_codec.py`)."""

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from support import official_codec
from support.official_codec import OFFICIAL, relative_error
from syrinx_stages.model.config import SpeakerEncoderConfig
from syrinx_stages.model.speaker_encoder import MIN_SAMPLES, SpeakerEncoder, mel_spectrogram

CONFIG = SpeakerEncoderConfig(
    enc_dim=24,
    enc_channels=(32, 32, 32, 32, 96),
    enc_attention_channels=16,
    enc_res2net_scale=4,
    enc_se_channels=12,
)


@pytest.fixture(scope="module")
def expected() -> dict[str, Tensor]:
    return official_codec.expected()


@pytest.fixture(scope="module")
def samples(expected: dict[str, Tensor]) -> Tensor:
    return expected["encoder.samples.0"] / 32768


@pytest.fixture
def encoder() -> SpeakerEncoder:
    encoder = SpeakerEncoder(CONFIG)
    tensors = load_file(OFFICIAL / "speaker.safetensors")
    encoder.load_state_dict({name.removeprefix("speaker_encoder."): tensor for name, tensor in tensors.items()})
    return encoder.eval()


def test_mel_spectrogram_equals_the_official_one(samples: Tensor, expected: dict[str, Tensor]) -> None:
    mel = mel_spectrogram(samples[None], 128)[0]
    assert mel.shape == (len(samples) // 256, 128)
    assert relative_error(mel[::8], expected["speaker.mel"]) < 1e-5


def test_x_vector_equals_the_official_one(
    encoder: SpeakerEncoder, samples: Tensor, expected: dict[str, Tensor]
) -> None:
    assert relative_error(encoder.embed(samples), expected["speaker.embedding"]) < 1e-4


def test_every_tensor_has_an_effect(encoder: SpeakerEncoder, samples: Tensor) -> None:
    before = encoder.embed(samples)
    weights = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    for name, tensor in weights.items():
        encoder.load_state_dict(weights | {name: 1.5 * tensor + 0.1})
        assert not torch.equal(encoder.embed(samples), before), name


@pytest.mark.parametrize("shape", [(MIN_SAMPLES - 1,), (0,), (1, 24_000)])
def test_short_audio_is_refused(encoder: SpeakerEncoder, shape: tuple[int, ...]) -> None:
    assert encoder.embed(torch.zeros(MIN_SAMPLES)).shape == (24,)
    with pytest.raises(ValueError, match=r"reference audio: shape .* must be \[N\], N at least 9600"):
        encoder.embed(torch.zeros(shape))
