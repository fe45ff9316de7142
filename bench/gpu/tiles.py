"""How the talker's products are cut best: `python -m gpu.tiles` on a GPU; the table of `syrinx_stages/talker/tiles.py`.

Each product of the official checkpoints is timed in a chain of launches that each read other weights, as in a frame.
Products that are added to a residual of one width must have as many columns: take the best pair. Candidates are
compiled first, side by side, those of all products in turn: a sweep that is cut short has tried some of each.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product as combinations
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from gpu.checkpoint import SIZES, talker_settings
from gpu.options import RESULTS
from gpu.timing import MEMORY_BYTES, elapsed_ms
from syrinx_operator.files import write_whole
from syrinx_stages.kernels.linear import Matrix, Sharing, Tile, linear
from syrinx_stages.kernels.recorder import recorder
from syrinx_stages.model.config import ModelConfig
from syrinx_stages.talker.tiles import MOST_SHARES, tile_of

ROWS = (8, 32, 64, 128)
CHAIN = 64
"""Matrices, and launches, of a chain: many times the L2 cache."""
SHARED_MEMORY = 227 << 10


class Product(NamedTuple):
    """A product of `rows` rows with a matrix [outer, inner] (gated: two); what comes out may be added to a residual."""

    outer: int
    inner: int
    gated: bool
    residual: bool
    rows: int

    def new_weight(self, device: str) -> Tensor:
        """Memory for the matrix."""
        return torch.empty(self.outer * (1 + self.gated), self.inner, dtype=torch.bfloat16, device=device)


Job = tuple[Product, Tile]


def products(rows: Sequence[int]) -> list[Product]:
    """Those of a frame of the official checkpoints; each shape once, whatever it is for."""
    found: dict[tuple[int, int, bool], bool] = {}
    for size in SIZES:
        talker = msgspec.convert(talker_settings(size, 0), ModelConfig).talker_config
        predictor = talker.code_predictor_config
        for stack in (talker, predictor):
            width, queries = stack.hidden_size, stack.num_attention_heads * stack.head_size
            keys = stack.num_key_value_heads * stack.head_size
            found |= {(queries + 2 * keys, width, False): False, (width, queries, False): True}
            found |= {(stack.intermediate_size, width, True): False, (width, stack.intermediate_size, False): True}
        heads = {(talker.vocab_size + predictor.hidden_size, talker.hidden_size, False): False}
        heads |= {(predictor.vocab_size, predictor.hidden_size, False): False}
        found = heads | found
    return [Product(*shape, residual, count) for shape, residual in found.items() for count in rows]


def candidates(wanted: Product) -> Iterator[Matrix]:
    """Tiles that may do: they divide the matrix, fit into shared memory and keep most multiprocessors busy."""
    for height, columns, inner, stages, warps, shares in combinations(
        (16, 32, 64), (16, 32, 64, 128), (64, 128, 256, 512, 1024), (1, 3, 4, 6), (4, 8), (1, 2, 3, 4, 6, 8)
    ):
        # A tensor core's left factor has at least 64 rows: where there are fewer, the weights may be that.
        swap, single = height < 64, inner * shares == wanted.inner
        if swap:
            shaped = wanted.rows <= height < 2 * max(wanted.rows, 16) and columns >= 64
        else:
            shaped = wanted.rows > 16 and not single
        staged = stages == 1 if single else stages > 1 and 256 <= inner * stages <= 1024
        divides = wanted.inner % (inner * shares) == 0 and shares <= MOST_SHARES
        memory = 2 * inner * stages * (columns * (1 + wanted.gated) + height)
        programs = wanted.outer // columns * shares * -(-wanted.rows // height)
        busy = 60 <= programs <= 520 and (columns > 16 or warps == 4)
        if shaped and staged and divides and busy and 24 << 10 <= memory <= SHARED_MEMORY:
            yield Matrix(height, columns, inner, stages, warps, shares, swap)


def choice(wanted: Product) -> Tile:
    """What the engine takes."""
    return tile_of(wanted.rows, wanted.new_weight("meta"), gated=wanted.gated, residual=wanted.residual)


def jobs_of(wanted: Sequence[Product]) -> list[Job]:
    """The engine's choice for each, then what else may do, in turn."""
    columns = []
    for each in wanted:
        tiles: list[Tile] = [tile for tile in candidates(each) if tile != choice(each)]
        random.Random(0).shuffle(tiles)
        columns.append([(each, tile) for tile in (choice(each), *tiles)])
    return [job for turn in zip_longest(*columns) for job in turn if job]


def chain(job: Job, weights: Sequence[Tensor]) -> Callable[[], None]:
    """One launch for each matrix."""
    (outer, inner, gated, residual, rows), tile = job
    new = weights[0].new_zeros
    x, out = new(rows, inner).normal_(), new(rows, outer)
    squares, sums = (
        new(rows, 64, dtype=torch.float32) + inner / 64,
        new(rows, outer // tile.columns, dtype=torch.float32),
    )
    parts = new(2 * MOST_SHARES * max(rows, 64) * outer, dtype=torch.float32)
    norm: dict[str, Any] = {"residual": out, "out_squares": sums} if residual else {"squares": squares, "eps": 1e-6}
    sharing = Sharing(parts, new(2 * outer, dtype=torch.int32))

    def run() -> None:
        for weight in weights:
            linear(x, weight, out, tile, rows=rows, gated=gated, sharing=sharing, **norm)

    return run


def compile_one(job: Job) -> str:
    """Compiles a candidate, into Triton's cache; says why that failed, or nothing."""
    try:
        chain(job, [job[0].new_weight("cuda")])()
        torch.cuda.synchronize()
    except Exception as error:
        return f"{job}: {error!r}"[:300]
    return ""


def compile_all(jobs: Sequence[Job], until: float) -> list[Job]:
    """Compiles on all cores, in order; returns what can be launched by then."""
    # The number of rows is no constant: Triton looks at its divisibility alone.
    kernels = {job: (job[0][:4], job[1], job[0].rows % 16) for job in jobs}
    pool = ProcessPoolExecutor(max(1, (os.cpu_count() or 1) - 1), multiprocessing.get_context("spawn"))
    waiting = {pool.submit(compile_one, job): kernel for kernel, job in {kernels[job]: job for job in jobs}.items()}
    failures: dict[Any, str] = {}
    try:
        for future in as_completed(waiting, until - time.monotonic()):
            failures[waiting[future]] = future.result()
    except TimeoutError:
        pass
    pool.shutdown(cancel_futures=True)
    ready = [job for job in jobs if failures.get(kernels[job]) == ""]
    print(f"{len(ready)} of {len(jobs)} are compiled", *list(filter(None, failures.values()))[:3], sep="\n", flush=True)
    return ready


def microseconds(job: Job, weights: Sequence[Tensor]) -> float:
    """Of one launch in a chain."""
    work = recorder(weights[0].device)
    with work.here():
        return elapsed_ms(work.record(chain(job, weights)), repeats=5)[0] * 1000 / len(weights)


def told(wanted: Product, times: dict[Tile, float]) -> dict[str, Any]:
    """What the file says of a product: microseconds of the floor, of the engine's choice and of the quickest."""
    ordered = sorted(times, key=lambda tile: times[tile])
    floor = 2 * (1 + wanted.gated) * wanted.outer * wanted.inner / MEMORY_BYTES
    chosen = {"table": repr(choice(wanted)), "table_us": times.get(choice(wanted))}
    quickest = [{"tile": repr(tile), "us": times[tile]} for tile in ordered[:8]]
    return {**wanted._asdict(), "floor_us": floor * 1e6, **chosen, "tried": len(times), "quickest": quickest}


def line(row: dict[str, Any]) -> str:
    """The same as text."""
    best, taken = row["quickest"][0], row["table_us"]
    more = "" if taken is None else f", the engine's {taken:.2f} ({taken / best['us'] - 1:+.0%})"
    name = f"{row['rows']:3d} rows, {row['outer']}x{row['inner']}{' gated' if row['gated'] else ''}"
    return f"{name:24} floor {row['floor_us']:5.2f} us, best of {row['tried']} {best['us']:.2f} {best['tile']}{more}"


def main() -> None:
    """Sweeps, prints a table and writes the file."""
    parser = argparse.ArgumentParser(prog="python -m gpu.tiles", description=__doc__)
    parser.add_argument("--rows", type=lambda text: tuple(map(int, text.split(","))), default=ROWS, help="as 8,32")
    parser.add_argument("--shapes", type=lambda text: text.split(","), help="as 4096x2048,2048x6144 (default: all)")
    parser.add_argument("--seconds", type=float, default=300, help="that it may take, about (300)")
    parser.add_argument("--json", type=Path, default=RESULTS / "h200_tiles.json")
    given = parser.parse_args()
    until = time.monotonic() + given.seconds
    wanted = [each for each in products(given.rows) if not given.shapes or f"{each.outer}x{each.inner}" in given.shapes]
    times: dict[Product, dict[Tile, float]] = {each: {} for each in wanted}
    weights: dict[tuple[int, ...], list[Tensor]] = {}
    for job in compile_all(jobs_of(wanted), until - given.seconds / 3):
        if time.monotonic() < until:
            shape = job[0][:3]
            if shape not in weights:
                # Of the size that trained ones have: products of zeros take less.
                weights[shape] = [job[0].new_weight("cuda").normal_(0, job[0].inner ** -0.5) for _ in range(CHAIN)]
            times[job[0]][job[1]] = microseconds(job, weights[shape])
    rows = [told(each, taken) for each, taken in times.items() if taken]
    print("\n".join(map(line, rows)))
    result = {"benchmark": "tiles", "gpu": torch.cuda.get_device_name(), "products": rows}
    write_whole(given.json, json.dumps(result, indent=1).encode())


if __name__ == "__main__":
    main()
