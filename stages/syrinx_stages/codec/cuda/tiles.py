"""The tile of each matrix product of the codec: measured on an H200, and adapted to other GPUs.

Where a GPU has less shared memory, tiles get fewer stages; where the registers of a thread would spill, more warps.
"""

from dataclasses import dataclass, replace

from syrinx_stages.codec.cuda.weights import Conv
from syrinx_stages.kernels.gpu import Gpu, power_of_two_divisor

SCRATCH_BYTES = 1024
"""Shared memory that Triton allocates besides the operands: reductions over a row, barriers."""

SPLIT_K_TILE_ELEMENTS = 128 * 64
"""The largest tile (block_m * block_n) that is computed with split_k > 1."""

MAX_SUMS = 64
"""float32 sums of one thread, where the registers would not hold more."""


@dataclass(frozen=True)
class Tile:
    """A block of block_m positions and block_n channels, computed block_k inner elements at a time.

    `split_k` thread blocks share the inner dimension of one tile. `num_warps` and `num_stages` as in Triton.
    """

    block_m: int
    block_n: int
    block_k: int
    split_k: int = 1
    num_warps: int = 4
    num_stages: int = 4

    def count(self, num_positions: int, outputs: int) -> int:
        """Returns the number of tiles of a product."""
        return -(-num_positions // self.block_m) * -(-outputs // self.block_n)

    def shared_memory(self, gpu: Gpu, conv: Conv) -> int:
        """Returns an upper bound on the bytes of shared memory that the compiled kernel uses."""
        columns = self.block_n * (2 if conv.gated else 1)
        per_stage = (self.block_m + columns) * self.block_k * conv.weight.element_size()
        # sm_90 to sm_110 have tensor core instructions that read operands asynchronously (wgmma, tcgen05), so that the
        # buffer of the current step is in use as well. Triton uses them for blocks of 64 positions or more.
        asynchronous = 9 <= gpu.capability[0] <= 11 and self.block_m >= 64
        stages = self.num_stages if asynchronous else max(1, self.num_stages - 1)
        steps = conv.taps * conv.in_channels // (self.block_k * self.split_k)
        return min(stages, steps) * per_stage + SCRATCH_BYTES


def max_split_k_programs(gpu: Gpu) -> int:
    """Returns the maximum number of thread blocks of a product with split_k > 1."""
    return 4 * gpu.multiprocessors


def conv_tile(conv: Conv, num_positions: int, gpu: Gpu) -> Tile:
    """Returns the tile for `conv` at `num_positions` positions (rows * positions per row)."""
    if num_positions <= 32:
        tile = _few_positions(conv, 16 if num_positions <= 16 else 32, gpu)
    else:
        tile = _many_positions(conv, num_positions, gpu)
    if conv.norm or conv.gated:
        # The norm's and the gate's sums are not part of the split-K reduction.
        tile = replace(tile, split_k=1)
    tile = _fit(tile, gpu, conv)
    if tile.count(num_positions, conv.outputs) * tile.split_k > max_split_k_programs(gpu):
        tile = _fit(replace(tile, split_k=1), gpu, conv)
    return _without_spills(tile, gpu, conv)


def residual_unit_tile(conv: Conv, num_positions: int, gpu: Gpu) -> Tile | None:
    """Returns the tile for a residual unit in one kernel; None if two separate products are faster or it does not fit.

    conv: the unit's dilated convolution.
    """
    channels = conv.outputs
    if channels > 192 or (channels > 128 and num_positions <= 32768):
        return None
    block_k = power_of_two_divisor(channels, 64)
    if block_k == 64:
        tile = Tile(64, channels, block_k, num_stages=3)
    else:
        tile = Tile(64 if num_positions <= 16384 else 128, channels, block_k)
    return tile if tile.shared_memory(gpu, conv) <= gpu.shared_memory else None


def _fit(tile: Tile, gpu: Gpu, conv: Conv) -> Tile:
    """Returns `tile` with fewer stages, and then a smaller block_k, so that it fits into the GPU's shared memory."""
    while tile.shared_memory(gpu, conv) > gpu.shared_memory:
        if tile.num_stages > 2:
            tile = replace(tile, num_stages=tile.num_stages - 1)
        else:
            tile = replace(tile, block_k=tile.block_k // 2)
    return tile


def _without_spills(tile: Tile, gpu: Gpu, conv: Conv) -> Tile:
    """Returns `tile` with enough warps for its sums, which their threads share, to stay in registers.

    On sm_90 all do. Before sm_90 and on sm_120, registers also hold operands: too many for the two sums of a gated
    product. On sm_100 the sums are in tensor memory, and registers receive all of a tile at once for the epilogue.
    """
    if gpu.capability[0] == 9 or not (conv.gated or gpu.capability[0] == 10):
        return tile
    warps = tile.block_m * tile.block_n * (2 if conv.gated else 1) // (32 * MAX_SUMS)
    if conv.gated and warps > 8:
        # More warps would not help: with 16, a thread has half as many registers.
        return replace(tile, block_n=tile.block_n // 2, num_warps=8)
    return replace(tile, num_warps=max(tile.num_warps, warps))


def _few_positions(conv: Conv, block_m: int, gpu: Gpu) -> Tile:
    """Reading the weights dominates: if they fit, each thread block loads all of its weights at once."""
    inner, outputs = conv.taps * conv.in_channels, conv.outputs
    block_k = power_of_two_divisor(conv.in_channels, 512)
    if block_k < 512 or outputs >= 8192:
        block_k = power_of_two_divisor(conv.in_channels, 128)
        tile = Tile(block_m, min(_next_power_of_two(outputs), 64 if outputs >= 4096 else 32), block_k)
    elif conv.taps == 1 and conv.in_channels == 1024 and outputs <= 2048:
        return Tile(block_m, 16, 1024)
    else:
        tile = Tile(block_m, 16 if conv.gated and block_m == 32 else 32, block_k, num_stages=3)
    return replace(tile, split_k=_split_k(inner // block_k, tile.count(block_m, outputs), 16, gpu))


def _many_positions(conv: Conv, num_positions: int, gpu: Gpu) -> Tile:
    """Arithmetic dominates: blocks are as large as leaves enough of them for all multiprocessors."""
    outputs, sms = conv.outputs, gpu.multiprocessors
    block_k = power_of_two_divisor(conv.in_channels, 64)
    steps = conv.taps * conv.in_channels // block_k
    blocks = Tile(64, 64, block_k).count(num_positions, outputs)
    width = _next_power_of_two(outputs)
    if steps <= 16:
        if blocks < sms // 2:
            return Tile(64, min(width, 32), block_k)
        if blocks >= 7 * sms and outputs >= 768:
            return Tile(128, 128, block_k, num_warps=8, num_stages=3)
        if blocks >= 3 * sms:
            return Tile(128, min(width, 64), block_k, num_stages=3)
        return Tile(64, min(width, 64), block_k)
    if blocks <= sms // 2:
        return Tile(64, min(width, 64), block_k, _split_k(steps, blocks, 4, gpu))
    if outputs > 128 and outputs % 128:
        if blocks >= 3 * sms:
            return Tile(256, 64, block_k, num_warps=8, num_stages=3)
        return Tile(128, 64, block_k, num_stages=3)
    if blocks < 3 * sms and steps >= 48:
        return Tile(128, min(width, 64), block_k, _split_k(steps, blocks // 2, 2, gpu), num_warps=8)
    if blocks < 5 * sms:
        return Tile(64, min(width, 128), block_k, num_stages=4 if num_positions > 4096 else 3)
    if steps >= 48 and outputs % 256 == 0 and outputs < 4096:
        return Tile(128, 256, block_k, num_warps=8, num_stages=3)
    if outputs >= 4096:
        return Tile(128, 64, block_k, num_stages=3)
    return Tile(128, min(width, 128), block_k, num_stages=3)


def _split_k(steps: int, blocks: int, max_split: int, gpu: Gpu) -> int:
    """Returns the largest divisor of `steps` up to `max_split` that gives each multiprocessor two blocks at most."""
    splits = (n for n in range(2, max_split + 1) if steps % n == 0 and blocks * n <= 2 * gpu.multiprocessors)
    return max(splits, default=1)


def _next_power_of_two(outputs: int) -> int:
    return max(16, 1 << (outputs - 1).bit_length())
