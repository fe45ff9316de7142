"""The codec engine on a GPU, compared with the float32 decoder, for captured and uncaptured shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from support.codec_lifetimes import Lifetimes
from support.small_codec import CONFIG, Reference, random_decoder, random_frames, samples
from syrinx_stages.model.codec.decoder import CodecDecoder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

MakeEngine = Callable[..., Any]
SHAPES = [(1, 1), (2, 2), (4, 3), (8, 3)]
TOLERANCE = {torch.float32: 2e-4, torch.float16: 1e-2, torch.bfloat16: 8e-2}
"""Maximum error by dtype; most samples are below 0.5."""


@pytest.fixture(autouse=True)
def exact_reference() -> Iterator[None]:
    """Makes the reference decoder multiply and convolve in float32 instead of TF32."""
    backends = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [backend.allow_tf32 for backend in backends]
    for backend in backends:
        backend.allow_tf32 = False
    yield
    for backend, allowed in zip(backends, before, strict=True):
        backend.allow_tf32 = allowed


@pytest.fixture(scope="module")
def decoder() -> CodecDecoder:
    return random_decoder(device="cuda")


@pytest.fixture
def make_engine(decoder: CodecDecoder) -> MakeEngine:
    """Returns a function that creates an engine whose stream states are filled with NaN."""
    # Imported here: without a GPU, other tests must set up the interpreter before the kernels are imported.
    from syrinx_stages.codec.cuda.engine import CudaCodecEngine

    def engine(resident: int, dtype: torch.dtype = torch.float32) -> CudaCodecEngine:
        created = CudaCodecEngine(decoder, resident, torch.device("cuda"), dtype)
        created.states.tails.fill_(torch.nan)
        created.states.kv_caches.fill_(torch.nan)
        torch.cuda.synchronize()
        return created

    return engine


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_each_request_decodes_as_if_it_were_alone(
    decoder: CodecDecoder, make_engine: MakeEngine, dtype: torch.dtype
) -> None:
    engine = make_engine(8, dtype)
    for shape in SHAPES:
        engine.capture(shape)
    assert engine.captured == set(SHAPES)
    lifetimes = Lifetimes(decoder, engine, resident=8)
    lifetimes.run(calls=150, rows=8, frames=3, shapes=SHAPES)
    assert len(lifetimes.errors) > 300
    assert max(lifetimes.errors) < TOLERANCE[dtype]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_captured_shape_reads_only_its_own_workspace_and_the_stream_state(
    decoder: CodecDecoder, make_engine: MakeEngine, shape: tuple[int, int]
) -> None:
    engine = make_engine(8)
    engine.capture(shape)
    reference = Reference(decoder)
    engine.open("a")
    for call in range(6):
        engine.workspace.activations.fill_(torch.nan)
        engine.split_k.partial_sums.fill_(torch.nan)
        torch.cuda.synchronize()
        codes = random_frames(1 + call % shape[1], seed=call)
        [pcm] = engine.read(engine.launch(["a"], [codes], shape))
        np.testing.assert_allclose(samples(pcm), reference.decode(codes), atol=TOLERANCE[torch.float32])


def test_a_launch_does_not_synchronize(make_engine: MakeEngine) -> None:
    engine = make_engine(2)
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


def test_nothing_is_compiled_after_warm_up(make_engine: MakeEngine) -> None:
    from triton import knobs

    engine = make_engine(8)
    engine.warm_up()
    compiled: list[str] = []
    knobs.runtime.jit_cache_hook = lambda **fields: compiled.append(str(fields["repr"]))
    try:
        for shape in [(1, 3), (3, 2), (7, 12), (8, 25)]:
            engine.capture(shape)
    finally:
        knobs.runtime.jit_cache_hook = None
    assert not compiled


def test_large_calls_are_deterministic() -> None:
    """Equal input gives equal samples where the normalized products use asynchronous tensor core instructions."""
    from syrinx_stages.codec.cuda.engine import CudaCodecEngine

    decoder = random_decoder(replace(CONFIG, hidden_size=512, intermediate_size=1024), device="cuda")
    engine = CudaCodecEngine(decoder, 32, torch.device("cuda"))
    ids = [f"request {row}" for row in range(32)]
    codes = [random_frames(25, seed=row) for row in range(32)]
    outputs = set()
    for _ in range(10):
        for request_id in ids:
            engine.open(request_id)
        outputs.add(b"".join(engine.read(engine.launch(ids, codes, (32, 25)))))
    assert len(outputs) == 1
