"""The measurement of the talker's tiles."""

import support.interpreter  # noqa: F401, I001 (before any kernel)


import msgspec
import pytest
from gpu import tiles
from gpu.checkpoint import talker_settings
from gpu.tiles import Product, Rig
from support import small_talker

from syrinx_stages.kernels.linear import DirectTile, MatrixTile, Tile
from syrinx_stages.model.config import ModelConfig, TalkerConfig
from syrinx_stages.talker.tiles import MAX_SPLIT_K

OUTPUT, DOWN, QKV = Product(16, 8, residual=True), Product(16, 32, residual=True), Product(64, 16)


def config_of(settings: object) -> TalkerConfig:
    return msgspec.convert(settings, ModelConfig).talker_config


OFFICIAL = config_of(talker_settings("1b7", 0))


@pytest.mark.parametrize("rows", tiles.ROWS)
def test_every_product_has_candidates_that_divide_it(rows: int) -> None:
    for products in tiles.parts(OFFICIAL).values():
        for product in products:
            found = list(tiles.candidates(product, rows))
            assert 5 < len(found) < 160 and len(set(found)) == len(found)
            for tile in found:
                assert product.outer % tile.columns == 0
                inner = tile.inner * tile.split_k * (tile.num_warps if isinstance(tile, DirectTile) else 1)
                assert product.inner % inner == 0 and tile.split_k <= MAX_SPLIT_K
                assert isinstance(tile, MatrixTile) or rows <= DirectTile.MAX_ROWS


def test_products_of_one_residual_have_the_same_columns_and_the_best_pair_wins() -> None:
    options: dict[Product, list[Tile]] = {
        OUTPUT: [DirectTile(16, 32, 4), DirectTile(16, 64, 4), DirectTile(32, 32, 4), DirectTile(64, 32, 4)],
        DOWN: [DirectTile(16, 32, 4), DirectTile(32, 32, 4), DirectTile(32, 64, 4)],
        QKV: [DirectTile(16, 32, 4), DirectTile(32, 32, 8)],
    }
    times_of: dict[tuple[Product, Tile], float] = {
        (OUTPUT, DirectTile(16, 32, 4)): 1.0,
        (OUTPUT, DirectTile(16, 64, 4)): 2.0,
        (OUTPUT, DirectTile(32, 32, 4)): 3.0,
        (DOWN, DirectTile(16, 32, 4)): 9.0,
        (DOWN, DirectTile(32, 32, 4)): 7.0,
        (DOWN, DirectTile(32, 64, 4)): 4.0,
        (QKV, DirectTile(16, 32, 4)): 6.0,
        (QKV, DirectTile(32, 32, 8)): 5.0,
    }
    tried = []

    def timed(chosen: tiles.Tiles) -> float:
        tried.append(chosen)
        return sum(times_of[each] for each in chosen.items())

    best, times = tiles.sweep((OUTPUT, DOWN, QKV), options, timed)
    assert best == {OUTPUT: DirectTile(32, 32, 4), DOWN: DirectTile(32, 64, 4), QKV: DirectTile(32, 32, 8)}
    assert all(chosen[OUTPUT].columns == chosen[DOWN].columns for chosen in tried)
    assert times[DOWN] == [(12.0, DirectTile(32, 64, 4)), (15.0, DirectTile(32, 32, 4))]
    assert times[QKV][0] == (12.0, DirectTile(32, 32, 8))


def test_frames_use_the_given_tiles() -> None:
    config = config_of(small_talker.settings())
    stack = config.code_predictor_config
    product = Product(stack.intermediate_size, stack.hidden_size, gated=True)
    tile = MatrixTile(16, 16, 16, 2)
    frame = Rig(config, "cpu", 4).frame(1, {product: tile})
    assert frame.code_sampler.single.tiles["gate_up"] == tile
    assert frame.code_sampler.pair.tiles["gate_up"] != tile, "other batch sizes keep the engine's tiles"
    frame.sample_codes()
    frame.decode()
    assert frame.code_sampler.codes.ne(0).any()
