"""How the talker's products are cut: for every number of rows, whatever the checkpoint."""

import support.interpreter  # noqa: F401, I001 (before any kernel)

import json
from collections.abc import Iterator

import msgspec
import pytest
import torch
from gpu.checkpoint import talker_settings
from support import small_talker, talker_recipe

from syrinx_stages.kernels.attention import Heads
from syrinx_stages.kernels.linear import Direct, Matrix, SplitKWorkspace, Tile
from syrinx_stages.model.config import ModelConfig, TalkerConfig, TransformerConfig
from syrinx_stages.talker.cuda_engine import PREFILL_POSITIONS
from syrinx_stages.talker.frame import Stack, new_split_k_workspace
from syrinx_stages.talker.packed import PackedLayer
from syrinx_stages.talker.tiles import tile_of

SETTINGS = {
    "0.6B": talker_settings("0b6", 0),
    "1.7B": talker_settings("1b7", 0),
    "bundled": json.loads((talker_recipe.VOICE / "config.json").read_text()),
    "small": small_talker.settings(),
}
CONFIGS = {name: msgspec.convert(given, ModelConfig).talker_config for name, given in SETTINGS.items()}
KINDS = (torch.bfloat16, torch.float32)
ROWS = range(1, PREFILL_POSITIONS + 1)

every_talker = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
every_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


def matrix(outer: int, inner: int, kind: torch.dtype) -> torch.Tensor:
    return torch.empty(outer, inner, dtype=kind, device="meta")


def layer(config: TransformerConfig, kind: torch.dtype) -> PackedLayer:
    """Of the shapes that `pack` gives it; without numbers."""
    width, heads, kv = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
    none = matrix(1, 1, kind)
    return PackedLayer(
        qkv=matrix((heads + 2 * kv) * config.head_size, width, kind),
        heads=Heads(kv=kv, group=heads // kv, size=config.head_size, norms=none, cosines=none, sines=none, eps=1e-6),
        output=matrix(width, heads * config.head_size, kind),
        gate_up=matrix(2 * config.intermediate_size, width, kind),
        down=matrix(width, config.intermediate_size, kind),
    )


def products(
    config: TalkerConfig, kind: torch.dtype, rows: int, sharing: SplitKWorkspace
) -> Iterator[tuple[Tile, int, int]]:
    """Every product of a step or prefill of so many rows: its tile, and the matrix."""
    predictor = config.code_predictor_config
    for part in (config, predictor):
        packed = layer(part, kind)
        tiles = Stack([packed], 1e-6, rows, sharing)._tiles
        for name, tile in tiles.items():
            weight = getattr(packed, name)
            yield tile, weight.shape[0] // (2 if name == "gate_up" else 1), weight.shape[1]
    for outer, inner in (
        (config.vocab_size + predictor.hidden_size, config.hidden_size),
        (predictor.vocab_size, predictor.hidden_size),
    ):
        yield tile_of(rows, matrix(outer, inner, kind)), outer, inner


@every_kind
@every_talker
def test_every_tile_divides_its_matrix_and_has_room_for_its_shares(config: TalkerConfig, kind: torch.dtype) -> None:
    for rows in (*ROWS, *range(576, 1088, 64)):
        sharing = new_split_k_workspace(config, matrix(1, 1, kind), max(rows, PREFILL_POSITIONS))
        for tile, outer, inner in products(config, kind, rows, sharing):
            assert outer % tile.columns == 0
            assert inner % (tile.inner * tile.shares * (tile.warps if isinstance(tile, Direct) else 1)) == 0
            height = tile.rows if isinstance(tile, Matrix) else max(8, 1 << (rows - 1).bit_length())
            assert isinstance(tile, Matrix) or rows <= Direct.MOST_ROWS
            blocks = -(-rows // height)
            # Those of a gate have two sums each.
            assert 2 * tile.shares * blocks * height * outer <= sharing.parts.numel() or tile.shares == 1
            assert blocks * outer // tile.columns <= sharing.arrived.numel()


@every_kind
@every_talker
def test_what_is_added_to_a_residual_is_cut_alike(config: TalkerConfig, kind: torch.dtype) -> None:
    """Both products leave the sums of squares of so many columns."""
    sharing = new_split_k_workspace(config, matrix(1, 1, kind), PREFILL_POSITIONS)
    for rows in ROWS:
        for part in (config, config.code_predictor_config):
            stack = Stack([layer(part, kind)], 1e-6, rows, sharing)
            assert stack._tiles["output"].columns == stack._tiles["down"].columns
            assert stack.squares.shape == (rows, part.hidden_size // stack._tiles["down"].columns)


@pytest.mark.parametrize(("outer", "inner"), [(24, 64), (64, 40)])
def test_a_matrix_that_is_not_made_of_blocks_is_refused(outer: int, inner: int) -> None:
    with pytest.raises(ValueError, match=f"a matrix of {outer} x {inner} is not made of blocks of 16 x 16"):
        tile_of(8, matrix(outer, inner, torch.bfloat16))
