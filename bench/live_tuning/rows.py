"""Results that are kept in a file as soon as they are there. An interrupted run continues with those missing."""

import asyncio
import hashlib
import inspect
import os
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

import syrinx_operator
import syrinx_stages
from live_tuning import draws, service
from support import tuned

P = TypeVar("P", bound=Struct)
R = TypeVar("R")


class _Entry(Struct, frozen=True):
    """A line of the file."""

    key: str
    result: Any


class Rows:
    """Results by the parameters of a measurement and the code it depends on. At most `jobs` are measured at once."""

    def __init__(self, file: Path, jobs: int) -> None:
        lines = file.read_bytes().splitlines() if file.exists() else []
        self._known = {each.key: each.result for each in (msgspec.json.decode(line, type=_Entry) for line in lines)}
        self._file, self._revision = file, _revision()
        cores = sorted(os.sched_getaffinity(0))
        self.cores = len(cores) // jobs
        """Of each measurement."""
        self._free: asyncio.Queue[Collection[int]] = asyncio.Queue()
        for job in range(jobs):
            self._free.put_nowait(cores[job * self.cores : (job + 1) * self.cores])

    async def get(
        self, measure: Callable[[P, Collection[int]], Awaitable[R]], parameters: P, result_type: type[R]
    ) -> R:
        """Returns a result. It is measured on some cores if the file does not have it."""
        content = msgspec.json.encode((self._revision, measure.__name__, self.cores, parameters))
        key = hashlib.sha256(content).hexdigest()[:16]
        if key not in self._known:
            cores = await self._free.get()
            print(f"{measure.__name__}: {msgspec.json.encode(parameters).decode()}", flush=True)
            try:
                line = msgspec.json.encode(_Entry(key, await measure(parameters, cores)))
            finally:
                self._free.put_nowait(cores)
            with self._file.open("ab") as file:
                file.write(line + b"\n")
            self._known[key] = msgspec.json.decode(line, type=_Entry).result
        return msgspec.convert(self._known[key], result_type)


def _revision() -> str:
    """Returns a hash of the code that a run depends on, and not of its scores and their page."""
    folders = [Path(package.__path__[0]) for package in (syrinx_operator, syrinx_stages)]
    measured = [file.read_text() for folder in folders for file in sorted(folder.rglob("*.py"))]
    measuring = map(inspect.getsource, (draws, service, tuned))
    return hashlib.sha256("".join([*measured, *measuring]).encode()).hexdigest()[:16]
