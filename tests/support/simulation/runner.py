"""Runs many seeds on several processes."""

import contextlib
import gc
import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from support.simulation.faults import Fault
from support.simulation.planted import BUGS, Bug
from support.simulation.scenario import run

COLLECT_EVERY = 25
"""Runs between two garbage collections, which would otherwise take a third of the time."""
MAX_SEEDS_PER_BUG = 1000


@dataclass(frozen=True)
class Outcome:
    """What a seed has shown."""

    seed: int
    requests: int
    served: int
    """Requests whose client got everything."""
    violations: list[str] = field(default_factory=list)


def outcome(seed: int, faults: Sequence[Fault] | None = None) -> Outcome:
    """Runs a seed, with the faults that it draws or with those given. An exception of the run is a violation."""
    try:
        world = run(seed, faults)
    except Exception as error:
        return Outcome(seed, 0, 0, [f"the run failed: {error!r}"])
    served = sum(client.succeeded for client in world.clients)
    return Outcome(seed, len(world.clients), served, list(world.violations))


def outcomes(seeds: range, jobs: int) -> Iterator[Outcome]:
    """Yields the outcomes of seeds, in any order."""
    with multiprocessing.get_context("fork").Pool(jobs, _prepare) as pool:
        chunks = [seeds[start : start + COLLECT_EVERY] for start in range(0, len(seeds), COLLECT_EVERY)]
        for chunk in pool.imap_unordered(_run_chunk, chunks):
            yield from chunk


def seed_that_finds(bug: Bug, seeds: Iterable[int]) -> int | None:
    """Returns the first of some seeds that finds a planted bug, or None."""
    with bug.plant(), _few_collections():
        return next((seed for seed in seeds if outcome(seed, bug.faults).violations), None)


def find_planted(jobs: int) -> Iterator[tuple[str, int | None]]:
    """Yields each planted bug's name and in how many seeds, from 0 on, it was found."""
    with multiprocessing.get_context("fork").Pool(jobs, _prepare) as pool:
        found = pool.map(_find, range(len(BUGS)), chunksize=1)
    yield from zip((bug.name for bug in BUGS), found, strict=True)


def _find(number: int) -> int | None:
    seed = seed_that_finds(BUGS[number], range(MAX_SEEDS_PER_BUG))
    return None if seed is None else seed + 1


def _run_chunk(seeds: range) -> list[Outcome]:
    chunk = [outcome(seed) for seed in seeds]
    gc.collect()
    return chunk


def _prepare() -> None:
    """Does not collect garbage during runs, and never what exists now."""
    gc.freeze()
    gc.disable()


@contextlib.contextmanager
def _few_collections() -> Iterator[None]:
    thresholds = gc.get_threshold()
    gc.set_threshold(200_000, 10, 10)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
