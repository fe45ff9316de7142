"""How the talker's products are cut best: `python -m gpu.tiles` on a GPU; the table of `syrinx_stages/talker/tiles.py`.

Tiles are tried in the frame itself, one product after the other: a kernel begins while the one before it ends, so what
is quickest alone is not what is quickest there. All candidates are compiled first, side by side.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product as combinations
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from gpu.checkpoint import talker_settings
from gpu.options import RESULTS
from gpu.timing import MEMORY_BYTES, elapsed_ms
from syrinx_operator.local.files import write_atomically
from syrinx_stages.kernels.attention import Heads
from syrinx_stages.kernels.linear import Direct, Matrix, Tile
from syrinx_stages.kernels.metadata import NUM_COLUMNS
from syrinx_stages.kernels.recorder import graph_recorder
from syrinx_stages.model.config import CODE_GROUPS, ModelConfig, TalkerConfig, TransformerConfig
from syrinx_stages.model.layers import cos_sin_table
from syrinx_stages.talker.frame import Frame, new_arena
from syrinx_stages.talker.packed import PackedLayer, PackedTalker
from syrinx_stages.talker.tiles import tile_of

ROWS = (1, 8, 16, 32, 64, 128)
POSITION = 54
"""Of every row: the middle of an utterance of the mean length."""
PAGE, PAGES = 64, 64
REGISTERS = 255
"""That a thread may have."""
SHARED_MEMORY = 227 << 10
REPEATS = 9
ROUNDS = 2
"""What is best of one product depends on how the others are cut."""


class Product(NamedTuple):
    """A product with a matrix [outer, inner]; gated: with two. What comes out may be added to a residual."""

    outer: int
    inner: int
    gated: bool = False
    residual: bool = False


Tiles = dict[Product, Tile]


def products_of(stack: TransformerConfig, head: int) -> tuple[Product, ...]:
    """Of a stack of layers with a head of so many outputs: first the two that are added to the residual."""
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
    """The two graphs of a frame, and whose products each is made of."""
    predictor = config.code_predictor_config
    return {
        "draw_codes": products_of(predictor, predictor.vocab_size),
        "advance": products_of(config, config.vocab_size + predictor.hidden_size)[:-1],
    }


def candidates(wanted: Product, rows: int) -> Iterator[Tile]:
    """Tiles that may do: they divide the matrix, fit a multiprocessor and keep most of them busy."""
    if rows <= Direct.MOST_ROWS:
        yield from _direct(wanted, max(8, rows))
    if rows > 8:
        yield from _matrix(wanted, rows)


def _direct(wanted: Product, rows: int) -> Iterator[Direct]:
    whole = Direct.ahead
    for columns, warps, shares, ahead in combinations((16, 32, 64), (4, 8), (1, 2, 3, 4, 6), (whole, 2)):
        sums = columns * (1 + wanted.gated)
        for inner in (128, 64, 32):
            steps = wanted.inner / (shares * warps * inner)
            weights = sums * inner * min(steps, ahead) / 64
            registers = 14 + weights + rows * inner / 64 * min(steps, 2) + sums * rows / 32
            differs = ahead == whole or ahead < steps
            busy = 60 <= wanted.outer // columns * shares <= 800 and columns <= 4 * rows
            if steps == int(steps) and differs and registers <= REGISTERS and busy:
                yield Direct(columns, inner, warps, shares, ahead)


def _matrix(wanted: Product, rows: int) -> Iterator[Matrix]:
    for columns, (inner, stages), shares, swap in combinations(
        (16, 32, 64), ((128, 4), (128, 6), (256, 4)), (1, 2, 3, 4), (True, False)
    ):
        height = min(rows, 64) if swap else 64
        memory = 2 * inner * stages * (columns * (1 + wanted.gated) + height)
        programs = wanted.outer // columns * shares * -(-rows // height)
        shaped = columns >= 64 if swap else columns < 64 or wanted.gated
        divides = wanted.inner % (inner * shares) == 0 and inner * stages <= wanted.inner // shares * 2
        if shaped and divides and 60 <= programs <= 520 and 48 << 10 <= memory <= SHARED_MEMORY:
            yield Matrix(height, columns, inner, stages, 4, shares, swap)


def drawn(config: TalkerConfig, device: str) -> PackedTalker:
    """A packed talker of random numbers of a usual size."""
    predictor = config.code_predictor_config
    width = predictor.hidden_size

    def draw(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(0, shape[-1] ** -0.5)

    def layers(stack: TransformerConfig, positions: int) -> list[PackedLayer]:
        with torch.device(device):
            cosines, sines = cos_sin_table(stack.head_size, stack.rope_theta, positions)
            norms = torch.ones(2, stack.head_size, dtype=torch.bfloat16)
        output, down, qkv, gate_up, _ = products_of(stack, 1)
        kv, group = stack.num_key_value_heads, stack.num_attention_heads // stack.num_key_value_heads
        heads = Heads(kv, group, stack.head_size, norms, cosines, sines, stack.rms_norm_eps)
        return [
            PackedLayer(
                draw(*qkv[:2]), heads, draw(*output[:2]), draw(2 * gate_up.outer, gate_up.inner), draw(*down[:2])
            )
            for _ in range(stack.num_hidden_layers)
        ]

    return PackedTalker(
        layers=layers(config, PAGE * PAGES),
        norm=torch.ones(config.hidden_size, dtype=torch.bfloat16, device=device),
        eps=config.rms_norm_eps,
        head=draw(config.vocab_size + width, config.hidden_size),
        head_bias=draw(width),
        first=draw(config.vocab_size, config.hidden_size),
        rest=draw(CODE_GROUPS - 1, predictor.vocab_size, config.hidden_size),
        predictor=layers(predictor, CODE_GROUPS),
        predictor_eps=predictor.rms_norm_eps,
        first_input=draw(config.vocab_size, width),
        rest_inputs=draw(CODE_GROUPS - 1, predictor.vocab_size, width),
        code_heads=draw(CODE_GROUPS - 1, predictor.vocab_size, width),
    )


class Rig:
    """Frames of one talker, cut in any way."""

    def __init__(self, config: TalkerConfig, device: str, most_rows: int) -> None:
        self._config, self._weights = config, drawn(config, device)
        self._recorder = graph_recorder(torch.device(device))
        self._arena = new_arena(
            config, self._weights.norm, slots=most_rows + 1, pages=most_rows + 1, page=PAGE, texts=64, ring=2,
            most_rows=most_rows, most_prefill=64,
        )  # fmt: skip
        self._arena.state.normal_()
        self._arena.sampling_params[:] = torch.tensor([0.9, 50, 1.0, 1.05, 2.0])

    def frame(self, rows: int, tiles: Tiles) -> Frame:
        """A frame of `rows` rows in the middle of their utterances; other steps are cut as in the engine."""

        def choose(of: int, weight: Tensor, *, gated: bool = False, residual: bool = False) -> Tile:
            product = Product(weight.shape[0] // (1 + gated), weight.shape[1], gated, residual)
            found = tiles.get(product) if of == rows else None
            return found or tile_of(of, weight, gated=gated, residual=residual)

        frame = Frame(self._weights, self._config, self._arena, rows, PAGES, choose)
        own = torch.arange(1, rows + 1, dtype=torch.int32)
        frame.meta[:, 0], frame.meta[:, 1], frame.meta[:, 2], frame.meta[:, NUM_COLUMNS] = own, POSITION, 20, own
        return frame

    def microseconds(self, rows: int, part: str, tiles: Tiles) -> float:
        """What a part takes."""
        with self._recorder.on_stream():
            work = self._recorder.capture_graph(getattr(self.frame(rows, tiles), part))
            return 1000 * elapsed_ms(work, repeats=REPEATS)[0]


class Trial(NamedTuple):
    """A part of a frame with one product cut in a way. The other that has the same residual has as many columns."""

    rows: int
    part: str
    product: Product
    tile: Tile


def trials(config: TalkerConfig, rows: Iterable[int]) -> Iterator[Trial]:
    """All that are to be compiled."""
    for count, (part, products) in combinations(rows, parts(config).items()):
        for product in products:
            for tile in candidates(product, count):
                yield Trial(count, part, product, tile)


def beside(trial: Trial, products: Iterable[Product]) -> Tiles:
    """The trial's tile, and for the other product with its residual the first that has as many columns, if any."""
    tiles: Tiles = {trial.product: trial.tile}
    for other in products:
        if trial.product.residual and other.residual and other != trial.product:
            alike = [tile for tile in candidates(other, trial.rows) if tile.columns == trial.tile.columns]
            if not alike:
                return {}
            tiles[other] = alike[0]
    return tiles


Failures = dict[Trial, str]


def compile_some(config: TalkerConfig, some: list[Trial]) -> Failures:
    """Compiles candidates into Triton's cache, with one layer of each stack; says which cannot be used, and why."""
    predictor = msgspec.structs.replace(config.code_predictor_config, num_hidden_layers=1)
    config = msgspec.structs.replace(config, num_hidden_layers=1, code_predictor_config=predictor)
    rig, failures = Rig(config, "cuda", max(trial.rows for trial in some)), Failures()
    for trial in some:
        try:
            if tiles := beside(trial, parts(config)[trial.part]):
                rig.microseconds(trial.rows, trial.part, tiles)
        except Exception as error:
            failures[trial] = repr(error)
    return failures


def compile_all(config: TalkerConfig, wanted: list[Trial]) -> Failures:
    """The same on all cores."""
    workers = max(1, (os.cpu_count() or 1) - 1)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        told = pool.map(compile_some, [config] * workers, [wanted[index::workers] for index in range(workers)])
        failures = {trial: why for each in told for trial, why in each.items()}
    print(f"{len(wanted)} candidates, {len(failures)} cannot be used", flush=True)
    print(*(f"{trial}: {why:.300}" for trial, why in list(failures.items())[:3]), sep="\n", flush=True)
    return failures


Timed = list[tuple[float, Tile]]
"""Tiles and what a part of the frame takes with them, the quickest first."""


def tried(product: Product, options: Iterable[Tile], tiles: Tiles, timed: Callable[[Tiles], float]) -> Timed:
    """A product cut in every way, beside the tiles of the others."""
    return sorted(((timed(tiles | {product: tile}), tile) for tile in options), key=lambda each: each[0])


Options = dict[Product, list[Tile]]


def sweep(
    products: tuple[Product, ...], options: Options, timed: Callable[[Tiles], float]
) -> tuple[Tiles, dict[Product, Timed]]:
    """The best tile of each product, tried one after the other beside the best so far, and what each try took last."""
    tiles: Tiles = {}
    times: dict[Product, Timed] = {}
    for _ in range(ROUNDS):
        adding, added = best_pair(products[:2], options, timed, tiles)
        tiles, times = tiles | adding, times | added
        for each in products[2:]:
            times[each] = tried(each, options[each], tiles, timed)
            tiles[each] = times[each][0][1]
    return tiles, times


def best_pair(
    adding: tuple[Product, ...], options: Options, timed: Callable[[Tiles], float], beside: Tiles
) -> tuple[Tiles, dict[Product, Timed]]:
    """The same of the two that are added to one residual, which have as many columns."""
    best: tuple[float, Tiles, dict[Product, Timed]] = math.inf, {}, {}
    for columns in sorted(set.intersection(*({tile.columns for tile in options[each]} for each in adding))):
        alike = {each: [tile for tile in options[each] if tile.columns == columns] for each in adding}
        pair: Tiles = {each: alike[each][0] for each in adding}
        pair |= {each: beside[each] for each in adding if beside.get(each) in alike[each]}
        times: dict[Product, Timed] = {}
        for each in adding:
            times[each] = tried(each, alike[each], beside | pair, timed)
            pair[each] = times[each][0][1]
        best = min(best, (times[adding[-1]][0][0], pair, times), key=lambda each: each[0])
    return best[1:]


def table(best: dict[int, Tiles]) -> str:
    """The best tiles as they stand in the engine's table, by shape and number of rows."""
    shapes = dict.fromkeys(product[:3] for tiles in best.values() for product in tiles)
    lines = []
    for shape in shapes:
        cuts = (tile for tiles in best.values() for product, tile in tiles.items() if product[:3] == shape)
        lines += [f"    {shape}: (", *(f"        {tile}," for tile in cuts), "    ),"]
    return "\n".join(lines)


def told(product: Product, times: Timed) -> dict[str, Any]:
    """What the file says of a product: what it takes at least, and the frame's part with each of the quickest."""
    floor = 2 * (1 + product.gated) * product.outer * product.inner / MEMORY_BYTES
    quickest = [{"tile": repr(tile), "part_us": us} for us, tile in times[:8]]
    return {**product._asdict(), "floor_us": floor * 1e6, "tried": len(times), "quickest": quickest}


def main() -> None:
    """Sweeps, prints a table and writes the file."""
    parser = argparse.ArgumentParser(prog="python -m gpu.tiles", description=__doc__)
    parser.add_argument("--rows", type=lambda text: tuple(map(int, text.split(","))), default=ROWS, help="as 8,32")
    parser.add_argument("--json", type=Path, default=RESULTS / "h200_tiles.json")
    given = parser.parse_args()
    config = msgspec.convert(talker_settings("1b7", 0), ModelConfig).talker_config
    begin = time.monotonic()
    failures = compile_all(config, list(trials(config, given.rows)))
    print(f"compiled in {time.monotonic() - begin:.0f} s", flush=True)
    rig = Rig(config, "cuda", max(given.rows))
    result: dict[str, Any] = {"benchmark": "tiles", "gpu": torch.cuda.get_device_name(), "rows": {}}
    best: dict[int, Tiles] = {rows: {} for rows in given.rows}
    for rows, (part, products) in combinations(given.rows, parts(config).items()):
        before = rig.microseconds(rows, part, {})
        options = {
            each: [tile for tile in candidates(each, rows) if Trial(rows, part, each, tile) not in failures]
            for each in products
        }
        tiles, times = sweep(products, options, lambda tiles: rig.microseconds(rows, part, tiles))  # noqa: B023
        after = rig.microseconds(rows, part, tiles)
        best[rows] |= tiles
        print(f"{rows} rows, {part}: {before:.0f} us as it is, {after:.0f} with", flush=True)
        for each, tile in tiles.items():
            print(f"    {each[:3]}: {tile} " + ", ".join(f"{us:.0f}" for us, _ in times[each][:6]), flush=True)
        found = {"table_us": before, "best_us": after, "products": [told(each, times[each]) for each in products]}
        result["rows"].setdefault(str(rows), {})[part] = found
        write_atomically(given.json, json.dumps(result, indent=1).encode())
    print(table(best))


if __name__ == "__main__":
    main()
