"""What a run of the service benchmark says: what `..._service.json` holds."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from gpu.generators import Burden
from gpu.system import Setup
from gpu.watch import Watched
from syrinx_operator.commands.bench.stats import Point
from syrinx_operator.local.files import write_atomically
from syrinx_operator.local.machine import Machine


class ServicePoint(Struct, frozen=True, kw_only=True):
    """One load: what was heard, what it was set to, what the machine did."""

    load: Literal["open", "closed", "live"]
    amount: float
    """Requests a second, clients at once, or listeners."""
    seconds: float
    """In which requests were sent."""
    chunk_ramp: tuple[int, ...]
    heard: Point
    """A live point's requests are those from its gathering on."""
    watched: Watched
    generator: Burden


class ServiceRun(Struct, frozen=True, kw_only=True):
    """A run; points are added as they are measured."""

    benchmark: Literal["service"] = "service"
    created: str
    command: str
    revision: str | None
    machine: Machine
    gpu: str | None
    driver: str | None
    system: str
    """`syrinx`, or the peer that was measured instead."""
    topology: str
    """Which processes share which GPU."""
    model: str
    """Its shape, and where its weights are from."""
    random_weights: bool
    setup: Setup | None
    """None: a peer's."""
    seed: int
    utterance_seconds: float | None
    """Mean that the requests asked for; None where the model ends them."""
    complete: bool = False
    failure: str = ""
    deaths: list[str] = []
    """Processes that died meanwhile."""
    points: list[ServicePoint] = []


def save(run: ServiceRun, file: Path) -> None:
    """Writes it whole. Raises `OSError`."""
    write_atomically(file, msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n")


def load(file: Path) -> ServiceRun:
    """Reads it. Raises `OSError` or `msgspec.DecodeError`."""
    return msgspec.json.decode(file.read_bytes(), type=ServiceRun)
