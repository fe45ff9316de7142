"""The sweep over the ways to cut the talker's products: what it tries, and what it keeps."""

import support.interpreter  # noqa: F401, I001 (before any kernel)

from collections.abc import Iterator

import msgspec
import pytest
import torch
from gpu import tiles
from gpu.checkpoint import talker_settings
from gpu.tiles import Product, Rig
from support import small_talker

from syrinx_stages.kernels.linear import Direct, Matrix, Tile
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.config import ModelConfig, TalkerConfig
from syrinx_stages.talker.packed import PackedLayer, PackedTalker, pack
from syrinx_stages.talker.tiles import MOST_SHARES

OUTPUT, DOWN, QKV = Product(16, 8, residual=True), Product(16, 32, residual=True), Product(64, 16)


def config_of(settings: object) -> TalkerConfig:
    return msgspec.convert(settings, ModelConfig).talker_config


OFFICIAL = config_of(talker_settings("1b7", 0))


@pytest.mark.parametrize("rows", tiles.ROWS)
def test_every_product_has_candidates_that_divide_it_and_have_room(rows: int) -> None:
    for products in tiles.parts(OFFICIAL).values():
        for product in products:
            found = list(tiles.candidates(product, rows))
            assert 5 < len(found) < 160 and len(set(found)) == len(found)
            for tile in found:
                assert product.outer % tile.columns == 0
                inner = tile.inner * tile.shares * (tile.warps if isinstance(tile, Direct) else 1)
                assert product.inner % inner == 0 and tile.shares <= MOST_SHARES
                assert isinstance(tile, Matrix) or rows <= Direct.MOST_ROWS


def test_the_official_checkpoints_have_nine_shapes_of_products() -> None:
    shapes = {product[:3] for products in tiles.parts(OFFICIAL).values() for product in products}
    assert shapes == {
        *((4096, 2048, False), (2048, 2048, False), (6144, 2048, True), (2048, 6144, False)),
        *((4096, 1024, False), (1024, 2048, False), (3072, 1024, True), (1024, 3072, False), (2048, 1024, False)),
    }


def test_what_is_added_to_one_residual_is_cut_alike_and_the_best_of_both_is_kept() -> None:
    options: dict[Product, list[Tile]] = {
        OUTPUT: [Direct(16, 32, 4), Direct(16, 64, 4), Direct(32, 32, 4), Direct(64, 32, 4)],
        DOWN: [Direct(16, 32, 4), Direct(32, 32, 4), Direct(32, 64, 4)],
        QKV: [Direct(16, 32, 4), Direct(32, 32, 8)],
    }
    took = {
        (OUTPUT, Direct(16, 32, 4)): 1.0, (OUTPUT, Direct(16, 64, 4)): 2.0, (OUTPUT, Direct(32, 32, 4)): 3.0,
        (DOWN, Direct(16, 32, 4)): 9.0, (DOWN, Direct(32, 32, 4)): 7.0, (DOWN, Direct(32, 64, 4)): 4.0,
        (QKV, Direct(16, 32, 4)): 6.0, (QKV, Direct(32, 32, 8)): 5.0,
    }  # fmt: skip
    asked = []

    def timed(cut: tiles.Tiles) -> float:
        asked.append(cut)
        return sum(took[each] for each in cut.items())

    best, times = tiles.sweep((OUTPUT, DOWN, QKV), options, timed)
    assert best == {OUTPUT: Direct(32, 32, 4), DOWN: Direct(32, 64, 4), QKV: Direct(32, 32, 8)}
    assert all(cut[OUTPUT].columns == cut[DOWN].columns for cut in asked)
    assert times[DOWN] == [(12.0, Direct(32, 64, 4)), (15.0, Direct(32, 32, 4))]
    assert times[QKV][0] == (12.0, Direct(32, 32, 8))


def test_the_table_is_that_of_the_engine() -> None:
    best: dict[int, tiles.Tiles] = {
        1: {QKV: Direct(32, 32, 8), OUTPUT: Matrix(64, 32, 64, 4)},
        8: {QKV: Direct(16, 32, 4)},
    }
    read = eval(f"{{{tiles.table(best)}}}", {"Matrix": Matrix, "Direct": Direct})
    assert read == {QKV[:3]: (Direct(32, 32, 8), Direct(16, 32, 4)), OUTPUT[:3]: (Matrix(64, 32, 64, 4),)}


def test_what_is_compiled_is_cut_as_what_is_timed() -> None:
    products = tiles.parts(OFFICIAL)["draw_codes"]
    output, down, qkv = products[:3]
    for tile in tiles.candidates(output, 16):
        cut = tiles.beside(tiles.Trial(16, "draw_codes", output, tile), products)
        assert cut[output] == tile and cut[down].columns == tile.columns
    (tile, *_) = tiles.candidates(qkv, 16)
    assert tiles.beside(tiles.Trial(16, "draw_codes", qkv, tile), products) == {qkv: tile}


def shapes(packed: PackedTalker) -> Iterator[tuple[str, torch.Size]]:
    for part in (packed, *packed.layers, *packed.predictor):
        for name, value in vars(part).items():
            if isinstance(value, torch.Tensor):
                yield f"{type(part).__name__}.{name}", value.shape
        if isinstance(part, PackedLayer):
            yield "norms", part.heads.norms.shape


def test_a_drawn_talker_has_the_shapes_of_a_loaded_one_and_is_cut_as_told(tmp_path) -> None:
    checkpoint = Checkpoint(str(small_talker.write(tmp_path)), "cpu", torch.bfloat16)
    config = checkpoint.config.talker_config
    with torch.inference_mode():
        loaded = pack(checkpoint.load_talker())
    assert list(shapes(tiles.drawn(config, "cpu"))) == list(shapes(loaded))

    stack = config.code_predictor_config
    product = Product(stack.intermediate_size, stack.hidden_size, gated=True)
    cut = Matrix(16, 16, 16, 2)
    frame = Rig(config, "cpu", 4).frame(3, {product: cut})
    assert frame.draws._single._tiles["gate_up"] == cut
    assert frame.draws._pair._tiles["gate_up"] != cut, "steps of other sizes are cut as in the engine"
    frame.draw_codes()
    frame.advance()
    assert frame.draws.codes.ne(0).any()
