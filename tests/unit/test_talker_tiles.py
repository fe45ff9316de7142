"""The tiles of the talker's products, for every checkpoint, number of rows and GPU architecture."""

import support.interpreter  # noqa: F401, I001 (before any kernel)

import json
from collections.abc import Iterator

import msgspec
import pytest
import torch
from gpu.checkpoint import talker_settings
from support import small_talker, talker_recipe
from support.gpus import GPUS

from syrinx_stages.kernels.attention import AttentionParams
from syrinx_stages.kernels.linear import DirectTile, MatrixTile, Tile
from syrinx_stages.kernels.split_k import SplitKWorkspace
from syrinx_stages.model.config import ModelConfig, TalkerConfig, TransformerConfig
from syrinx_stages.talker.cuda.layers import FusedLayers, LibraryLayers, new_split_k_workspace, new_stack
from syrinx_stages.talker.cuda.prefill import MAX_PREFILL_POSITIONS
from syrinx_stages.talker.cuda.packed import PackedLayer
from syrinx_stages.kernels.gpu import H200, Gpu
from syrinx_stages.talker.cuda.tiles import choose_tile, fit

SETTINGS = {
    "0.6B": talker_settings("0b6", 0),
    "1.7B": talker_settings("1b7", 0),
    "bundled": json.loads((talker_recipe.VOICE / "config.json").read_text()),
    "small": small_talker.settings(),
}
CONFIGS = {name: msgspec.convert(given, ModelConfig).talker_config for name, given in SETTINGS.items()}
DTYPES = (torch.bfloat16, torch.float32)
ROWS = range(1, MAX_PREFILL_POSITIONS + 1)
each_talker = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def matrix(outer: int, inner: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(outer, inner, dtype=dtype, device="meta")


def layer(config: TransformerConfig, dtype: torch.dtype) -> PackedLayer:
    """Returns a layer with the shapes that `pack` gives it, without values."""
    width, heads, kv = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
    empty = matrix(1, 1, dtype)
    return PackedLayer(
        qkv=matrix((heads + 2 * kv) * config.head_size, width, dtype),
        attention=AttentionParams(kv, heads // kv, config.head_size, norms=empty, cosines=empty, sines=empty, eps=1e-6),
        output=matrix(width, heads * config.head_size, dtype),
        gate_up=matrix(2 * config.intermediate_size, width, dtype),
        down=matrix(width, config.intermediate_size, dtype),
    )


def heads_of(config: TalkerConfig) -> tuple[tuple[int, int], ...]:
    """Returns the shapes of the products that sample codes."""
    predictor = config.code_predictor_config
    return (
        (config.vocab_size + predictor.hidden_size, config.hidden_size),
        (predictor.vocab_size, predictor.hidden_size),
    )


def products(
    config: TalkerConfig, dtype: torch.dtype, rows: int, workspace: SplitKWorkspace
) -> Iterator[tuple[Tile, int, int]]:
    """Yields tile and matrix shape of every product of a frame or prefill."""
    for part in (config, config.code_predictor_config):
        packed = layer(part, dtype)
        stack = new_stack([packed], 1e-6, rows, workspace)
        if not isinstance(stack, FusedLayers):
            continue
        columns = stack.tiles["down"].columns
        assert stack.tiles["output"].columns == columns, "both write the same number of sums of squares"
        assert stack.sum_of_squares.shape == (rows, part.hidden_size // columns)
        for name, tile in stack.tiles.items():
            weight = getattr(packed, name)
            yield tile, weight.shape[0] // (2 if name == "gate_up" else 1), weight.shape[1]
    for outer, inner in heads_of(config):
        yield choose_tile(rows, matrix(outer, inner, dtype)), outer, inner


@each_dtype
@each_talker
def test_tiles_divide_their_matrix_and_fit_the_workspace(config: TalkerConfig, dtype: torch.dtype) -> None:
    for rows in (*ROWS, *range(576, 1088, 64)):
        workspace = new_split_k_workspace(config, matrix(1, 1, dtype), max(rows, MAX_PREFILL_POSITIONS))
        for tile, outer, inner in products(config, dtype, rows, workspace):
            assert outer % tile.columns == 0
            assert inner % (tile.inner * tile.split_k * (tile.num_warps if isinstance(tile, DirectTile) else 1)) == 0
            height = tile.rows if isinstance(tile, MatrixTile) else max(8, 1 << (rows - 1).bit_length())
            assert isinstance(tile, MatrixTile) or rows <= DirectTile.MAX_ROWS
            blocks = -(-rows // height)
            # Gated products have two sums each.
            assert 2 * tile.split_k * blocks * height * outer <= workspace.partial_sums.numel() or tile.split_k == 1
            assert blocks * outer // tile.columns <= workspace.counters.numel()


@pytest.mark.parametrize(("size", "rows"), [("1.7B", 64), ("0.6B", 128)])
def test_a_library_computes_the_products_of_more_rows(size: str, rows: int) -> None:
    config = CONFIGS[size]
    workspace = new_split_k_workspace(config, matrix(1, 1, torch.bfloat16), 2 * rows)
    layers = [layer(config, torch.bfloat16)]
    assert isinstance(new_stack(layers, 1e-6, rows, workspace), FusedLayers)
    assert isinstance(new_stack(layers, 1e-6, rows + 1, workspace), LibraryLayers)


@each_dtype
@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_tiles_fit_the_shared_memory_of_every_gpu(gpu: Gpu, dtype: torch.dtype) -> None:
    for config in CONFIGS.values():
        for rows in (1, 2, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 256, 257, 512):
            for part in (config, config.code_predictor_config):
                packed = layer(part, dtype)
                added = [choose_tile(rows, each, residual=True, gpu=gpu) for each in (packed.output, packed.down)]
                assert added[0].columns == added[1].columns
                for name in ("qkv", "output", "gate_up", "down"):
                    gated, residual = name == "gate_up", name in ("output", "down")
                    weight = getattr(packed, name)
                    tile = choose_tile(rows, weight, gated=gated, residual=residual, gpu=gpu)
                    assert _bytes(tile, rows, gated, dtype.itemsize, gpu) <= gpu.shared_memory
                    warps = tile.num_warps if isinstance(tile, DirectTile) else 1
                    assert weight.shape[1] % (tile.inner * tile.split_k * warps) == 0
            for outer, inner in heads_of(config):
                tile = choose_tile(rows, matrix(outer, inner, dtype), gpu=gpu)
                assert _bytes(tile, rows, False, dtype.itemsize, gpu) <= gpu.shared_memory


def _bytes(tile: Tile, rows: int, gated: bool, element_size: int, gpu: Gpu) -> int:
    if isinstance(tile, DirectTile):
        return tile.shared_memory(rows)
    return tile.shared_memory(gated, element_size, gpu.capability)


@pytest.mark.parametrize(
    ("gpu", "gated", "reduced"),
    [
        (H200, False, MatrixTile(64, 32, 128, num_stages=6)),
        (GPUS["A100"], True, MatrixTile(64, 32, 128, num_stages=6)),
        (GPUS["A10"], False, MatrixTile(64, 32, 128, num_stages=5)),
        (GPUS["L4"], True, MatrixTile(64, 32, 128, num_stages=4)),
        (GPUS["RTX 5090"], False, MatrixTile(64, 32, 128, num_stages=4)),
        (Gpu((8, 6), 48 << 10), True, MatrixTile(64, 32, 64, num_stages=3)),
        (Gpu((8, 6), 12 << 10), True, MatrixTile(64, 32, 32, num_stages=2)),
    ],
)
def test_tile_is_reduced_to_the_shared_memory(gpu: Gpu, gated: bool, reduced: MatrixTile) -> None:
    assert fit(MatrixTile(64, 32, 128, num_stages=6), 64, gated, 2, gpu) == reduced


@pytest.mark.parametrize("tile", [MatrixTile(64, 32, 128, num_stages=6), DirectTile(64, 32, 8)])
def test_rejects_a_gpu_with_too_little_shared_memory(tile: Tile) -> None:
    with pytest.raises(ValueError, match="does not fit 2048 bytes of shared memory"):
        fit(tile, 64, False, 2, Gpu((8, 6), 2048))


@pytest.mark.parametrize(("outer", "inner"), [(24, 64), (64, 40)])
def test_rejects_a_matrix_that_is_not_made_of_blocks(outer: int, inner: int) -> None:
    with pytest.raises(ValueError, match=f"a matrix of {outer} x {inner} is not made of blocks of 16 x 16"):
        choose_tile(8, matrix(outer, inner, torch.bfloat16))
