"""Rows of a measurement: one for each drawn workload and seed, with a score for each method.

Each result is kept in a file as soon as it is there. A run that was interrupted continues with those that are missing.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

import simulator
import support.simulation
import syrinx_operator
import syrinx_stages

TUNER = "tuner"
"""The method that is compared with baselines."""
RESULTS = Path(__file__).parents[1] / "results"
_FILE = RESULTS / "rows.jsonl"
"""Not part of the repository: the results contain the rows."""

Key = tuple[int, ...]
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")


class Row(Struct, Generic[S], frozen=True, kw_only=True):
    """One drawn workload with one seed."""

    workload: int
    """Seed of the workload."""
    seed: int
    """Seed of its requests, or of its day."""
    requests: int
    scores: Mapping[str, S]
    """By method."""


def baselines_of(rows: Sequence[Row[S]], summarize: Callable[[str], T]) -> dict[str, T]:
    """Returns the summaries of all methods but the tuner."""
    return {name: summarize(name) for name in rows[0].scores if name != TUNER}


class _Entry(Struct, frozen=True):
    """A line of the file."""

    revision: str
    measurement: str
    key: Key
    result: Any


def measured(
    pool: Executor,
    function: Callable[..., R],
    keys: Iterable[Key],
    kind: type[R],
    path: Path = _FILE,
    *,
    tuned: bool = True,
) -> Iterator[tuple[Key, R]]:
    """Yields each key and a function's result for it: first those that are in the file, others in the order they come.

    The function is called with a key's parts. tuned: whether the operator has a part in it. Results of other code are
    not used.
    """
    keys = list(dict.fromkeys(keys))
    revision, name = _revision(tuned), f"{function.__module__}.{function.__qualname__}"
    lines = path.read_bytes().splitlines() if path.exists() else []
    entries = [msgspec.json.decode(line, type=_Entry) for line in lines]
    known = {each.key: each.result for each in entries if (each.revision, each.measurement) == (revision, name)}
    yield from ((key, msgspec.convert(known[key], kind)) for key in keys if key in known)
    running = {pool.submit(function, *key): key for key in keys if key not in known}
    try:
        for future in as_completed(running):
            with path.open("ab") as file:
                file.write(msgspec.json.encode(_Entry(revision, name, running[future], future.result())) + b"\n")
            yield running[future], future.result()
    finally:
        for future in running:
            future.cancel()


def _revision(tuned: bool) -> str:
    """Returns a hash of the code that is measured, and of the code that measures."""
    packages = (simulator, support.simulation, syrinx_stages, *([syrinx_operator] if tuned else []))
    folders = [Path(package.__path__[0]) for package in packages]
    files = [file for folder in folders for file in sorted(folder.rglob("*.py"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
