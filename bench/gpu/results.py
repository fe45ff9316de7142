"""The result file of the service benchmark, `..._service.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from gpu.load_generator import GeneratorStats
from gpu.monitor import Usage
from gpu.system import Setup
from syrinx_operator.commands.bench.stats import Point
from syrinx_operator.local.files import write_atomically
from syrinx_operator.local.machine import Machine


class ServicePoint(Struct, frozen=True, kw_only=True):
    """A load point."""

    load: Literal["open", "closed", "live"]
    amount: float
    """Requests per second (open), concurrent clients (closed), or listeners (live)."""
    seconds: float
    """Duration in which requests were sent."""
    chunk_ramp: tuple[int, ...]
    stats: Point
    """For a live point, without the requests of its ramp-up."""
    usage: Usage
    generator: GeneratorStats


class ServiceRun(Struct, frozen=True, kw_only=True):
    """A run; points are appended as they are measured."""

    benchmark: Literal["service"] = "service"
    created: str
    command: str
    revision: str | None
    machine: Machine
    gpu: str | None
    driver: str | None
    system: str
    """`syrinx`, or a peer's name."""
    topology: str
    """Describes which processes share a GPU."""
    model: str
    """The shape, and the origin of the weights."""
    random_weights: bool
    setup: Setup | None
    """None for a peer."""
    seed: int
    utterance_seconds: float | None
    """Mean requested length; None if the model ends the utterances."""
    complete: bool = False
    failure: str = ""
    deaths: list[str] = []
    """Processes that died during the run."""
    points: list[ServicePoint] = []


def save(run: ServiceRun, file: Path) -> None:
    """Writes the file atomically. Raises `OSError`."""
    write_atomically(file, msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n")


def load(file: Path) -> ServiceRun:
    """Reads the file. Raises `OSError` or `msgspec.DecodeError`."""
    return msgspec.json.decode(file.read_bytes(), type=ServiceRun)
