"""The codec on a GPU: as the float32 decoder there, for every captured shape, whatever was in a slot before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from support.codec_lifetimes import Lifetimes
from support.small_codec import Alone, random_decoder, random_frames, samples
from syrinx_stages.model.codec_decoder import CodecDecoder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

Make = Callable[..., Any]
SHAPES = [(1, 1), (2, 2), (4, 3), (8, 3)]
CLOSE = {torch.float32: 2e-4, torch.float16: 1e-2, torch.bfloat16: 8e-2}
"""Of samples, most of which are below 0.5."""


@pytest.fixture(autouse=True)
def exact_reference() -> Iterator[None]:
    """The float32 decoder multiplies in float32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.fixture(scope="module")
def decoder() -> CodecDecoder:
    return random_decoder(device="cuda")


@pytest.fixture
def make(decoder: CodecDecoder) -> Make:
    """An engine whose state is poisoned."""
    # Only where there is a GPU: elsewhere other tests have the kernels interpreted.
    from syrinx_stages.codec.cuda_engine import CudaCodecEngine

    def engine(resident: int, kind: torch.dtype = torch.float32) -> CudaCodecEngine:
        made = CudaCodecEngine(decoder, resident, torch.device("cuda"), kind)
        made._arena.tails.fill_(torch.nan)
        made._arena.rings.fill_(torch.nan)
        torch.cuda.synchronize()
        return made

    return engine


@pytest.mark.parametrize("kind", CLOSE)
def test_requests_that_come_and_go_sound_as_if_each_were_alone(
    decoder: CodecDecoder, make: Make, kind: torch.dtype
) -> None:
    engine = make(8, kind)
    for shape in SHAPES:
        engine.capture(shape)
    assert engine.captured == set(SHAPES)
    lifetimes = Lifetimes(decoder, engine, resident=8)
    lifetimes.run(calls=150, rows=8, frames=3, shapes=SHAPES)
    assert len(lifetimes.errors) > 300
    assert max(lifetimes.errors) < CLOSE[kind]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_captured_shape_reads_only_what_it_or_its_requests_last_call_wrote(
    decoder: CodecDecoder, make: Make, shape: tuple[int, int]
) -> None:
    engine = make(8)
    engine.capture(shape)
    alone = Alone(decoder)
    engine.open("a")
    for call in range(6):
        engine._memory.buffers.fill_(torch.nan)
        engine._memory.partial.fill_(torch.nan)
        torch.cuda.synchronize()
        codes = random_frames(1 + call % shape[1], seed=call)
        [pcm] = engine.read(engine.launch(["a"], [codes], shape))
        np.testing.assert_allclose(samples(pcm), alone.decode(codes), atol=CLOSE[torch.float32])


def test_a_launch_waits_for_nothing(make: Make) -> None:
    engine = make(2)
    engine.open("a")
    engine.capture((1, 2))
    codes = [random_frames(2, seed=0)]
    engine.read(engine.launch(["a"], codes, (1, 2)))
    engine.read(engine.launch(["a"], codes, (1, 2)))
    torch.cuda.set_sync_debug_mode("error")
    try:
        call = engine.launch(["a"], codes, (1, 2))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(engine.read(call)) == 1


def test_a_warm_engine_compiles_nothing_more(make: Make) -> None:
    from triton import knobs

    engine = make(8)
    engine.warm_up()
    compiled: list[str] = []
    knobs.runtime.jit_cache_hook = lambda **given: compiled.append(str(given["repr"]))
    try:
        for shape in [(1, 3), (3, 2), (7, 12), (8, 25)]:
            engine.capture(shape)
    finally:
        knobs.runtime.jit_cache_hook = None
    assert not compiled


def test_memory_of_a_shape_is_freed_with_it(make: Make) -> None:
    engine = make(8)
    engine.capture((1, 1))
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    engine.capture((8, 64))
    assert torch.cuda.memory_allocated() > before
    engine.free_shapes([(8, 64)])
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() < before + engine.capture_costs[8, 64].bytes // 4
