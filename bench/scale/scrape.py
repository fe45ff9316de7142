"""A scrape of a gateway with all the series that a large pipeline makes it export."""

import asyncio
import itertools
import time

import httpx
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from syrinx_stages.contract import metrics as m
from syrinx_stages.runtime.http.admin import create_admin
from syrinx_stages.runtime.telemetry.exposition import Exposition
from syrinx_stages.runtime.telemetry.metrics import Metrics, series_labels

CLIENTS = 100
"""Names of API keys: the only label of a gateway whose number of values depends on the installation."""
SCRAPES = 20
_VALUES = {
    "client": [f"client-{number}" for number in range(CLIENTS)],
    "task_type": ["CustomVoice", "VoiceDesign", "Base"],
    "arm": ["", "a", "b"],
    "outcome": ["well", "late", "interrupted", "incomplete", "failed", "refused", "void"],
}


async def measure() -> tuple[float, float, int]:
    """Returns the longest scrape, the longest time that one held the event loop, both in ms, and the bytes of one.

    No label of a gateway names a talker or a codec, so their number does not matter.
    """
    metrics = Metrics(CollectorRegistry())
    for metric in m.BY_STAGE["gateway"]:
        for values in itertools.product(*(_VALUES.get(label, ["one"]) for label in metric.labels)):
            _count(metrics[metric].labels(*values) if values else metrics[metric])
    transport = httpx.ASGITransport(create_admin(lambda: None, Exposition(metrics, series_labels("pipeline"))))
    longest, held, size = 0.0, 0.0, 0
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        await client.get("/healthz")  # A probe comes before the first scrape, and imports what serves a request.
        for _ in range(SCRAPES):
            watch = asyncio.create_task(_longest_hold())
            await asyncio.sleep(0.02)
            started = time.perf_counter()
            size = len((await client.get("/metrics")).content)
            longest = max(longest, time.perf_counter() - started)
            watch.cancel()
            held = max(held, await watch)
    return 1000 * longest, 1000 * held, size


def _count(series: MetricWrapperBase) -> None:
    if hasattr(series, "observe"):
        series.observe(0.1)
    else:
        series.inc()  # type: ignore[attr-defined]


async def _longest_hold() -> float:
    """Returns, when it is cancelled, the longest time in seconds between two turns of the event loop."""
    longest, last = 0.0, time.perf_counter()
    try:
        while True:
            await asyncio.sleep(0)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
    except asyncio.CancelledError:
        return longest
