"""`python -m support.watched_gateway CONFIG.json`: a gateway that measures what holds its event loop.

Only processor time counts, and only the process's own: on a busy machine other processes keep it waiting. On SIGUSR1 it
logs the longest holds since the last signal.
"""

import asyncio
import contextlib
import json
import signal
import sys
import threading
import time
from pathlib import Path

from syrinx_stages.runtime.process import run

PAUSE = 0.005
"""Seconds between two measurements of the GIL."""
REPORT = "longest holds: "
"""Precedes the JSON object in the log."""


class LoopWatch:
    """The longest turns of callbacks on the event loop, and the longest wait of a thread for the GIL, in seconds."""

    def __init__(self) -> None:
        self._callbacks: dict[str, float] = {}
        self._gil = 0.0

    def watch_callbacks(self) -> None:
        """Measures the processor time of every callback."""
        run_handle = asyncio.Handle._run

        def measured(handle: asyncio.Handle) -> None:
            began = time.thread_time()
            run_handle(handle)
            seconds = time.thread_time() - began
            if seconds > 0.001:
                name = repr(handle)[:300]
                self._callbacks[name] = max(seconds, self._callbacks.get(name, 0.0))

        asyncio.Handle._run = measured  # type: ignore[method-assign]

    def watch_gil(self) -> None:
        """Measures until the process ends how long the GIL is held.

        No longer than the process computed meanwhile, and not while no processor was free.
        """
        while True:
            waited, computed, began = _waited(), time.process_time(), time.perf_counter()
            time.sleep(PAUSE)
            late = time.perf_counter() - began - PAUSE
            if late > self._gil:
                late = min(late - (_waited() - waited), time.process_time() - computed)
                self._gil = max(self._gil, late)

    def report(self, *_: object) -> None:
        """Logs the longest ones, in milliseconds, and forgets them."""
        callbacks = sorted(
            ((round(1000 * seconds, 1), name) for name, seconds in self._callbacks.items()), reverse=True
        )
        holds = {"gil": round(1000 * self._gil, 1), "callbacks": callbacks[:5]}
        self._callbacks, self._gil = {}, 0.0
        print(REPORT + json.dumps(holds), file=sys.stderr, flush=True)


def _waited() -> float:
    """Returns for how many seconds threads of this process have waited for a processor."""
    nanoseconds = 0
    for file in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # The thread may have ended.
            nanoseconds += int(file.read_text().split()[1])
    return nanoseconds / 1e9


if __name__ == "__main__":
    watch = LoopWatch()
    watch.watch_callbacks()
    signal.signal(signal.SIGUSR1, watch.report)
    threading.Thread(target=watch.watch_gil, daemon=True).start()
    run("gateway", "syrinx_stages.gateway.http.api:build", all_cells=True)
