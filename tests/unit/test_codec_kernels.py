"""The codec of a GPU in Triton's interpreter: as the float32 decoder, whatever else is in a call or was in a slot."""

import support.interpreter  # noqa: F401, I001 (before any kernel)

import numpy as np
import pytest
import torch
from support.codec_lifetimes import Lifetimes
from support.small_codec import CODES, Alone, random_decoder, random_frames, samples

from syrinx_stages.codec import tiles
from syrinx_stages.codec.cuda_engine import CudaCodecEngine
from syrinx_stages.codec.program import Arena, Buffers, Memory, Program, needs
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.codec_decoder import CodecDecoder

CPU = torch.device("cpu")
CLOSE = 2e-4
"""Of samples in -1..1: float32 sums in another order, and the rounding to 16 bits."""


@pytest.fixture(scope="module")
def decoder() -> CodecDecoder:
    return random_decoder()


@pytest.fixture
def engine(decoder: CodecDecoder) -> CudaCodecEngine:
    """Its memory is poisoned: a number that nobody wrote is none."""
    engine = CudaCodecEngine(decoder, 3, CPU, torch.float32)
    poison(engine)
    return engine


def poison(engine: CudaCodecEngine) -> None:
    engine._arena.tails.fill_(torch.nan)
    engine._arena.rings.fill_(torch.nan)
    poison_memory(engine)


def poison_memory(engine: CudaCodecEngine) -> None:
    if engine._memory:
        engine._memory.buffers.fill_(torch.nan)
        engine._memory.partial.fill_(torch.nan)


def decode(engine: CudaCodecEngine, ids: list[str], codes: list[list[bytes]], shape: tuple[int, int]) -> list[bytes]:
    return engine.read(engine.launch(ids, codes, shape))


def test_requests_that_come_and_go_sound_as_if_each_were_alone(decoder: CodecDecoder, engine: CudaCodecEngine) -> None:
    shapes = [(2, 2), (3, 3)]
    for shape in shapes:
        engine.capture(shape)
    lifetimes = Lifetimes(decoder, engine, resident=3)
    lifetimes.run(calls=10, rows=3, frames=3, shapes=shapes)
    assert len(lifetimes.errors) > 10
    assert max(lifetimes.errors) < CLOSE


def test_a_call_reads_only_what_it_or_its_requests_last_call_wrote(
    decoder: CodecDecoder, engine: CudaCodecEngine
) -> None:
    alone = Alone(decoder)
    engine.open("a")
    for call in range(5):
        codes = random_frames(1 + call % 2, seed=call)
        poison_memory(engine)
        [pcm] = decode(engine, ["a"], [codes], (2, 2))
        np.testing.assert_allclose(samples(pcm), alone.decode(codes), atol=CLOSE)


def test_a_request_that_opens_again_begins_afresh(decoder: CodecDecoder, engine: CudaCodecEngine) -> None:
    codes = random_frames(2, seed=1)
    for _ in range(2):
        engine.open("a")
        [pcm] = decode(engine, ["a"], [codes], (1, 2))
        np.testing.assert_allclose(samples(pcm), Alone(decoder).decode(codes), atol=CLOSE)


def test_recording_a_shape_leaves_requests_as_they_are(decoder: CodecDecoder, engine: CudaCodecEngine) -> None:
    alone = Alone(decoder)
    engine.open("a")
    for call in range(2):
        codes = random_frames(2, seed=call)
        [pcm] = decode(engine, ["a"], [codes], (1, 2))
        np.testing.assert_allclose(samples(pcm), alone.decode(codes), atol=CLOSE)
        engine.capture((2, 3))


def test_shapes_are_ready_from_their_capture_until_they_are_forgotten(engine: CudaCodecEngine) -> None:
    engine.capture((1, 2))
    engine.capture((2, 2))
    assert engine.captured == {(1, 2), (2, 2)} == engine.capture_costs.keys()
    assert engine.capture_costs[2, 2].bytes > engine.capture_costs[1, 2].bytes > 0
    engine.free_shapes([(1, 2), (9, 9)])
    assert engine.captured == {(2, 2)}
    assert engine.capture_costs.keys() == {(1, 2), (2, 2)}


def test_a_warm_engine_knows_what_a_capture_costs(engine: CudaCodecEngine) -> None:
    engine.warm_up()
    assert engine.capture_costs.keys() == {(1, 1)}
    assert not engine.captured


def test_a_sum_that_is_split_is_the_same_sum(decoder: CodecDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    def product_tile(count: int, inner: int, outer: int, taps: int, *, gated: bool, splittable: bool) -> tiles.Tile:
        steps = taps * inner // 16
        parts = next((parts for parts in (3, 2) if steps % parts == 0), 1)
        return tiles.Tile(16, 16, 16, parts if splittable else 1)

    monkeypatch.setattr("syrinx_stages.codec.program.product_tile", product_tile)
    engine = CudaCodecEngine(decoder, 1, CPU, torch.float32)
    alone = Alone(decoder)
    engine.open("a")
    for call in range(2):
        codes = random_frames(2, seed=call)
        [pcm] = decode(engine, ["a"], [codes], (1, 2))
        np.testing.assert_allclose(samples(pcm), alone.decode(codes), atol=CLOSE)
    assert engine._memory is not None
    assert not engine._memory.arrived.any()


def test_units_in_one_kernel_or_in_two_are_the_same(decoder: CodecDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = random_frames(2, seed=1)
    heard = []
    for tile in (None, tiles.Tile(16, 0, 16)):
        monkeypatch.setattr("syrinx_stages.codec.program.unit_tile", lambda count, channels, tile=tile: tile)
        engine = CudaCodecEngine(decoder, 1, CPU, torch.float32)
        engine.open("a")
        heard.append(samples(decode(engine, ["a"], [codes], (1, 2))[0]))
    np.testing.assert_allclose(heard[0], heard[1], atol=CLOSE)


def test_half_precision_is_near(decoder: CodecDecoder) -> None:
    engine = CudaCodecEngine(decoder, 1, CPU, torch.float16)
    alone = Alone(decoder)
    engine.open("a")
    for call in range(3):
        codes = random_frames(2, seed=call)
        got, wanted = samples(decode(engine, ["a"], [codes], (1, 2))[0]), alone.decode(codes)
        assert np.linalg.norm(got - wanted) < 0.01 * np.linalg.norm(wanted)


def test_codes_the_books_do_not_have_are_refused(engine: CudaCodecEngine) -> None:
    with pytest.raises(ValueError, match=f"code {CODES} is not within 0 to {CODES - 1}"):
        engine.split(np.full(16, CODES, "<i2").tobytes())


def test_the_bundled_voice_runs_too() -> None:
    decoder = Checkpoint("bundled").load_codec_decoder()
    engine = CudaCodecEngine(decoder, 1, CPU, torch.float32)
    engine.open("a")
    codes = random_frames(1, seed=1, size=decoder.config.codebook_size)
    [pcm] = decode(engine, ["a"], [codes], (1, 1))
    np.testing.assert_allclose(samples(pcm), Alone(decoder).decode(codes), atol=CLOSE)


def test_a_program_needs_what_it_says(decoder: CodecDecoder) -> None:
    engine = CudaCodecEngine(decoder, 1, CPU, torch.float32)
    need = needs(engine._packed, 2, 3)
    memory = need.allocate(torch.float32, CPU)
    assert isinstance(memory, Memory) and memory.holds(need)
    arena = Arena.allocate(engine._packed, 1, 3)
    assert arena.tails.shape[1] == Buffers(engine._packed).width
    Program(engine._packed, arena, memory, 2, 3)()
