"""The operator as a process, as kopf runs it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from support.kube import KubeCluster
from support.operator import Harness, lives
from support.operator_process import OperatorProcess

QUICK = {"SYRINX_MAX_BACKOFF_SECONDS": "1", "SYRINX_LEASE_SECONDS": "4"}


@pytest.fixture
def harness(cluster: KubeCluster, tmp_path: Path) -> Harness:
    return Harness(cluster, tmp_path, OperatorProcess)


@pytest.mark.smoke
async def test_killed_and_started_again_it_carries_out_an_edit_and_stops_on_sigterm(harness):
    harness.apply()
    async with harness.operator() as operator:
        await harness.settled()
        await operator.kill()
    harness.apply(talker={"replicas": 2})
    async with harness.operator() as operator:
        await harness.wait(lambda: len(harness.talkers()) == 2, "the edit is carried out")
        await harness.settled()
        assert operator.get("/healthz").status_code == operator.get("/readyz").status_code == 200
        await operator.stop()
        assert operator.code == 0
    assert harness.lease()["holderIdentity"] == ""


async def test_an_invalid_option_is_reported_at_start(harness):
    async with harness.operator(SYRINX_STAGE_ACCESS="sideways") as operator:
        await operator.ended()
    assert operator.code == 1
    message = "syrinx-operator: SYRINX_STAGE_ACCESS: 'sideways' is not accepted; expected direct or proxy"
    assert operator.output.strip() == message


async def test_a_port_in_use_is_reported_at_start(harness):
    async with harness.operator() as first:
        await first.ready()
        async with harness.operator(SYRINX_PORT=str(first.port)) as second:
            await second.ended()
        assert second.code == 1
        assert "address already in use" in second.output


async def test_the_log_in_json_names_the_pipeline(harness):
    async with harness.operator(LOG_FORMAT="json") as operator:
        harness.apply()
        await harness.settled()
    lines = [json.loads(line) for line in operator.log.splitlines()]
    assert all(line.keys() >= {"ts", "level", "logger", "message"} for line in lines)
    applied = [line for line in lines if line["message"].startswith("default/demo: applied StatefulSet")]
    assert applied and all((line["namespace"], line["pipeline"]) == ("default", "demo") for line in applied)
    assert any(line["logger"].startswith("kopf") for line in lines), "kopf's records too"


async def test_it_starts_although_its_credentials_are_refused(harness):
    """As while a token is rotated, or before the API server has loaded its keys."""
    fault = harness.cluster.faults.fail(401, times=None)
    async with harness.operator(**QUICK) as operator:
        await operator.until(lambda: "Unauthorized on purpose" in operator.get("/readyz").text, "it says what is wrong")
        await lives(operator, 8)
        assert operator.get("/readyz").status_code == 503
        assert 'syrinx_operator_watch_up{kind="StatefulSet",pipeline_namespace="default"} 0.0' in operator.metrics()
        assert "the API server refuses the operator's credentials" in operator.log
        assert len([each for each in harness.cluster.requests if each.path == "/api"]) < 15, "it backs off"
        fault.release()
        await operator.ready()
        harness.apply()
        await harness.settled()
        await operator.until(lambda: operator.get("/readyz").text == "ready\n", "everything is watched")


async def test_an_operator_resumed_after_its_lease_expired_writes_nothing(harness):
    """Its Lease has expired by its own clock."""
    async with (
        harness.operator("operator-0", SYRINX_LEASE_SECONDS="2", SYRINX_RESYNC_SECONDS="0.3") as frozen,
        harness.operator("operator-1", SYRINX_LEASE_SECONDS="2", SYRINX_RESYNC_SECONDS="0.3") as other,
    ):
        await frozen.ready()
        await other.ready()
        harness.apply()
        await harness.settled()
        if harness.lease()["holderIdentity"] == other.name:
            frozen, other = other, frozen
        frozen.running.send_signal(signal.SIGSTOP)
        harness.apply(talker={"replicas": 2})
        await harness.wait(lambda: len(harness.talkers()) == 2, "the other carries the edit out")
        await harness.settled()
        await harness.quiet(other)
        before = {name: each["metadata"]["resourceVersion"] for name, each in _all(harness).items()}
        frozen.running.send_signal(signal.SIGCONT)
        await frozen.until(lambda: 'outcome="standby"' in frozen.get("/metrics").text, "it is on standby")
        await harness.quiet(other)
        assert {name: each["metadata"]["resourceVersion"] for name, each in _all(harness).items()} == before
        assert harness.lease()["holderIdentity"] == other.name


def _all(harness: Harness) -> dict:
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in harness.live() if each["kind"] != "Lease"}
