"""Simulated clients of an idle pipeline, as its stages' metrics would report them. Their TTFA depends on the settings
in force at each codec."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from syrinx_stages.contract.metrics import (
    FRAMES,
    INFO,
    LIVE_STREAMS,
    MAX_NUM_SEQS,
    TTFA,
    TTFA_BUCKETS,
)

TALKER = "demo-talker-0"


class Listeners:
    """Clients at a fixed rate per codec. Those of a codec with enough rows have a short TTFA, the others a long one."""

    def __init__(
        self,
        codecs: tuple[str, ...],
        settings: Callable[[str], Mapping[str, Any]],
        *,
        per_second: float,
        rows: int,
        soon: float = 0.15,
        late: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`settings(codec)` returns the settings in force; `soon` and `late` are the TTFA in seconds."""
        self._codecs = codecs
        self._settings = settings
        self._per_second = per_second
        self._rows = rows
        self._seconds = {True: soon, False: late}
        self._clock = clock
        self._at = clock()
        self._requests = {(codec, enough): 0.0 for codec in codecs for enough in (True, False)}
        self._before = {codec: True for codec in codecs}

    def metrics(self, pod: str) -> str:
        """Returns the body of a pod's /metrics."""
        self._advance()
        if "gateway" in pod:
            return self._gateway()
        stage = "talker" if "talker" in pod else "codec"
        rows = self._settings(pod)["max_num_seqs"]
        frames = sum(count for (codec, _), count in self._requests.items() if pod in (codec, TALKER)) * 25
        return (
            f'{MAX_NUM_SEQS.name}{{stage="{stage}"}} {rows}\n{FRAMES.name}{{stage="{stage}"}} {int(frames)}\n'
            f'{INFO.name}{{version="1",device="cpu"}} 1\n'
        )

    def _advance(self) -> None:
        """Counts the requests since the last call, under the settings in force then."""
        now = self._clock()
        for codec in self._codecs:
            self._requests[codec, self._before[codec]] += self._per_second * (now - self._at)
            self._before[codec] = self._settings(codec)["max_num_seqs"] >= self._rows
        self._at = now

    def _gateway(self) -> str:
        lines = [f"{LIVE_STREAMS.name} 0"]
        for codec in self._codecs:
            for edge in (*TTFA_BUCKETS, float("inf")):
                count = sum(int(self._requests[codec, enough]) for enough, at in self._seconds.items() if at <= edge)
                labels = f'task_type="CustomVoice",talker="{TALKER}",codec="{codec}",le="{edge}"'
                lines.append(f"{TTFA.name}_bucket{{{labels}}} {count}")
        return "\n".join([*lines, ""])
