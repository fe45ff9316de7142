"""The talker on a GPU: as the float32 modules, in every step's size, whatever was there before, without a wait."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from itertools import product as combinations
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpu.checkpoint import DrawnCheckpoint, talker_settings, write_configs
from gpu.passes import watched
from support import small_talker
from support.attending import Attention, check_pair, check_prompt, check_step
from support.products import Case, Product
from support.talker_lifetimes import Alone, Lifetimes, Reference, poison
from syrinx_stages.contract.messages import End, Sampling
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.config import ModelConfig

if TYPE_CHECKING:
    # Only where there is a GPU: elsewhere other tests have the kernels interpreted.
    from syrinx_stages.talker.cuda_engine import CudaTalkerEngine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

RESIDENT = 8
SIZES = (1, 2, 4, 8)
CLOSE = {torch.float32: 0.02, torch.bfloat16: 0.06}
"""By how much of the probability a random number may miss a code's share; in float32 products are TF32."""
ENDLESS = Sampling(top_k=0, residual_top_k=0, min_frames=99)
DAWDLES = 0.02
"""Seconds: many times a frame."""
MANY_CYCLES = 400_000_000
"""Of the device: about a fifth of a second."""

Make = Callable[[torch.dtype], "CudaTalkerEngine"]
kinds = pytest.mark.parametrize("kind", CLOSE, ids=str)


@pytest.fixture(autouse=True)
def exact_reference() -> Iterator[None]:
    """What runs in float32 on the device multiplies in float32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    with sdpa_kernel(SDPBackend.MATH):
        yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture(scope="module")
def voice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_talker.write(tmp_path_factory.mktemp("checkpoint") / "voice")


@pytest.fixture(scope="module")
def reference(voice: Path) -> Reference:
    return Reference(Checkpoint(str(voice)))


@pytest.fixture(scope="module")
def engine_of(voice: Path) -> Make:
    """An engine for each type, warm; made once."""
    from syrinx_stages.talker.cuda_engine import CudaTalkerEngine

    made: dict[torch.dtype, CudaTalkerEngine] = {}

    def engine(kind: torch.dtype) -> CudaTalkerEngine:
        if kind not in made:
            made[kind] = CudaTalkerEngine(Checkpoint(str(voice), "cuda", kind), RESIDENT)
            made[kind]._sizes = list(SIZES if kind == torch.float32 else SIZES[::3])
            made[kind].warm_up()
        return made[kind]

    return engine


@pytest.fixture
def engine(engine_of: Make) -> Iterator[CudaTalkerEngine]:
    """In float32, poisoned; free again afterwards."""
    made = engine_of(torch.float32)
    poison(made)
    yield made
    made._recorder.record_event()()
    for name in list(made._rows):
        made.release(name)


# Kernels, in the official shapes and bfloat16 ------------------------------------------------------------------


def check(cases: list[Case]) -> None:
    """Runs products as the cases say, compiled all at once."""
    from syrinx_stages.kernels.launch import compile_only

    products = [Product(case, "cuda", torch.bfloat16) for case in cases]
    with compile_only():
        for product in products:
            product.run()
    for product in products:
        product.run()
        product.check(0.02)


def test_every_measured_tile() -> None:
    from syrinx_stages.talker.tiles import _HEIGHTS, _MEASURED

    residual = {(2048, 2048), (2048, 6144), (1024, 2048), (1024, 3072)}
    cases = []
    for (outer, inner, gated), tiles in _MEASURED.items():
        surroundings = {"adds": True} if (outer, inner) in residual else {"parts": 32, "gated": gated}
        for height, tile in zip(_HEIGHTS, tiles, strict=True):
            cases.append(Case(tile=tile, rows=max(1, height - 3), outer=outer, inner=inner, **surroundings))
    check(cases)


def test_weights_straight_into_the_tensor_cores() -> None:
    from gpu import tiles
    from syrinx_stages.kernels.linear import Direct

    config = msgspec.convert(talker_settings("1b7", 0), ModelConfig).talker_config
    cases = []
    for graph in tiles.parts(config).values():
        for wanted, rows in combinations(graph, (1, 8, 13, 32, 61)):
            found = [tile for tile in tiles.candidates(wanted, rows) if isinstance(tile, Direct)]
            surroundings = {"adds": True} if wanted.residual else {"parts": 64, "gated": wanted.gated}
            for tile in {found[0], found[-1]}:
                cases.append(Case(tile=tile, rows=rows, outer=wanted.outer, inner=wanted.inner, **surroundings))
    check(cases)


def test_attention_of_the_official_shape() -> None:
    def attention(pages: list[list[int]]) -> Attention:
        return Attention(kv=8, group=2, size=128, page=64, pages=pages, device="cuda", kind=torch.bfloat16)

    check_step(attention([[3, 5], [2, 0], [0, 0], [1, 4]]), [70, 63, None, 64], 0.03)
    check_prompt(attention([[3, 5], [2, 0], [0, 0]]), [(60, 20), (0, 32), (0, 0)], 32, 0.03)
    frames = {"kv": 8, "group": 2, "size": 128, "page": 16, "device": "cuda", "kind": torch.bfloat16}
    check_step(Attention(pages=[[0], [1], [2]], **frames), [9] * 3, 0.03, small=True)
    check_pair(Attention(pages=[[0], [1], [2]], **frames), 3, 0.03)


# The engine ----------------------------------------------------------------------------------------------------


def admit(engine: CudaTalkerEngine, rows: list[Alone]) -> list[str]:
    """Returns their ids."""
    engine.admit([engine.prepare(row.request, b"".join(row.frames), None) for row in rows])
    return [row.request.id for row in rows]


def begin(reference: Reference, count: int, first: int = 0) -> list[Alone]:
    """Requests that never end."""
    return [
        reference.begin(small_talker.request(f"request {number}", sampling=ENDLESS, seed=number))
        for number in range(first, first + count)
    ]


def step(engine: CudaTalkerEngine, reference: Reference, rows: list[Alone]) -> list[float]:
    """A frame of each: how wrong it is."""
    said = engine.read(engine.launch([row.request.id for row in rows]))
    return reference.misses(rows, [said[row.request.id] for row in rows])


def fall_behind(engine: CudaTalkerEngine) -> torch.cuda.Event:
    """Gives the device much to do before whatever is queued next; returns the event of its end."""
    behind = torch.cuda.Event()
    with engine._recorder.on_stream():
        torch.cuda._sleep(MANY_CYCLES)
        behind.record()
    return behind


def state_of(engine: CudaTalkerEngine, names: list[str]) -> torch.Tensor:
    """What the next frames of requests are drawn from [names, H]."""
    with engine._recorder.on_stream():
        return engine._arena.state[[engine._rows[name].place.slot for name in names]].cpu()


@kinds
def test_requests_that_come_and_go_say_what_each_would_alone(
    reference: Reference, engine_of: Make, kind: torch.dtype
) -> None:
    engine = engine_of(kind)
    poison(engine)
    lifetimes = Lifetimes(reference, engine, RESIDENT, most_frames=12, between=lambda: poison(engine))
    lifetimes.run(steps=60)
    assert len(lifetimes.errors) > 200
    assert lifetimes.resumed > 5
    assert len({spoken.end for spoken in lifetimes.all}) == 3, "some are stopped, some have all frames, some left"
    assert max(lifetimes.errors) < CLOSE[kind]


@pytest.mark.parametrize("size", SIZES)
def test_a_step_of_any_size_says_the_same_of_fewer_rows(
    reference: Reference, engine: CudaTalkerEngine, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_sizes", [size])
    resident = max(1, size - 1)
    lifetimes = Lifetimes(reference, engine, resident, seed=size, arrivals=1.0, between=lambda: poison(engine))
    lifetimes.run(steps=20)
    assert len(lifetimes.errors) > 8
    assert max(lifetimes.errors) < CLOSE[torch.float32]


def test_neither_a_prefill_nor_a_step_waits_for_the_device(reference: Reference, engine: CudaTalkerEngine) -> None:
    resumed = begin(reference, 3)
    admit(engine, resumed)
    for _ in range(3):
        assert max(step(engine, reference, resumed)) < CLOSE[torch.float32]
    # Once with all the time there is, so that everything is loaded.
    admit(engine, resumed)
    rows = [*resumed, *begin(reference, 3, first=10)]
    prepared = [engine.prepare(row.request, b"".join(row.frames), None) for row in rows]
    ids = [row.request.id for row in rows]
    torch.cuda.synchronize()
    behind = fall_behind(engine)
    torch.cuda.set_sync_debug_mode("error")
    try:
        engine.admit(prepared)
        steps = [engine.launch(ids) for _ in range(2)]
        assert not behind.query(), "the device has not even begun"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for launched in steps:
        said = engine.read(launched)
        assert max(reference.misses(rows, [said[name] for name in ids])) < CLOSE[torch.float32]


def test_what_was_prepared_is_kept_until_it_is_read(reference: Reference, engine: CudaTalkerEngine) -> None:
    """Its memory belongs to another stream, which would give it out again while the device is behind."""
    rows = begin(reference, 4)
    prepared = [engine.prepare(row.request, b"", None) for row in rows]
    torch.cuda.synchronize()
    behind = fall_behind(engine)
    engine.admit(prepared)
    del prepared
    others = 0
    while not behind.query():
        engine.prepare(small_talker.request("other", "No one else's.", seed=others), b"", None)
        others += 1
    assert others > 3, "the device was behind"
    for _ in range(2):
        assert max(step(engine, reference, rows)) < CLOSE[torch.float32]


def test_a_warm_engine_compiles_nothing_more(reference: Reference, engine: CudaTalkerEngine) -> None:
    from triton import knobs

    compiled: list[str] = []
    knobs.runtime.jit_cache_hook = lambda **given: compiled.append(str(given["repr"]))
    try:
        Lifetimes(reference, engine, RESIDENT - 1, seed=1).run(steps=15)
        admit(engine, [reference.begin(small_talker.request("long", small_talker.text(700)))])
        engine.read(engine.launch(["long"]))
    finally:
        knobs.runtime.jit_cache_hook = None
    assert not compiled


@torch.inference_mode()
def test_a_recorded_step_is_the_step_itself_to_the_bit(
    reference: Reference, engine: CudaTalkerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {size: (frame, frame.draw_codes, frame.advance) for size, (frame, *_) in engine._frames.items()}
    said, states = [], []
    for frames in (engine._frames, plain):
        monkeypatch.setattr(engine, "_frames", frames)
        rows = begin(reference, 3)
        ids = admit(engine, rows)
        said.append([engine.read(engine.launch(ids)) for _ in range(4)])
        states.append(state_of(engine, ids))
        for name in ids:
            engine.release(name)
        poison(engine)
    assert said[0] == said[1]
    assert torch.equal(*states)
    assert not any(isinstance(item, End) for frame in said[0] for item in frame.values())


@torch.inference_mode()
def test_a_prompt_longer_than_any_prefill_is_fed_in_parts(reference: Reference, engine: CudaTalkerEngine) -> None:
    rows = [reference.begin(small_talker.request("long", small_talker.text(900), sampling=ENDLESS))]
    admit(engine, rows)
    torch.testing.assert_close(state_of(engine, ["long"])[0], rows[0].hidden, atol=0.02, rtol=0.02)
    assert max(step(engine, reference, rows)) < CLOSE[torch.float32]


def test_the_official_shapes_in_steps_of_every_measured_height(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One layer of each kind, as wide as in the 1.7B checkpoint, in bfloat16."""
    from syrinx_stages.talker import cuda_engine
    from syrinx_stages.talker.cuda_engine import CudaTalkerEngine

    monkeypatch.setattr(cuda_engine, "LENGTHS", (16, 32))
    write_configs(tmp_path, "1b7")
    settings = json.loads((tmp_path / "config.json").read_text())
    settings["talker_config"]["num_hidden_layers"] = 1
    settings["talker_config"]["code_predictor_config"]["num_hidden_layers"] = 1
    settings["talker_config"]["max_position_embeddings"] = 4096
    (tmp_path / "config.json").write_text(json.dumps(settings))
    reference = Reference(DrawnCheckpoint(tmp_path, "cuda"))
    engine = CudaTalkerEngine(DrawnCheckpoint(tmp_path, "cuda", torch.bfloat16), 64)
    sizes = engine._sizes = [1, 16, 32, 64]
    engine.warm_up()
    for size in sizes:
        engine._sizes = [size]
        resident = size if size == 1 else size - 2
        lifetimes = Lifetimes(reference, engine, resident, seed=size, arrivals=1.0, between=lambda: poison(engine))
        lifetimes.run(steps=3)
        assert len(lifetimes.errors) > size
        assert max(lifetimes.errors) < CLOSE[torch.bfloat16]


# The benchmark's eye -------------------------------------------------------------------------------------------


def test_a_host_that_dawdles_shows_as_gaps_between_passes(engine: CudaTalkerEngine) -> None:
    engine.admit([engine.prepare(small_talker.request("a", sampling=ENDLESS), b"", None)])
    with watched(engine) as passes:
        for _ in range(6):
            engine.read(engine.launch(["a"]))
            time.sleep(DAWDLES)
    engine.release("a")
    assert sum(gap > 500 * DAWDLES for gap in passes.gaps()) >= 4
    assert passes.whole() > 4 * 1_000 * DAWDLES
