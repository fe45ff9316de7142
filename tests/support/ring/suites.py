"""The table of all suites: what each consists of, how pytest runs it, and which command includes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

IN_PROCESS_OR_SMOKE = "smoke or (virtual and not night)"
VLLM = ".venv-vllm"


class Ring(Enum):
    """The smallest command that runs a suite."""

    TEST = auto()
    """`make test`: what a change must pass."""
    NIGHT = auto()
    """`make test-all`: what runs without a GPU and a cluster."""
    CI = auto()
    """`.ci/run`, beside `make test`."""
    HARDWARE = auto()
    """None of them: it needs a GPU or a cluster."""


@dataclass(frozen=True)
class Suite:
    """Tests that one call of pytest runs."""

    name: str
    ring: Ring
    paths: tuple[str, ...]
    marks: str = ""
    """A mark expression; empty: all tests."""
    workers: int = 0
    """Processes of pytest-xdist; 0: pytest's own."""
    by_file: bool = False
    """The tests of a file run in one worker, because they share processes."""
    needs: tuple[str, ...] = ()
    """Targets of the Makefile beside the usual environment."""
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    venv: str = ".venv"

    def alike(self) -> tuple[object, ...]:
        """Returns what suites have in common that one call of pytest can run together."""
        return (self.marks, self.workers, self.by_file, self.options, sorted(self.environment.items()), self.venv)


def _halves(
    name: str, *paths: str, marks: str = "not night", night: tuple[str, ...] = (), **options
) -> Iterator[Suite]:
    """Yields the suite for `make test` with these marks, and `NAME-night` with all other tests but the benchmarks'.

    `night`: what only the latter needs.
    """
    needs = options.pop("needs", ())
    yield Suite(name, Ring.TEST, paths, f"({marks}) and not bench", workers=2, needs=needs, **options)
    rest = f"not ({marks}) and not bench"
    yield Suite(f"{name}-night", Ring.NIGHT, paths, rest, workers=2, needs=(*needs, *night), **options)


_IN_THE_RING = "(not night) and not bench"
_PROMETHEUS, _REDIS, _S3 = ".venv/.prometheus", ".venv/.redis", ".venv/.s3-server"
_CHROMIUM, _FFMPEG, _VALKEY = ".venv/.browses", ".venv/.ffmpeg", ".venv/.valkey"
_ON_VLLM = {"environment": {"OMP_NUM_THREADS": "1"}, "venv": VLLM, "needs": (f"{VLLM}/.runs",)}

SUITES = {
    suite.name: suite
    for suite in (
        Suite("unit", Ring.TEST, ("tests/unit",), _IN_THE_RING, workers=2),
        Suite("runtime", Ring.TEST, ("tests/runtime",), _IN_THE_RING, workers=2),
        *_halves("engines", "tests/charts", "tests/engines", "tests/simulation", needs=(_PROMETHEUS,)),
        *_halves("contract", "tests/contract", needs=(_REDIS,), by_file=True),
        *_halves("operator", "tests/operator", marks=IN_PROCESS_OR_SMOKE, needs=(_PROMETHEUS,), by_file=True),
        *_halves(
            "pipeline",
            "tests/pipeline",
            marks=IN_PROCESS_OR_SMOKE,
            needs=(_PROMETHEUS,),
            night=(_S3, _VALKEY),
            by_file=True,
        ),
        Suite("training", Ring.NIGHT, ("tests/training",), workers=2, by_file=True),
        Suite("soak", Ring.NIGHT, ("tests/soak",)),
        Suite("bench", Ring.NIGHT, ("tests/pipeline/test_gpu_service.py",), "bench"),
        Suite("compile", Ring.NIGHT, ("tests/compile",), workers=2),
        Suite("vllm", Ring.NIGHT, ("tests/talker_vllm",), **_ON_VLLM),
        Suite("page", Ring.NIGHT, ("tests/page",), needs=(_CHROMIUM,)),
        Suite("clients", Ring.NIGHT, ("tests/clients",), needs=(_CHROMIUM, _FFMPEG), options=("-v",)),
        Suite("installed", Ring.NIGHT, ("tests/installed",), options=("-s",)),
        Suite("voice", Ring.NIGHT, ("tests/voice",), options=("-s",)),
        Suite("tuning", Ring.NIGHT, ("tests/tuning",), options=("-v", "-s")),
        Suite(
            "vllm-smoke",
            Ring.CI,
            ("tests/talker_vllm/test_codes.py",),
            options=("-k", "batched_requests and 3"),
            **_ON_VLLM,
        ),
        Suite("gpu", Ring.HARDWARE, ("tests/gpu",)),
        Suite("cluster", Ring.HARDWARE, ("tests/cluster",), options=("-v", "-x")),
    )
}
TEST = "test"
"""The name of all suites of `make test` together."""


def named(names: list[str]) -> list[Suite]:
    """Returns the suites with these names; `test` stands for those of `make test`. Raises ValueError for others."""
    found: list[Suite] = []
    for name in names:
        if name != TEST and name not in SUITES:
            raise ValueError(f"there is no suite {name!r}: give {TEST}, {', '.join(SUITES)}")
        found += of(Ring.TEST) if name == TEST else [SUITES[name]]
    return found


def of(*rings: Ring) -> list[Suite]:
    """Returns all suites of these rings, one ring after the other."""
    return [suite for ring in rings for suite in SUITES.values() if suite.ring is ring]
