"""Simulated clients of an idle pipeline, as its stages' metrics would report them. How many are served well depends on
the settings in force at each codec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from support.stage_metrics import Gateway, Worker
from syrinx_stages.runtime.clock import monotonic

SOON, LATE = 0.15, 2.0
"""TTFA in seconds of requests that are served well, and of late ones."""
CHUNKS = (2, 2, 3, 4, 5, 7, 2)
"""Frames of the decoder calls of a request, by the default ramp."""
CALL_SECONDS = 0.022
"""Engine time of a decoder call of any size."""


class Listeners:
    """Clients at a fixed rate per codec. A part of those whose codec has too few rows is served late."""

    def __init__(
        self,
        codecs: tuple[str, ...],
        settings: Callable[[str], Mapping[str, Any]],
        *,
        rows: int,
        late: float,
        per_second: float = 6.0,
    ) -> None:
        """`settings(pod)` returns the settings in force, `late` is the late part of the requests with fewer `rows`."""
        self._settings = settings
        self._rows, self._late, self.per_second = rows, late, per_second
        self._at = monotonic()
        self._gateway = Gateway()
        self._talker = Worker("demo-talker-0", "talker")
        self._codecs = {name: Worker(name, "codec") for name in codecs}
        self._owed = dict.fromkeys(codecs, 0.0)
        """Fractions of late requests that are still to be counted."""
        self._arm, self._short = "", {name: False for name in codecs}

    def metrics(self, pod: str) -> str:
        """Returns the body of a pod's /metrics."""
        self._advance()
        if "gateway" in pod:
            self._arm = self._settings(pod).get("arm", "")
            return self._gateway.text
        return self._codecs.get(pod, self._talker).text

    def _advance(self) -> None:
        """Counts the requests since the last call, under the settings in force then."""
        if not self.per_second:
            self._at = monotonic()
        requests = int((monotonic() - self._at) * self.per_second)
        self._at += requests / self.per_second if requests else 0.0
        for name, codec in self._codecs.items():
            self._owed[name] += requests * self._late * self._short[name]
            late = int(self._owed[name])
            self._owed[name] -= late
            self._gateway.serve(*[SOON] * (requests - late), *[LATE] * late)
            self._gateway.settle(self._arm, accepted=requests, well=requests - late, late=late)
            self._talker.prefills(*[0.001] * requests)
            self._talker.steps(1, *[0.001] * (sum(CHUNKS) * requests))
            for frames in CHUNKS:
                codec.calls(1, frames, "eager", *[CALL_SECONDS] * requests)
            self._short[name] = self._settings(name)["max_num_seqs"] < self._rows
