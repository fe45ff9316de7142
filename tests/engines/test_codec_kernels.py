"""The GPU codec engine in Triton's interpreter, compared with the float32 decoder."""

import support.interpreter  # noqa: F401, I001 (before any kernel)

import numpy as np
import pytest
import torch
from support.codec_lifetimes import Lifetimes
from support.small_codec import CODES, Reference, random_decoder, random_frames, samples

from syrinx_stages.codec.cuda_engine import CudaCodecEngine
from syrinx_stages.codec.engine import split_frames
from syrinx_stages.codec.forward import ForwardPass
from syrinx_stages.codec.memory import StreamStates, Workspace, WorkspaceSize, split_k_workspace, workspace_size
from syrinx_stages.codec.tiles import Tile
from syrinx_stages.codec.weights import CodecWeights, Conv
from syrinx_stages.kernels.gpu import Gpu
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.codec_decoder import CodecDecoder

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


def decode(engine: CudaCodecEngine, ids: list[str], codes: list[list[bytes]], shape: tuple[int, int]) -> list[bytes]:
    return engine.read(engine.launch(ids, codes, shape))


def test_each_request_decodes_as_if_it_were_alone(decoder: CodecDecoder, engine: CudaCodecEngine) -> None:
    shapes = [(2, 2), (3, 3)]
    for shape in shapes:
        engine.capture(shape)
    lifetimes = Lifetimes(decoder, engine, resident=3)
    lifetimes.run(calls=10, rows=3, frames=3, shapes=shapes)
    assert len(lifetimes.errors) > 10
    assert max(lifetimes.errors) < TOLERANCE


def test_a_call_reads_only_its_own_workspace_and_the_stream_state(
    decoder: CodecDecoder, engine: CudaCodecEngine
) -> None:
    reference = Reference(decoder)
    engine.open("a")
    for call in range(5):
        codes = random_frames(1 + call % 2, seed=call)
        poison_workspace(engine)
        [pcm] = decode(engine, ["a"], [codes], (2, 2))
        np.testing.assert_allclose(samples(pcm), reference.decode(codes), atol=TOLERANCE)


def test_reopening_a_request_resets_its_state(decoder: CodecDecoder, engine: CudaCodecEngine) -> None:
    codes = random_frames(2, seed=1)
    for _ in range(2):
        engine.open("a")
        [pcm] = decode(engine, ["a"], [codes], (1, 2))
        np.testing.assert_allclose(samples(pcm), Reference(decoder).decode(codes), atol=TOLERANCE)


def test_capturing_a_shape_does_not_change_stream_states(decoder: CodecDecoder, engine: CudaCodecEngine) -> None:
    reference = Reference(decoder)
    engine.open("a")
    for call in range(2):
        codes = random_frames(2, seed=call)
        [pcm] = decode(engine, ["a"], [codes], (1, 2))
        np.testing.assert_allclose(samples(pcm), reference.decode(codes), atol=TOLERANCE)
        engine.capture((2, 3))


def test_a_shape_is_captured_until_it_is_freed(engine: CudaCodecEngine) -> None:
    engine.capture((1, 2))
    engine.capture((2, 2))
    assert engine.captured == {(1, 2), (2, 2)} == engine.capture_costs.keys()
    assert engine.capture_costs[2, 2].bytes > engine.capture_costs[1, 2].bytes > 0
    engine.free_shapes([(1, 2), (9, 9)])
    assert engine.captured == {(2, 2)}
    assert engine.capture_costs.keys() == {(1, 2), (2, 2)}


def test_warm_up_measures_the_cost_of_a_capture(engine: CudaCodecEngine) -> None:
    engine.warm_up()
    assert engine.capture_costs.keys() == {(1, 1)}
    assert not engine.captured


def test_split_k_does_not_change_the_result(decoder: CodecDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    def conv_tile(conv: Conv, num_positions: int, gpu: Gpu) -> Tile:
        steps = conv.taps * conv.in_channels // 16
        split_k = next((split_k for split_k in (3, 2) if steps % split_k == 0), 1)
        return Tile(16, 16, 16, 1 if conv.norm or conv.gated else split_k)

    monkeypatch.setattr("syrinx_stages.codec.forward.conv_tile", conv_tile)
    engine = CudaCodecEngine(decoder, 1, CPU, torch.float32)
    reference = Reference(decoder)
    engine.open("a")
    for call in range(2):
        codes = random_frames(2, seed=call)
        [pcm] = decode(engine, ["a"], [codes], (1, 2))
        np.testing.assert_allclose(samples(pcm), reference.decode(codes), atol=TOLERANCE)
    assert not engine.split_k.counters.any()


def test_fused_and_separate_residual_units_agree(decoder: CodecDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = random_frames(2, seed=1)
    outputs = []
    for fused in (False, True):
        monkeypatch.setattr(
            "syrinx_stages.codec.forward.residual_unit_tile",
            lambda conv, num_positions, gpu, fused=fused: Tile(16, conv.outputs, 16) if fused else None,
        )
        engine = CudaCodecEngine(decoder, 1, CPU, torch.float32)
        engine.open("a")
        outputs.append(samples(decode(engine, ["a"], [codes], (1, 2))[0]))
    np.testing.assert_allclose(*outputs, atol=TOLERANCE)


def test_half_precision_is_close(decoder: CodecDecoder) -> None:
    engine = CudaCodecEngine(decoder, 1, CPU, torch.float16)
    reference = Reference(decoder)
    engine.open("a")
    for call in range(3):
        codes = random_frames(2, seed=call)
        actual, expected = samples(decode(engine, ["a"], [codes], (1, 2))[0]), reference.decode(codes)
        assert np.linalg.norm(actual - expected) < 0.01 * np.linalg.norm(expected)


def test_split_refuses_codes_outside_the_codebook(engine: CudaCodecEngine) -> None:
    with pytest.raises(ValueError, match=f"code {CODES} is not within 0 to {CODES - 1}"):
        split_frames(np.full(16, CODES, "<i2").tobytes(), engine.codebook_size)


@pytest.mark.night
def test_the_bundled_voice() -> None:
    decoder = Checkpoint("bundled").load_codec_decoder()
    engine = CudaCodecEngine(decoder, 1, CPU, torch.float32)
    engine.open("a")
    codes = random_frames(1, seed=1, size=decoder.config.codebook_size)
    [pcm] = decode(engine, ["a"], [codes], (1, 1))
    np.testing.assert_allclose(samples(pcm), Reference(decoder).decode(codes), atol=TOLERANCE)


def test_a_forward_pass_fits_in_a_workspace_of_its_size(decoder: CodecDecoder) -> None:
    weights = CodecWeights(decoder, CPU, torch.float32)
    states = StreamStates(weights, 1, 3)
    size = workspace_size(weights, states.layout, 2, 3)
    workspace = Workspace(size, split_k_workspace(CPU), torch.float32, CPU)
    ForwardPass(weights, states, workspace, 2, 3)()
    assert sum(tensor.nbytes for tensor in (workspace.activations, workspace.upload, workspace.pcm)) == size.bytes(
        torch.float32
    )
    assert size.fits_in(size) and not WorkspaceSize(size.activations + 1, 0, 0).fits_in(size)


def test_a_larger_shape_replaces_the_workspace_but_not_that_of_a_captured_graph(engine: CudaCodecEngine) -> None:
    engine.capture((1, 1))
    small = engine.workspace
    engine.capture((2, 2))
    large = engine.workspace
    assert engine.get((1, 1))[1].workspace is small is not large
    engine.free_shapes([(2, 2)])
    assert engine.workspace is small
