"""The talker on a GPU, compared with the float32 modules in every batch size."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import product as combinations
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpu.checkpoint import RandomCheckpoint, talker_settings, write_configs
from support import small_talker
from support.attention import AttentionCase, check_decode, check_pair, check_prefill
from support.products import FUSIONS, Case, Product
from support.talker_lifetimes import Lifetimes, Reference, ReferenceRequest, poison
from syrinx_stages.contract.messages import End, EndReason, Sampling
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.config import ModelConfig

if TYPE_CHECKING:
    # Imported late: the first import of the kernels decides whether they are interpreted.
    from syrinx_stages.talker.cuda.engine import CudaTalkerEngine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

RESIDENT = 8
SIZES = (1, 2, 4, 8)
TOLERANCE = {torch.float32: 0.02, torch.bfloat16: 0.06}
"""Of `Reference.errors`; in float32, products are TF32."""
ENDLESS = Sampling(top_k=0, residual_top_k=0, min_frames=99)
RESIDUAL = {(2048, 2048), (2048, 6144), (1024, 2048), (1024, 3072)}
"""Products to which the layer's input is added, by their sizes."""
MANY_CYCLES = 400_000_000
"""About 0.2 seconds of the device's clock."""

Make = Callable[[torch.dtype], "CudaTalkerEngine"]
each_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


@pytest.fixture(autouse=True)
def exact_reference() -> Iterator[None]:
    """Disables TF32 for the reference."""
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
    """Returns a warm engine for a dtype, created once."""
    from syrinx_stages.talker.cuda.engine import CudaTalkerEngine

    engines: dict[torch.dtype, CudaTalkerEngine] = {}

    def engine(dtype: torch.dtype) -> CudaTalkerEngine:
        if dtype not in engines:
            created = engines[dtype] = CudaTalkerEngine(Checkpoint(str(voice), "cuda", dtype), RESIDENT)
            created.runner.batch_sizes = list(SIZES if dtype == torch.float32 else SIZES[::3])
            created.warm_up()
        return engines[dtype]

    return engine


@pytest.fixture
def engine(engine_of: Make) -> Iterator[CudaTalkerEngine]:
    """Returns the float32 engine with poisoned memory; releases its requests afterwards."""
    engine = engine_of(torch.float32)
    poison(engine)
    yield engine
    engine.runner.recorder.record_event()()
    for name in list(engine._rows):
        engine.release(name)


# Kernels, in the official shapes and bfloat16 ------------------------------------------------------------------


def check(cases: list[Case]) -> None:
    """Checks products; compiles all of them first, in parallel."""
    from syrinx_stages.kernels.launch import compile_only

    products = [Product(case, "cuda", torch.bfloat16) for case in cases]
    with compile_only():
        for product in products:
            product.run()
    for product in products:
        product.run()
        product.check(0.02)


def test_every_tile_of_the_table() -> None:
    from syrinx_stages.talker.cuda.tiles import SM_90, TABLE_ROWS

    cases = []
    for (outer, inner, gated), tiles in SM_90.items():
        fusion = {"adds": True} if (outer, inner) in RESIDUAL else {"parts": 32, "gated": gated}
        for height, tile in zip(TABLE_ROWS, tiles, strict=True):
            cases.append(Case(tile=tile, rows=max(1, height - 3), outer=outer, inner=inner, **fusion))
    check(cases)


def test_tiles_of_prefills_with_more_rows_than_in_the_table() -> None:
    from syrinx_stages.talker.cuda.tiles import SM_90, choose_tile

    cases = []
    for (outer, inner, gated), rows in combinations(SM_90, (129, 256, 509)):
        adds = (outer, inner) in RESIDUAL
        weight = torch.empty((2 if gated else 1) * outer, inner, dtype=torch.bfloat16, device="cuda")
        tile = choose_tile(rows, weight, gated=gated, residual=adds)
        fusion = {"adds": True} if adds else {"parts": 32, "gated": gated}
        cases.append(Case(tile=tile, rows=rows, outer=outer, inner=inner, **fusion))
    check(cases)


def test_direct_tiles() -> None:
    from gpu import tiles
    from syrinx_stages.kernels.linear import DirectTile

    config = msgspec.convert(talker_settings("1b7", 0), ModelConfig).talker_config
    cases = []
    for graph in tiles.parts(config).values():
        for product, rows in combinations(graph, (1, 8, 13, 32, 61)):
            found = [tile for tile in tiles.candidates(product, rows) if isinstance(tile, DirectTile)]
            fusion = {"adds": True} if product.residual else {"parts": 64, "gated": product.gated}
            for tile in {found[0], found[-1]}:
                cases.append(Case(tile=tile, rows=rows, outer=product.outer, inner=product.inner, **fusion))
    for tile, fusion in combinations((DirectTile(16, 32, 4), DirectTile(32, 64, 4, split_k=2)), FUSIONS.values()):
        cases.append(Case(tile=tile, rows=19, outer=64, inner=512, **fusion))
    for depth in (1, 2, 3):
        tile = DirectTile(16, 32, 4, prefetch_depth=depth)
        cases.append(Case(tile=tile, rows=11, outer=32, inner=512, gated=True, parts=2))
    check(cases)


def test_attention_of_the_official_shape() -> None:
    shape = {"num_kv_heads": 8, "group_size": 2, "head_size": 128, "device": "cuda", "dtype": torch.bfloat16}

    def attention(pages: list[list[int]], page_size: int = 64) -> AttentionCase:
        return AttentionCase(page_size=page_size, pages=pages, **shape)

    check_decode(attention([[3, 5], [2, 0], [0, 0], [1, 4]]), [70, 63, None, 64], 0.03)
    check_prefill(attention([[3, 5], [2, 0], [0, 0]]), [(60, 20), (0, 32), (0, 0)], 32, 0.03)
    check_pair(attention([[0], [1], [2]], 16), 3, 0.03)


@pytest.mark.parametrize(("kv", "group", "size"), [(2, 2, 128), (1, 3, 32), (1, 5, 64)])
@pytest.mark.parametrize("position", [2, 15])
def test_decode_with_one_page(kv: int, group: int, size: int, position: int) -> None:
    case = AttentionCase(
        num_kv_heads=kv,
        group_size=group,
        head_size=size,
        page_size=16,
        pages=[[0], [1], [2]],
        device="cuda",
        dtype=torch.bfloat16,
    )
    check_decode(case, [position] * 3, 0.03, one_page=True)


# The engine ----------------------------------------------------------------------------------------------------


def admit(engine: CudaTalkerEngine, rows: list[ReferenceRequest]) -> list[str]:
    """Returns their ids."""
    engine.admit([engine.prepare(row.request, b"".join(row.frames), None) for row in rows])
    return [row.request.id for row in rows]


def start(reference: Reference, count: int, first: int = 0) -> list[ReferenceRequest]:
    """Returns requests that never end."""
    return [
        reference.start(small_talker.request(f"request {number}", sampling=ENDLESS, seed=number))
        for number in range(first, first + count)
    ]


def step(engine: CudaTalkerEngine, reference: Reference, rows: list[ReferenceRequest]) -> list[float]:
    """Runs a frame of each. Returns its errors."""
    results = engine.read(engine.launch([row.request.id for row in rows]))
    return reference.errors(rows, [results[row.request.id] for row in rows])


def occupy_device(engine: CudaTalkerEngine) -> torch.cuda.Event:
    """Enqueues a long wait on the device. Returns an event at its end."""
    done = torch.cuda.Event()
    with engine.runner.recorder.on_stream():
        torch.cuda._sleep(MANY_CYCLES)
        done.record()
    return done


def hidden_of(engine: CudaTalkerEngine, names: list[str]) -> torch.Tensor:
    """Returns the hidden states of requests [names, H]."""
    with engine.runner.recorder.on_stream():
        return engine.runner.state.hidden[[engine._rows[name].allocation.slot for name in names]].cpu()


@each_dtype
def test_concurrent_requests_get_the_frames_of_each_alone(
    reference: Reference, engine_of: Make, dtype: torch.dtype
) -> None:
    engine = engine_of(dtype)
    poison(engine)
    lifetimes = Lifetimes(reference, engine, RESIDENT, max_frames=12, before_launch=lambda: poison(engine))
    lifetimes.run(steps=60)
    assert len(lifetimes.errors) > 200
    assert lifetimes.resumed > 5
    assert len({request.end for request in lifetimes.all}) == 3, "stopped, full, or released"
    assert max(lifetimes.errors) < TOLERANCE[dtype]


@pytest.mark.parametrize("size", SIZES)
def test_every_batch_size_with_fewer_rows(
    reference: Reference, engine: CudaTalkerEngine, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.runner, "batch_sizes", [size])
    resident = max(1, size - 1)
    lifetimes = Lifetimes(
        reference, engine, resident, seed=size, arrival_probability=1.0, before_launch=lambda: poison(engine)
    )
    lifetimes.run(steps=20)
    assert len(lifetimes.errors) > 8
    assert max(lifetimes.errors) < TOLERANCE[torch.float32]


def test_prompts_beside_frames(reference: Reference, engine: CudaTalkerEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    from syrinx_stages.talker.cuda.prefill import MIXED_SHAPES

    runner, size = engine.runner, SIZES[-1]
    monkeypatch.setattr(runner, "batch_sizes", [size])
    monkeypatch.setattr(runner, "mixed", {})
    with torch.inference_mode(), runner.recorder.on_stream():
        for shape in MIXED_SHAPES:
            runner.capture_mixed(size, shape)
    decode, beside = runner.decode, []
    monkeypatch.setattr(runner, "decode", lambda rows, prompts: (beside.append(len(prompts)), decode(rows, prompts))[1])
    lifetimes = Lifetimes(reference, engine, size, seed=1, before_launch=lambda: poison(engine))
    lifetimes.run(steps=30)
    assert any(beside)
    assert max(lifetimes.errors) < TOLERANCE[torch.float32]


def test_prefill_and_step_do_not_wait_for_the_device(reference: Reference, engine: CudaTalkerEngine) -> None:
    resumed = start(reference, 3)
    admit(engine, resumed)
    for _ in range(3):
        assert max(step(engine, reference, resumed)) < TOLERANCE[torch.float32]
    # Once without time pressure, so that everything is loaded.
    admit(engine, resumed)
    rows = [*resumed, *start(reference, 3, first=10)]
    prepared = [engine.prepare(row.request, b"".join(row.frames), None) for row in rows]
    ids = [row.request.id for row in rows]
    torch.cuda.synchronize()
    done = occupy_device(engine)
    torch.cuda.set_sync_debug_mode("error")
    try:
        engine.admit(prepared)
        steps = [engine.launch(ids) for _ in range(2)]
        assert not done.query(), "the device is still occupied"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for launched in steps:
        results = engine.read(launched)
        assert max(reference.errors(rows, [results[name] for name in ids])) < TOLERANCE[torch.float32]


def test_prepared_tensors_are_not_freed_before_the_prefill(reference: Reference, engine: CudaTalkerEngine) -> None:
    """Their memory belongs to another stream, which could reuse it while the device is occupied."""
    rows = start(reference, 4)
    prepared = [engine.prepare(row.request, b"", None) for row in rows]
    torch.cuda.synchronize()
    done = occupy_device(engine)
    engine.admit(prepared)
    del prepared
    others = 0
    while not done.query():
        engine.prepare(small_talker.request("other", "Another text.", seed=others), b"", None)
        others += 1
    assert others > 3, "the device was occupied"
    for _ in range(2):
        assert max(step(engine, reference, rows)) < TOLERANCE[torch.float32]


def test_warm_engine_compiles_nothing(reference: Reference, engine: CudaTalkerEngine) -> None:
    from triton import knobs

    compiled: list[str] = []
    knobs.runtime.jit_cache_hook = lambda **arguments: compiled.append(str(arguments["repr"]))
    try:
        Lifetimes(reference, engine, RESIDENT - 1, seed=1).run(steps=15)
        admit(engine, [reference.start(small_talker.request("long", small_talker.text(700)))])
        engine.read(engine.launch(["long"]))
    finally:
        knobs.runtime.jit_cache_hook = None
    assert not compiled


@torch.inference_mode()
def test_captured_step_gives_the_same_bits_as_the_step(
    reference: Reference, engine: CudaTalkerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = engine.runner
    plain = {size: (step, step.sample_codes, step.decode) for size, (step, *_) in runner.frames.items()}
    results, hidden = [], []
    for frames in (runner.frames, plain):
        monkeypatch.setattr(runner, "frames", frames)
        rows = start(reference, 3)
        ids = admit(engine, rows)
        results.append([engine.read(engine.launch(ids)) for _ in range(4)])
        hidden.append(hidden_of(engine, ids))
        for name in ids:
            engine.release(name)
        poison(engine)
    assert results[0] == results[1]
    assert torch.equal(*hidden)
    assert not any(isinstance(item, End) for frame in results[0] for item in frame.values())


@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=str)
@torch.inference_mode()
def test_request_whose_scores_are_not_finite_ends_alone(
    value: float, reference: Reference, engine: CudaTalkerEngine
) -> None:
    samplings = [ENDLESS, ENDLESS, Sampling(temperature=0, residual_temperature=0, min_frames=99)]
    requests = [small_talker.request(str(index), sampling=sampling) for index, sampling in enumerate(samplings)]
    rows = [reference.start(request) for request in requests]
    admit(engine, rows)
    with engine.runner.recorder.on_stream():
        for name in ("0", "2"):
            engine.runner.state.hidden[engine._rows[name].allocation.slot, 3] = value
    results = [engine.read(engine.launch(["0", "1", "2"])) for _ in range(2)]
    for name in ("0", "2"):
        assert isinstance(results[0][name], End)
        assert results[0][name].reason is EndReason.ERROR
        assert name not in results[1]
    assert max(reference.errors(rows[1:2], [results[0]["1"]])) < TOLERANCE[torch.float32]
    assert isinstance(results[1]["1"], bytes)


def test_official_shapes_in_every_batch_size_of_the_tile_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One layer of each stack, with the shapes of the 1.7B checkpoint, in bfloat16."""
    from syrinx_stages.talker.cuda import prefill
    from syrinx_stages.talker.cuda.engine import CudaTalkerEngine

    monkeypatch.setattr(prefill, "PREFILL_LENGTHS", (16, 32))
    write_configs(tmp_path, "1b7")
    settings = json.loads((tmp_path / "config.json").read_text())
    settings["talker_config"]["num_hidden_layers"] = 1
    settings["talker_config"]["code_predictor_config"]["num_hidden_layers"] = 1
    settings["talker_config"]["max_position_embeddings"] = 4096
    (tmp_path / "config.json").write_text(json.dumps(settings))
    reference = Reference(RandomCheckpoint(str(tmp_path), "cuda"))
    engine = CudaTalkerEngine(RandomCheckpoint(str(tmp_path), "cuda", torch.bfloat16), 64)
    sizes = engine.runner.batch_sizes = [1, 16, 32, 64]
    engine.warm_up()
    for size in sizes:
        engine.runner.batch_sizes = [size]
        resident = size if size == 1 else size - 2
        lifetimes = Lifetimes(
            reference, engine, resident, seed=size, arrival_probability=1.0, before_launch=lambda: poison(engine)
        )
        lifetimes.run(steps=3)
        assert len(lifetimes.errors) > size
        assert max(lifetimes.errors) < TOLERANCE[torch.bfloat16]
