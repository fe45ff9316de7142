"""When a gateway reports what its clients have received."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.gateway.cells.fanout import MAX_REPORT_SECONDS, REPORT_SECONDS, PlaybackReporter

CHUNK = 8
"""Frames: a report of so many waits for less than the maximum."""
WAITS = CHUNK * FAMILY.frame_seconds / 2


class Reports:
    """What is reported, and when."""

    def __init__(self) -> None:
        self.made: asyncio.Queue[tuple[float, dict[str, int]]] = asyncio.Queue()

    def on_reconnect(self, call: Callable[[], None]) -> None:
        self.reconnect = call

    async def report_playback(
        self, reports: Mapping[str, int], kept: Mapping[str, int], spoken: Mapping[str, int]
    ) -> None:
        self.made.put_nowait((asyncio.get_running_loop().time(), dict(reports)))

    async def next(self) -> dict[str, int]:
        async with asyncio.timeout(10):
            return (await self.made.get())[1]


@pytest.fixture
async def reports() -> AsyncIterator[Reports]:
    reports = Reports()
    reports.reporter = PlaybackReporter(reports)
    running = asyncio.create_task(reports.reporter.run())
    yield reports
    running.cancel()


async def test_the_start_of_playback_is_reported_at_once_and_others_wait_for_it(reports):
    reports.reporter.report("a", CHUNK, 0)
    assert await reports.next() == {"a": CHUNK}
    reports.reporter.report("a", 2 * CHUNK, 0)
    reports.reporter.report("b", 1, 0)
    assert await reports.next() == {"a": 2 * CHUNK, "b": 1}


@pytest.mark.parametrize(("frames", "seconds"), [(CHUNK, WAITS), (1000, MAX_REPORT_SECONDS)])
async def test_a_report_waits_half_as_long_as_its_audio_plays_and_not_longer_than_the_maximum(reports, frames, seconds):
    reports.reporter.report("a", 1, 0)
    await reports.next()
    put = asyncio.get_running_loop().time()
    reports.reporter.report("a", 1 + frames, 0)
    async with asyncio.timeout(10):
        at, made = await reports.made.get()
    assert made == {"a": 1 + frames}
    assert at - put >= seconds - 0.01 > REPORT_SECONDS


async def test_after_a_reconnection_all_is_reported_again_at_once(reports):
    reports.reporter.report("a", CHUNK, 0)
    await reports.next()
    reports.reconnect()
    assert await reports.next() == {"a": CHUNK}
