"""Measures the tiles of the talker's products on a GPU and prints a table for `syrinx_stages/talker/cuda/tiles.py`.

Run `python -m gpu.tiles`. Tiles are tried within a frame, one product at a time: kernels overlap, so the tile that is
fastest alone is not the fastest in a frame. All candidates are compiled first, in parallel.
"""

import argparse
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product as combinations
from typing import NamedTuple
from unittest.mock import patch

import msgspec
import torch
from torch import Tensor

from gpu.checkpoint import random_talker, talker_settings
from gpu.timing import elapsed_ms
from syrinx_stages.kernels.gpu import gpu_of
from syrinx_stages.kernels.linear import DirectTile, MatrixTile, Tile
from syrinx_stages.kernels.metadata import FRAME, NUM_COLUMNS, POSITION, SLOT
from syrinx_stages.kernels.recorder import GraphRecorder
from syrinx_stages.model.config import ModelConfig, TalkerConfig, TransformerConfig
from syrinx_stages.talker.cuda import frame as frame_module
from syrinx_stages.talker.cuda import layers as layers_module
from syrinx_stages.talker.cuda.frame import DeviceState, FrameStep
from syrinx_stages.talker.cuda.packed import PackedTalker, pack
from syrinx_stages.talker.cuda.tiles import choose_tile

ROWS = (1, 8, 16, 32, 64, 128)
MIDDLE = 54
"""Position of every row: the middle of an utterance of mean length."""
PAGE, PAGES = 64, 64
MAX_REGISTERS = 255
"""Of a thread."""
REPEATS = 9
ROUNDS = 2
"""Rounds over all products: the best tile of one depends on those of the others."""


class Product(NamedTuple):
    """A product with a matrix [outer, inner], or two if gated; its result may be added to a residual."""

    outer: int
    inner: int
    gated: bool = False
    residual: bool = False


Tiles = dict[Product, Tile]


def products_of(stack: TransformerConfig, head: int) -> tuple[Product, ...]:
    """Returns the products of a layer stack and its head; first the two that are added to the residual."""
    width, queries = stack.hidden_size, stack.num_attention_heads * stack.head_size
    keys = stack.num_key_value_heads * stack.head_size
    return (
        Product(width, queries, residual=True),
        Product(width, stack.intermediate_size, residual=True),
        Product(queries + 2 * keys, width),
        Product(stack.intermediate_size, width, gated=True),
        Product(head, width),
    )


def parts(config: TalkerConfig) -> dict[str, tuple[Product, ...]]:
    """Returns the products of each of a frame's two graphs."""
    predictor = config.code_predictor_config
    return {
        "sample_codes": products_of(predictor, predictor.vocab_size),
        "decode": products_of(config, config.vocab_size + predictor.hidden_size)[:-1],
    }


def candidates(product: Product, rows: int) -> Iterator[Tile]:
    """Yields tiles that divide the matrix, fit a multiprocessor and occupy most of them."""
    if rows <= DirectTile.MAX_ROWS:
        yield from _direct(product, max(8, rows))
    if rows > 8:
        yield from _matrix(product, rows)


def _direct(product: Product, rows: int) -> Iterator[DirectTile]:
    default = DirectTile.prefetch_depth
    for columns, warps, split_k, depth in combinations((16, 32, 64), (4, 8), (1, 2, 3, 4, 6), (default, 2)):
        sums = columns * (1 + product.gated)
        for inner in (128, 64, 32):
            steps = product.inner / (split_k * warps * inner)
            weights = sums * inner * min(steps, depth) / 64
            registers = 14 + weights + rows * inner / 64 * min(steps, 2) + sums * rows / 32
            differs = depth == default or depth < steps
            busy = 60 <= product.outer // columns * split_k <= 800 and columns <= 4 * rows
            if steps == int(steps) and differs and registers <= MAX_REGISTERS and busy:
                yield DirectTile(columns, inner, warps, split_k, depth)


def _matrix(product: Product, rows: int) -> Iterator[MatrixTile]:
    gpu = gpu_of(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    for columns, (inner, stages), split_k, swap in combinations(
        (16, 32, 64), ((128, 4), (128, 6), (256, 4)), (1, 2, 3, 4), (True, False)
    ):
        height = min(rows, 64) if swap else 64
        tile = MatrixTile(height, columns, inner, stages, 4, split_k, swap)
        memory = tile.shared_memory(product.gated, 2, gpu.capability)
        programs = product.outer // columns * split_k * -(-rows // height)
        shaped = columns >= 64 if swap else columns < 64 or product.gated
        divides = product.inner % (inner * split_k) == 0 and inner * stages <= product.inner // split_k * 2
        if shaped and divides and 60 <= programs <= 520 and 48 << 10 <= memory <= gpu.shared_memory:
            yield tile


def packed_talker(config: TalkerConfig, device: torch.device) -> PackedTalker:
    """Returns a packed talker with random weights and few text embeddings, which no frame reads."""
    with torch.inference_mode():
        return pack(random_talker(msgspec.structs.replace(config, text_vocab_size=16), device, torch.bfloat16))


class Rig:
    """Frames of one talker with any tiles."""

    def __init__(self, config: TalkerConfig, device: str, max_rows: int) -> None:
        self._config, self._weights = config, packed_talker(config, torch.device(device))
        self._recorder = GraphRecorder(torch.device(device))
        self._state = DeviceState(
            config, self._weights.norm, slots=max_rows + 1, pages=max_rows + 1, page_size=PAGE, ring=2,
            max_rows=max_rows, max_prefill=64,
        )  # fmt: skip
        self._state.hidden.normal_()
        self._state.sampling_params[:] = torch.tensor([0.9, 50, 1.0, 1.05, 2.0])

    def frame(self, rows: int, tiles: Tiles) -> FrameStep:
        """Returns a frame of `rows` rows in the middle of their utterances; `tiles` replaces those of the engine."""

        def choose(of: int, weight: Tensor, *, gated: bool = False, residual: bool = False) -> Tile:
            product = Product(weight.shape[0] // (1 + gated), weight.shape[1], gated, residual)
            found = tiles.get(product) if of == rows else None
            return found or choose_tile(of, weight, gated=gated, residual=residual)

        with patch.object(frame_module, "choose_tile", choose), patch.object(layers_module, "choose_tile", choose):
            frame = FrameStep(self._weights, self._config, self._state, rows, PAGES)
        index = torch.arange(1, rows + 1, dtype=torch.int32)
        for column, value in ((SLOT, index), (POSITION, MIDDLE), (FRAME, 20)):
            frame.metadata[:, column.value] = value
        frame.metadata[:, NUM_COLUMNS] = index
        return frame

    def microseconds(self, rows: int, part: str, tiles: Tiles) -> float:
        """Returns the time of a part of the frame."""
        with self._recorder.on_stream():
            work = self._recorder.capture_graph(getattr(self.frame(rows, tiles), part))
            return 1000 * elapsed_ms(work, repeats=REPEATS)[0]


class Trial(NamedTuple):
    """A tile for one product of a part of a frame."""

    rows: int
    part: str
    product: Product
    tile: Tile


def trials(config: TalkerConfig, rows: Iterable[int]) -> Iterator[Trial]:
    """Yields all candidates."""
    for count, (part, products) in combinations(rows, parts(config).items()):
        for product in products:
            for tile in candidates(product, count):
                yield Trial(count, part, product, tile)


def with_residual_pair(trial: Trial, products: Iterable[Product]) -> Tiles:
    """Returns the trial's tile and, for the other product with its residual, the first with as many columns.

    Returns an empty mapping if no tile of the other product has that number of columns.
    """
    tiles: Tiles = {trial.product: trial.tile}
    for other in products:
        if trial.product.residual and other.residual and other != trial.product:
            matching = [tile for tile in candidates(other, trial.rows) if tile.columns == trial.tile.columns]
            if not matching:
                return {}
            tiles[other] = matching[0]
    return tiles


Failures = dict[Trial, str]


def compile_some(config: TalkerConfig, some: list[Trial]) -> Failures:
    """Compiles candidates into Triton's cache, with one layer per stack; returns the error of each that failed."""
    predictor = msgspec.structs.replace(config.code_predictor_config, num_hidden_layers=1)
    config = msgspec.structs.replace(config, num_hidden_layers=1, code_predictor_config=predictor)
    rig, failures = Rig(config, "cuda", max(trial.rows for trial in some)), Failures()
    for trial in some:
        try:
            if tiles := with_residual_pair(trial, parts(config)[trial.part]):
                rig.microseconds(trial.rows, trial.part, tiles)
        except Exception as error:
            failures[trial] = repr(error)
    return failures


def compile_all(config: TalkerConfig, all_trials: list[Trial]) -> Failures:
    """Compiles candidates on all cores; returns the error of each that failed."""
    workers = max(1, (os.cpu_count() or 1) - 1)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        found = pool.map(compile_some, [config] * workers, [all_trials[index::workers] for index in range(workers)])
        failures = {trial: why for each in found for trial, why in each.items()}
    print(f"{len(all_trials)} candidates, {len(failures)} failed", flush=True)
    print(*(f"{trial}: {why:.300}" for trial, why in list(failures.items())[:3]), sep="\n", flush=True)
    return failures


Options = dict[Product, list[Tile]]
Time = Callable[[Tiles], float]
"""Returns the microseconds of a frame's part with these tiles."""


def fastest(product: Product, options: Iterable[Tile], tiles: Tiles, time_of: Time) -> tuple[float, Tile]:
    """Returns the fastest tile of a product, with the given tiles of the others, and the part's time with it."""
    return min(((time_of(tiles | {product: tile}), tile) for tile in options), key=lambda each: each[0])


def sweep(products: tuple[Product, ...], options: Options, time_of: Time) -> Tiles:
    """Returns the best tile of each product."""
    tiles: Tiles = {}
    for _ in range(ROUNDS):
        tiles |= best_pair(products[:2], options, tiles, time_of)
        for each in products[2:]:
            _, tiles[each] = fastest(each, options[each], tiles, time_of)
    return tiles


def best_pair(residual: tuple[Product, ...], options: Options, tiles: Tiles, time_of: Time) -> Tiles:
    """Returns the best tiles of the two products of one residual, which must have the same number of columns."""
    best: tuple[float, Tiles] = math.inf, {}
    for columns in sorted(set.intersection(*({tile.columns for tile in options[each]} for each in residual))):
        matching = {each: [tile for tile in options[each] if tile.columns == columns] for each in residual}
        pair: Tiles = {each: matching[each][0] for each in residual}
        pair |= {each: tiles[each] for each in residual if tiles.get(each) in matching[each]}
        for each in residual:
            taken, pair[each] = fastest(each, matching[each], tiles | pair, time_of)
        best = min(best, (taken, pair), key=lambda each: each[0])
    return best[1]


def table(best: dict[int, Tiles]) -> str:
    """Returns the best tiles as source text for the engine's table."""
    shapes = dict.fromkeys(product[:3] for tiles in best.values() for product in tiles)
    lines = []
    for shape in shapes:
        chosen = (tile for tiles in best.values() for product, tile in tiles.items() if product[:3] == shape)
        lines += [f"    {shape}: (", *(f"        {tile}," for tile in chosen), "    ),"]
    return "\n".join(lines)


def main() -> None:
    """Measures all tiles and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m gpu.tiles", description=__doc__)
    parser.add_argument(
        "--rows", type=lambda text: tuple(map(int, text.split(","))), default=ROWS, help="for example 8,32"
    )
    given = parser.parse_args()
    config = msgspec.convert(talker_settings("1b7", 0), ModelConfig).talker_config
    started = time.monotonic()
    failures = compile_all(config, list(trials(config, given.rows)))
    print(f"compiled in {time.monotonic() - started:.0f} s", flush=True)
    rig = Rig(config, "cuda", max(given.rows))
    best: dict[int, Tiles] = {rows: {} for rows in given.rows}
    for rows, (part, products) in combinations(given.rows, parts(config).items()):
        before = rig.microseconds(rows, part, {})
        options = {
            each: [tile for tile in candidates(each, rows) if Trial(rows, part, each, tile) not in failures]
            for each in products
        }
        tiles = sweep(products, options, lambda tiles: rig.microseconds(rows, part, tiles))  # noqa: B023
        after = rig.microseconds(rows, part, tiles)
        best[rows] |= tiles
        print(f"{rows} rows, {part}: {before:.0f} us before, {after:.0f} with the best tiles", flush=True)
    print(table(best))


if __name__ == "__main__":
    main()
