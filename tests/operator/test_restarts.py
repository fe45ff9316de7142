"""Restarts: an operator killed at any step converges after a restart; two operators do not interfere."""

from __future__ import annotations

import asyncio
import signal
from functools import partial

import pytest

from support.operator import Desk, OperatorProcess

pytestmark = pytest.mark.faults
STEPS = 60
"""More writes than any test needs."""


async def _killed(desk: Desk, operator: OperatorProcess, count: int) -> bool:
    """Kills an operator after `count` more writes; returns False if it writes fewer."""
    stopped = asyncio.create_task(desk.cluster.faults.stopped.wait())
    quiet = asyncio.create_task(desk.quiet(operator))
    await asyncio.wait((stopped, quiet), return_when=asyncio.FIRST_COMPLETED)
    cut = stopped.done()
    for task in (stopped, quiet):
        task.cancel()
    await asyncio.gather(stopped, quiet, return_exceptions=True)
    await operator.kill()
    desk.cluster.faults.resume()
    return cut


def _named(desk: Desk, name: str) -> set[str]:
    return {each.replace(name, "NAME") for each in desk.objects()}


async def test_killed_at_every_write_of_a_new_pipeline_it_creates_the_same_objects(desk):
    """Each operator completes what the previous one was killed at."""
    desk.apply("cut-0", tuning={"mode": "Off"})
    expected: set[str] = set()
    cut = True
    for count in range(STEPS):
        name = f"cut-{count}"
        async with desk.operator(SYRINX_RESYNC_SECONDS="0.3") as operator:
            await desk.settled(name)
            expected = expected or _named(desk, name)
            await desk.wait(partial(_has, desk, name, expected), f"{name} has all its objects")
            reasons = [event["reason"] for event in desk.events() if event["involvedObject"]["name"] == name]
            assert reasons.count("Ready") == 1
            desk.cluster.delete("ttspipeline", name)
            await desk.wait(lambda: not desk.objects(), f"{name} leaves nothing")
            if not cut:
                break
            desk.cluster.faults.stop_after_writes(count + 1)
            desk.apply(f"cut-{count + 1}", tuning={"mode": "Off"})
            cut = await _killed(desk, operator, count + 1)
    assert not cut
    assert count > len(expected), "every object was a step"


def _has(desk: Desk, name: str, expected: set[str]) -> bool:
    return _named(desk, name) == expected


async def test_killed_at_every_write_of_an_edit_it_converges(desk):
    specs = (
        {"tuning": {"mode": "Off"}},
        {
            "tuning": {"mode": "Off"},
            "talker": {"replicas": 2, "env": [{"name": "A", "value": "1"}]},
            "codec": {"maxNumSeqs": 5},
        },
    )
    wanted: list[set[str]] = []
    async with desk.operator(SYRINX_RESYNC_SECONDS="0.3") as operator:
        for spec in specs:
            desk.apply(**spec)
            await desk.settled()
            await desk.quiet(operator)
            wanted.append(set(desk.objects()))
    password = desk.cluster.get("secret", "demo-redis")["metadata"]["uid"]
    for count in range(1, STEPS):
        which = (count + 1) % 2
        async with desk.operator(SYRINX_RESYNC_SECONDS="0.3") as operator:
            await operator.ready()
            desk.cluster.faults.stop_after_writes(count)
            desk.apply(**specs[which])
            cut = await _killed(desk, operator, count)
        async with desk.operator(SYRINX_RESYNC_SECONDS="0.3"):
            await desk.settled()
            await desk.wait(partial(_has, desk, "no name", wanted[which]), "the edit is applied")
            await desk.wait(lambda: len(desk.talkers()) == which + 1, "the number of talkers matches")  # noqa: B023
        if not cut:
            break
    assert not cut
    assert count > 5, "there are several steps"
    assert desk.cluster.get("secret", "demo-redis")["metadata"]["uid"] == password


async def test_settings_generations_never_decrease_over_restarts(desk):
    seen = []
    for rows in (3, 4, 5):
        desk.apply(codec={"maxNumSeqs": rows})
        async with desk.operator() as operator:
            await desk.wait(partial(_confirmed, desk, rows), f"{rows} rows are confirmed")
            seen.append(desk.cluster.get("ttspipeline", "demo")["status"]["codec"]["settingsGeneration"])
            await operator.kill()
    assert seen == [1, 2, 3]


def _confirmed(desk: Desk, rows: int) -> bool:
    codec = desk.cluster.get("ttspipeline", "demo")["status"]["codec"]
    return codec["settings"]["maxNumSeqs"] == rows and codec.get("confirmedGeneration") == codec["settingsGeneration"]


async def test_sigterm_stops_it_quickly_and_releases_its_leases(desk):
    async with desk.operator() as operator:
        desk.apply()
        await desk.settled()
        assert desk.cluster.get("lease", "demo-operator")["spec"]["holderIdentity"] == "operator-0"
        async with asyncio.timeout(10):
            await operator.stop()
        assert operator.running.returncode == 0
    assert desk.cluster.get("lease", "demo-operator")["spec"]["holderIdentity"] == ""


async def test_sigterm_during_a_reconcile_stops_it_quickly(desk):
    hanging = desk.cluster.faults.hang("PATCH", "statefulsets")
    async with desk.operator() as operator:
        desk.apply()
        await desk.wait(hanging.struck.is_set, "it is in the middle of things")
        async with asyncio.timeout(10):
            await operator.stop()
    hanging.release()
    async with desk.operator("operator-1"):
        await desk.settled()


async def test_a_second_operator_takes_over_when_the_first_stops(desk):
    async with desk.operator("operator-0") as first, desk.operator("operator-1") as second:
        await first.ready()
        await second.ready()
        desk.apply()
        await desk.settled()
        holder = desk.cluster.get("lease", "demo-operator")["spec"]["holderIdentity"]
        works, watches = (first, second) if holder == "operator-0" else (second, first)
        await watches.until(lambda: 'outcome="standby"' in watches.get("/metrics").text, "the other is on standby")
        assert "changes_total{" not in await watches.metrics()
        await works.stop()
        desk.apply(talker={"replicas": 2})
        await desk.wait(lambda: len(desk.talkers()) == 2, "the other carries the edit out")
        assert desk.cluster.get("lease", "demo-operator")["spec"]["holderIdentity"] == watches.name


async def test_a_killed_operator_is_replaced_when_its_lease_expires(desk):
    async with desk.operator("operator-0", SYRINX_LEASE_SECONDS="2") as first:
        desk.apply()
        await desk.settled()
        await first.kill()
    desk.apply(talker={"replicas": 2})
    async with desk.operator("operator-1", SYRINX_LEASE_SECONDS="2"):
        await desk.wait(lambda: len(desk.talkers()) == 2, "the next one carries the edit out")
    assert desk.cluster.get("lease", "demo-operator")["spec"]["leaseTransitions"] == 1


async def test_an_operator_resumed_after_its_lease_expired_writes_nothing(desk):
    """Its Lease has expired by its own clock."""
    async with (
        desk.operator("operator-0", SYRINX_LEASE_SECONDS="2", SYRINX_RESYNC_SECONDS="0.3") as frozen,
        desk.operator("operator-1", SYRINX_LEASE_SECONDS="2", SYRINX_RESYNC_SECONDS="0.3") as other,
    ):
        await frozen.ready()
        await other.ready()
        desk.apply()
        await desk.settled()
        if desk.cluster.get("lease", "demo-operator")["spec"]["holderIdentity"] == other.name:
            frozen, other = other, frozen
        frozen.running.send_signal(signal.SIGSTOP)
        desk.apply(talker={"replicas": 2})
        await desk.wait(lambda: len(desk.talkers()) == 2, "the other carries the edit out")
        await desk.settled()
        await desk.quiet(other)
        before = {name: each["metadata"]["resourceVersion"] for name, each in _all(desk).items()}
        frozen.running.send_signal(signal.SIGCONT)
        await frozen.until(lambda: 'outcome="standby"' in frozen.get("/metrics").text, "it is on standby")
        await desk.quiet(other)
        assert {name: each["metadata"]["resourceVersion"] for name, each in _all(desk).items()} == before
        assert desk.cluster.get("lease", "demo-operator")["spec"]["holderIdentity"] == other.name


def _all(desk: Desk) -> dict:
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in desk.live() if each["kind"] != "Lease"}
