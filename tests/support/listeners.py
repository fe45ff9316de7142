"""Listeners of an idle pipeline, as its stages' metrics would tell of them: how soon they are heard follows from the
settings that each codec has in force."""

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
    """So many requests a second for each codec. Those of a codec with enough rows are heard soon, others late."""

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
        """`settings` are those that a codec has in force."""
        self._codecs = codecs
        self._settings = settings
        self._per_second = per_second
        self._rows = rows
        self._seconds = {True: soon, False: late}
        self._clock = clock
        self._at = clock()
        self._heard = {(codec, enough): 0.0 for codec in codecs for enough in (True, False)}
        self._before = {codec: True for codec in codecs}

    def metrics(self, pod: str) -> str:
        """What a pod answers at /metrics."""
        self._go_on()
        if "gateway" in pod:
            return self._gateway()
        stage = "talker" if "talker" in pod else "codec"
        rows = self._settings(pod)["max_num_seqs"]
        frames = sum(count for (codec, _), count in self._heard.items() if pod in (codec, TALKER)) * 25
        return (
            f'{MAX_NUM_SEQS.name}{{stage="{stage}"}} {rows}\n{FRAMES.name}{{stage="{stage}"}} {int(frames)}\n'
            f'{INFO.name}{{version="1",device="cpu"}} 1\n'
        )

    def _go_on(self) -> None:
        """Counts who was heard since the last time, under what was in force then."""
        now = self._clock()
        for codec in self._codecs:
            self._heard[codec, self._before[codec]] += self._per_second * (now - self._at)
            self._before[codec] = self._settings(codec)["max_num_seqs"] >= self._rows
        self._at = now

    def _gateway(self) -> str:
        lines = [f"{LIVE_STREAMS.name} 0"]
        for codec in self._codecs:
            for edge in (*TTFA_BUCKETS, float("inf")):
                count = sum(int(self._heard[codec, enough]) for enough, at in self._seconds.items() if at <= edge)
                labels = f'task_type="CustomVoice",talker="{TALKER}",codec="{codec}",le="{edge}"'
                lines.append(f"{TTFA.name}_bucket{{{labels}}} {count}")
        return "\n".join([*lines, ""])
