"""The GPU codec engine in Triton's interpreter, compared with the float32 decoder."""

import support.interpreter  # noqa: F401, I001 (before any kernel)

import msgspec
import numpy as np
import pytest
import torch
from support.codec_lifetimes import Lifetimes
from support.small_codec import CODES, CONFIG, Reference, random_decoder, random_frames, samples

from syrinx_stages.codec.cuda.engine import CudaCodecEngine
from syrinx_stages.codec.engine import split_frames
from syrinx_stages.codec.cuda.forward import WAVEFORM_BLOCK, ForwardPass
from syrinx_stages.codec.cuda.memory import StreamStates, Workspace, WorkspaceSize, split_k_workspace, workspace_size
from syrinx_stages.codec.cuda.tiles import Tile
from syrinx_stages.codec.cuda.weights import CodecWeights, Conv
from syrinx_stages.kernels.gpu import Gpu
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.codec.decoder import CodecDecoder

CPU = torch.device("cpu")
TOLERANCE = 2e-4
"""Of samples in -1..1: sums in a different order, and rounding to 16 bits."""


@pytest.fixture(scope="module")
def decoder() -> CodecDecoder:
    return random_decoder()


@pytest.fixture
def engine(decoder: CodecDecoder) -> CudaCodecEngine:
    """Returns an engine whose memory is filled with NaN, so that a read of unwritten memory shows."""
    engine = CudaCodecEngine(decoder, 3, CPU, torch.float32)
    poison(engine)
    return engine


def poison(engine: CudaCodecEngine) -> None:
    engine.states.tails.fill_(torch.nan)
    engine.states.kv_caches.fill_(torch.nan)
    poison_workspace(engine)


def poison_workspace(engine: CudaCodecEngine) -> None:
    engine.split_k.partial_sums.fill_(torch.nan)
    if engine.workspace:
        engine.workspace.activations.fill_(torch.nan)


def decode(engine: CudaCodecEngine, codes: list[bytes]) -> np.ndarray:
    """Returns the samples of a new request's only call."""
    engine.open("a")
    return samples(engine.read(engine.launch(["a"], [codes], (1, len(codes))))[0])


def test_each_request_decodes_as_if_it_were_alone(decoder: CodecDecoder, engine: CudaCodecEngine) -> None:
    """A call reads only its own workspace and the states of its streams, which a capture does not change."""
    # With this seed, padding rows, in reused host buffers, run between two calls of the stream in their slot, 0.
    lifetimes = Lifetimes(decoder, engine, resident=3, seed=73, before_launch=lambda: poison_workspace(engine))
    engine.capture((2, 2))
    lifetimes.run(calls=3, rows=3, frames=3, shapes=[(2, 2)])
    engine.capture((3, 3))
    lifetimes.run(calls=3, rows=3, frames=3, shapes=[(2, 2), (3, 3)])
    assert len(lifetimes.errors) > 8
    assert max(lifetimes.errors) < TOLERANCE


def test_a_reopened_request_starts_anew_in_its_slot(engine: CudaCodecEngine) -> None:
    engine.open("a")
    slot, _ = engine.states.advance("a", 2)
    engine.open("a")
    assert engine.states.advance("a", 1) == (slot, 0)


def test_captures_share_the_largest_workspace_until_they_are_freed(engine: CudaCodecEngine) -> None:
    engine.capture((1, 1))
    small = engine.workspace
    engine.capture((2, 2))
    large = engine.workspace
    assert engine.captured == {(1, 1), (2, 2)} == engine.capture_costs.keys()
    assert engine.capture_costs[2, 2].bytes > engine.capture_costs[1, 1].bytes > 0
    assert engine.get((1, 1))[1].workspace is small is not large
    engine.free_shapes([(2, 2), (9, 9)])
    assert engine.captured == {(1, 1)}
    assert engine.capture_costs.keys() == {(1, 1), (2, 2)}
    assert engine.workspace is small


def test_warm_up_measures_the_cost_of_a_capture(engine: CudaCodecEngine) -> None:
    engine.warm_up()
    assert engine.capture_costs.keys() == {(1, 1)}
    assert not engine.captured


def test_split_k_and_separate_residual_units_do_not_change_a_call_longer_than_the_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def conv_tile(conv: Conv, num_positions: int, gpu: Gpu) -> Tile:
        steps = conv.taps * conv.in_channels // 16
        split_k = next((split_k for split_k in (3, 2) if steps % split_k == 0), 1)
        return Tile(16, 16, 16, 1 if conv.norm or conv.gated else split_k)

    monkeypatch.setattr("syrinx_stages.codec.cuda.forward.conv_tile", conv_tile)
    monkeypatch.setattr("syrinx_stages.codec.cuda.forward.residual_unit_tile", lambda conv, num_positions, gpu: None)
    decoder = random_decoder(msgspec.structs.replace(CONFIG, sliding_window=2))
    engine, codes = CudaCodecEngine(decoder, 1, CPU, torch.float32), random_frames(3, seed=1)
    np.testing.assert_allclose(decode(engine, codes), Reference(decoder).decode(codes), atol=TOLERANCE)
    assert not engine.split_k.counters.any()


def test_half_precision_is_close(decoder: CodecDecoder) -> None:
    engine, codes = CudaCodecEngine(decoder, 1, CPU, torch.float16), random_frames(2, seed=1)
    actual, expected = decode(engine, codes), Reference(decoder).decode(codes)
    assert np.linalg.norm(actual - expected) < 0.01 * np.linalg.norm(expected)


def test_split_refuses_codes_outside_the_codebook(engine: CudaCodecEngine) -> None:
    with pytest.raises(ValueError, match=f"code {CODES} is not within 0 to {CODES - 1}"):
        split_frames(np.full(16, CODES, "<i2").tobytes(), engine.codebook_size)


@pytest.mark.night
def test_the_bundled_voice() -> None:
    decoder = Checkpoint("bundled").load_codec_decoder()
    engine = CudaCodecEngine(decoder, 1, CPU, torch.float32)
    codes = random_frames(1, seed=1, size=decoder.config.codebook_size)
    np.testing.assert_allclose(decode(engine, codes), Reference(decoder).decode(codes), atol=TOLERANCE)


def test_a_forward_pass_fits_in_a_workspace_of_its_size(decoder: CodecDecoder) -> None:
    weights = CodecWeights(decoder, CPU, torch.float32)
    states = StreamStates(weights, 1, 3)
    size = workspace_size(weights, states.layout, 2, 1)
    workspace = Workspace(size, split_k_workspace(CPU), torch.float32, CPU)
    ForwardPass(weights, states, workspace, 2, 1)()
    assert sum(tensor.nbytes for tensor in (workspace.activations, workspace.upload, workspace.pcm)) == size.bytes(
        torch.float32
    )
    assert size.fits_in(size) and not WorkspaceSize(size.activations + 1, 0, 0).fits_in(size)


def test_what_fills_a_shape_is_not_computed(decoder: CodecDecoder, engine: CudaCodecEngine) -> None:
    """Blocks of padding rows, and of a row's frames beyond its own, end before they compute."""
    codes, shape = random_frames(1, seed=2), (3, 4)
    _, forward = engine.get(shape)
    forward.pcm.fill_(12345)
    engine.open("a")
    result = engine.launch(["a"], [codes], shape)
    np.testing.assert_allclose(samples(engine.read(result)[0]), Reference(decoder).decode(codes), atol=TOLERANCE)
    own, block = decoder.config.samples_per_frame, WAVEFORM_BLOCK
    assert (result.pcm.flatten()[-(-own // block) * block :] == 12345).all()
