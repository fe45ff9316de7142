"""How drivers report what their client returned. Runs in the client's environment: the standard library alone.

A driver gets BASE_URL (the gateway), TEXT and OUT (a folder) from its environment and writes OUT/report.json.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BASE_URL = os.environ["BASE_URL"]
API_URL = f"{BASE_URL}/v1"
TEXT = os.environ["TEXT"]
OUT = Path(os.environ["OUT"])


class Case:
    """One way of getting speech from the client."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.started = time.time()
        self.heard: float | None = None
        self.ended = 0.0
        self.file = ""
        self.rate: int | None = None
        self.fields: dict[str, object] | None = None
        """The request for the same audio, if the client made it over a WebSocket."""
        self.whole = True
        """Whether the client took the response to its end."""

    def hear(self) -> None:
        """Call this whenever the client returns audio; the first time counts."""
        self.heard = self.heard or time.time()

    def save(self, audio: bytes, suffix: str, rate: int | None = None) -> None:
        """Keeps the audio. `rate` is in samples per second, for 16-bit mono PCM without a header."""
        self.ended = time.time()
        self.rate = rate
        self.file = f"{len(list(OUT.iterdir()))}.{suffix}"
        (OUT / self.file).write_bytes(audio)


class Report:
    """The cases of a driver."""

    def __init__(self) -> None:
        self.cases: list[Case] = []

    @contextmanager
    def case(self, name: str) -> Iterator[Case]:
        """Reports a case. Its audio has to be saved before the end."""
        case = Case(name)
        yield case
        self.cases.append(case)

    def write(self, version: str | None = None) -> None:
        """Writes the report. `version` is the client's, if only the driver knows it."""
        data = {"cases": [vars(case) for case in self.cases], "version": version}
        (OUT / "report.json").write_text(json.dumps(data))
