"""Tests of the codec's tiles: every tile fits into the shared memory of every supported GPU."""

import pytest
import torch

from support.gpus import GPUS
from syrinx_stages.codec.cuda import tiles
from syrinx_stages.codec.cuda.tiles import Tile, conv_tile, max_split_k_programs, residual_unit_tile
from syrinx_stages.codec.cuda.weights import Conv
from syrinx_stages.kernels.gpu import H200, Gpu

KIB = 1024
POSITIONS = (1, 4, 16, 17, 32, 33, 64, 128, 500, 1000, 2048, 4096, 10_000, 40_000, 100_000, 1_000_000)

A100, L4, B200 = (GPUS[name] for name in ("A100", "L4", "B200"))
each_gpu = pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)


def conv(in_channels: int, outputs: int, taps: int = 1, dtype: torch.dtype = torch.float16, **fields: object) -> Conv:
    rows = outputs * (2 if fields.get("gated") else 1)
    weight = torch.empty(rows, taps * in_channels, dtype=dtype, device="meta")
    return Conv(weight, None, in_channels, outputs, taps, **fields)


def convs(dtype: torch.dtype) -> list[Conv]:
    """Returns the convolutions of the official decoder, one of each kind, and unusual sizes."""
    return [
        conv(512, 1024, 3, dtype), conv(1024, 512, dtype=dtype), conv(512, 3072, dtype=dtype, norm=512),
        conv(1024, 512, dtype=dtype), conv(512, 1024, dtype=dtype, norm=512, gated=True),
        conv(1024, 2048, dtype=dtype, upsampling=2), conv(1024, 4096, dtype=dtype, gelu=True),
        conv(4096, 1024, dtype=dtype), conv(1024, 1536, 7, dtype), conv(1536, 6144, 2, dtype, upsampling=8),
        conv(768, 768, 7, dtype, dilation=9), conv(384, 384, 7, dtype), conv(384, 768, 2, dtype, upsampling=4),
        conv(192, 192, 7, dtype), conv(96, 96, 7, dtype), conv(48, 16, dtype=dtype), conv(8192, 16_384, 2, dtype),
    ]  # fmt: skip


@each_gpu
@DTYPES
@pytest.mark.parametrize("num_positions", POSITIONS)
def test_every_tile_fits_into_shared_memory_and_divides_the_product(
    gpu: Gpu, dtype: torch.dtype, num_positions: int
) -> None:
    for each in convs(dtype):
        tile = conv_tile(each, num_positions, gpu)
        assert tile.shared_memory(gpu, each) <= gpu.shared_memory
        assert each.in_channels % tile.block_k == 0
        assert each.taps * each.in_channels % (tile.block_k * tile.split_k) == 0
        assert min(tile.block_m, tile.block_n, tile.block_k) >= 16 and tile.num_stages >= 2
        if tile.split_k > 1:
            assert not each.norm and not each.gated
            assert tile.count(num_positions, each.outputs) * tile.split_k <= max_split_k_programs(gpu)
            assert tile.block_m * tile.block_n <= tiles.SPLIT_K_TILE_ELEMENTS
        fused = residual_unit_tile(each, num_positions, gpu)
        assert fused is None or fused.shared_memory(gpu, each) <= gpu.shared_memory


@pytest.mark.parametrize(
    ("gpu", "tile", "each", "compiled"),
    [
        (H200, Tile(128, 256, 64, num_warps=8, num_stages=3), conv(1536, 768, 7), 147_456),
        (H200, Tile(16, 32, 512, num_stages=3), conv(512, 1024, 7), 98_304),
        (H200, Tile(32, 16, 1024), conv(1024, 512, norm=1024), 99_328),
        (H200, Tile(16, 32, 512, num_stages=3), conv(512, 1024, gated=True), 81_920),
        (H200, Tile(64, 64, 64, 4), conv(1024, 512, 7), 65_536),
        (H200, Tile(64, 192, 64, num_stages=3), conv(192, 192, 7), 98_304),
        (L4, Tile(128, 256, 64, num_warps=8, num_stages=3), conv(1536, 768, 7), 98_304),
        (L4, Tile(64, 128, 64), conv(384, 384, 7), 73_728),
        (A100, Tile(256, 64, 64, num_warps=8, num_stages=3), conv(192, 192, 7), 81_920),
        (B200, Tile(128, 64, 64, num_stages=3), conv(512, 1024, gated=True), 98_336),
    ],
)
def test_the_bound_is_close_to_what_triton_allocates(gpu: Gpu, tile: Tile, each: Conv, compiled: int) -> None:
    """compiled: the kernel's shared memory, as reported by Triton 3.6 for this target."""
    assert compiled <= tile.shared_memory(gpu, each) <= compiled + KIB


def test_a_residual_unit_that_does_not_fit_runs_as_two_products() -> None:
    assert residual_unit_tile(conv(192, 192, 7), 40_000, H200) is not None
    assert residual_unit_tile(conv(192, 192, 7, torch.float32), 40_000, L4) is None


GATED, PLAIN, DEEP = conv(512, 1024, norm=512, gated=True), conv(768, 768, 7), conv(512, 1024, 7)


@pytest.mark.parametrize(
    ("each", "num_positions", "gpu", "tile"),
    [
        # It loses stages before its block_k shrinks.
        (DEEP, 32, H200, Tile(32, 32, 512, 7, num_stages=3)),
        (DEEP, 32, L4, Tile(32, 32, 512, num_stages=2)),
        (conv(512, 1024, 7, torch.float32), 32, L4, Tile(32, 32, 256, num_stages=2)),
        # No thread has more sums than registers, except on the GPU that was measured.
        (GATED, 40_000, H200, Tile(128, 128, 64, num_warps=8, num_stages=3)),
        (GATED, 40_000, A100, Tile(128, 64, 64, num_warps=8, num_stages=3)),
        (PLAIN, 40_000, A100, conv_tile(PLAIN, 40_000, H200)),
        (PLAIN, 40_000, B200, Tile(128, 256, 64, num_warps=16, num_stages=3)),
    ],
)
def test_a_tile_suits_its_gpu(each: Conv, num_positions: int, gpu: Gpu, tile: Tile) -> None:
    assert conv_tile(each, num_positions, gpu) == tile
