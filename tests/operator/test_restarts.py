"""Restarts: an operator killed at any step converges after a restart; two operators do not interfere."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from support.operator import Harness, RunningOperator

pytestmark = pytest.mark.virtual
STEPS = 60
"""More writes than any test needs."""


async def _killed(harness: Harness, operator: RunningOperator, count: int) -> bool:
    """Kills an operator after `count` more writes; returns False if it writes fewer."""
    stopped = asyncio.create_task(harness.cluster.faults.stopped.wait())
    quiet = asyncio.create_task(harness.quiet(operator))
    await asyncio.wait((stopped, quiet), return_when=asyncio.FIRST_COMPLETED)
    cut = stopped.done()
    for task in (stopped, quiet):
        task.cancel()
    await asyncio.gather(stopped, quiet, return_exceptions=True)
    await operator.kill()
    harness.cluster.faults.resume()
    return cut


def _named(harness: Harness, name: str) -> set[str]:
    return {each.replace(name, "NAME") for each in harness.objects()}


def _has(harness: Harness, name: str, expected: set[str]) -> bool:
    return _named(harness, name) == expected


async def test_killed_at_every_write_of_an_edit_it_converges(harness):
    specs = (
        {"tuning": {"mode": "Off"}},
        {
            "tuning": {"mode": "Off"},
            "talker": {"replicas": 2, "env": [{"name": "A", "value": "1"}]},
            "codec": {"maxNumSeqs": 5},
        },
    )
    wanted: list[set[str]] = []
    async with harness.operator(SYRINX_RESYNC_SECONDS="0.3") as operator:
        for spec in specs:
            harness.apply(**spec)
            await harness.settled()
            await harness.quiet(operator)
            wanted.append(set(harness.objects()))
    password = harness.cluster.get("secret", "demo-redis")["metadata"]["uid"]
    for count in range(1, STEPS):
        which = (count + 1) % 2
        async with harness.operator(SYRINX_RESYNC_SECONDS="0.3") as operator:
            await operator.ready()
            harness.cluster.faults.stop_after_writes(count)
            harness.apply(**specs[which])
            cut = await _killed(harness, operator, count)
        async with harness.operator(SYRINX_RESYNC_SECONDS="0.3"):
            await harness.settled()
            await harness.wait(partial(_has, harness, "no name", wanted[which]), "the edit is applied")
            await harness.wait(lambda: len(harness.talkers()) == which + 1, "the number of talkers matches")  # noqa: B023
        if not cut:
            break
    assert not cut
    assert count > 5, "there are several steps"
    assert harness.cluster.get("secret", "demo-redis")["metadata"]["uid"] == password


async def test_settings_generations_never_decrease_over_restarts(harness):
    seen = []
    for rows in (3, 4, 5):
        harness.apply(codec={"maxNumSeqs": rows})
        async with harness.operator() as operator:
            await harness.wait(partial(_confirmed, harness, rows), f"{rows} rows are confirmed")
            seen.append(harness.cluster.get("ttspipeline", "demo")["status"]["codec"]["settingsGeneration"])
            await operator.kill()
    assert seen == [1, 2, 3]


def _confirmed(harness: Harness, rows: int) -> bool:
    codec = harness.cluster.get("ttspipeline", "demo")["status"]["codec"]
    return codec["settings"]["maxNumSeqs"] == rows and codec.get("confirmedGeneration") == codec["settingsGeneration"]


async def test_sigterm_during_a_reconcile_stops_it_and_releases_its_lease(harness):
    hanging = harness.cluster.faults.hang("PATCH", "statefulsets")
    async with harness.operator() as operator:
        harness.apply()
        await harness.wait(hanging.struck.is_set, "it is in the middle of things")
        await operator.stop()
        assert operator.code == 0
    assert harness.lease()["holderIdentity"] == ""
    hanging.release()
    async with harness.operator("operator-1"):
        await harness.settled()


async def test_a_second_operator_takes_over_when_the_first_stops(harness):
    async with harness.operator("operator-0") as first, harness.operator("operator-1") as second:
        await first.ready()
        await second.ready()
        harness.apply()
        await harness.settled()
        holder = harness.lease()["holderIdentity"]
        works, watches = (first, second) if holder == "operator-0" else (second, first)
        await watches.until(lambda: 'outcome="standby"' in watches.get("/metrics").text, "the other is on standby")
        assert "changes_total{" not in watches.metrics()
        await works.stop()
        harness.apply(talker={"replicas": 2})
        await harness.wait(lambda: len(harness.talkers()) == 2, "the other carries the edit out")
        assert harness.lease()["holderIdentity"] == watches.name
