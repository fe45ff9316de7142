"""Replicas in pods, and why pods are not ready."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from syrinx_operator.cluster.objects.state import Replica
from syrinx_operator.cluster.report import diagnosis
from syrinx_stages.contract.stages import Stage

CREATED = "2026-11-21T10:00:00Z"
CHANGED = "2026-11-21T10:05:00Z"
NOW = datetime(2026, 11, 21, 10, 10, tzinfo=UTC)


def replicas(pods, now=NOW):
    return diagnosis.replicas(pods, now)


def pod(*, phase: str = "Running", ready: str = "False", **status: Any) -> dict[str, Any]:
    labels = {"syrinx.dev/pipeline": "demo", "syrinx.dev/component": "talker", "syrinx.dev/template": "abc"}
    conditions = [{"type": "Ready", "status": ready, "lastTransitionTime": CHANGED}, *status.pop("conditions", [])]
    return {
        "metadata": {
            "name": "demo-talker-0",
            "labels": labels,
            "annotations": {"syrinx.dev/config": '{"generation": "g1"}'},
            "creationTimestamp": CREATED,
        },
        "spec": {"containers": [{"name": "talker", "ports": [{"name": "admin", "containerPort": 9090}]}]},
        "status": {"phase": phase, "podIP": "10.0.0.7", "conditions": conditions, **status},
    }


def problem(*states: dict[str, Any], init: tuple[dict[str, Any], ...] = (), **status: Any) -> str:
    (found,) = replicas([pod(containerStatuses=list(states), initContainerStatuses=list(init), **status)])
    return found.problem


def waiting(reason: str, message: str = "", **more: Any) -> dict[str, Any]:
    return {"state": {"waiting": {"reason": reason, "message": message}}, **more}


def test_a_pod_with_two_stages_is_a_replica_of_each():
    both = pod(ready="True")
    both["metadata"]["annotations"]["syrinx.dev/codec-config"] = '{"generation": "g1"}'
    talker, codec = replicas([both])
    assert (talker.component, talker.colocated) == (Stage.TALKER, False)
    assert (codec.component, codec.colocated) == (Stage.CODEC, True)
    assert msgspec.structs.replace(codec, component=Stage.TALKER, colocated=False) == talker


def test_a_ready_pod():
    (found,) = replicas([pod(ready="True", containerStatuses=[{"restartCount": 2, "state": {"running": {}}}])])
    assert found == Replica(
        name="demo-talker-0",
        component=Stage.TALKER,
        template="abc",
        model_generation="g1",
        ready=True,
        address="10.0.0.7",
        restarts=2,
        created=CREATED,
        changed=CHANGED,
    )


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_finished_pods_are_no_replicas(phase):
    """An evicted pod of a Deployment stays for hours after it was replaced."""
    assert replicas([pod(phase=phase, reason="Evicted")]) == ()


def test_pods_of_unknown_components_are_no_replicas():
    other = pod()
    other["metadata"]["labels"]["syrinx.dev/component"] = "other"
    assert replicas([other]) == ()
    del other["metadata"]["labels"]
    assert replicas([other]) == ()


@pytest.mark.parametrize("config", ["{", "[]", "{}", '{"generation": 3}'])
def test_an_unreadable_configuration_names_no_model_generation(config):
    odd = pod()
    odd["metadata"]["annotations"]["syrinx.dev/config"] = config
    assert replicas([odd])[0].model_generation == ""


def test_the_problem_of_a_waiting_pod():
    assert problem(waiting("ContainerCreating")) == ""
    assert problem(waiting("PodInitializing"), init=({"state": {"running": {}}},)) == ""
    assert problem(waiting("ImagePullBackOff", "Back-off pulling image")) == "ImagePullBackOff: Back-off pulling image"
    assert problem(waiting("CreateContainerConfigError", 'secret "x" not found')) == (
        'CreateContainerConfigError: secret "x" not found'
    )
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no\n node"}
    assert problem(conditions=[unschedulable]) == "Unschedulable: no node"


def crashed(code: int = 1, reason: str = "Error", message: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


def test_the_problem_of_a_crashed_container():
    killed, named = crashed(137, "OOMKilled"), crashed(message="Traceback\n  File x\nValueError: no such voice\n")
    assert problem(waiting("CrashLoopBackOff", "back-off 40s", lastState=named)) == (
        "CrashLoopBackOff: exit code 1 (Error): ValueError: no such voice"
    )
    loops = waiting("CrashLoopBackOff", "back-off 40s", lastState=killed)
    assert problem(loops) == "CrashLoopBackOff: exit code 137 (OOMKilled)"
    assert problem(waiting("PodInitializing"), init=(loops,)) == "CrashLoopBackOff: exit code 137 (OOMKilled)"
    assert problem({"state": killed}) == "Terminated: exit code 137 (OOMKilled)"
    assert problem({"state": crashed(0, "Completed")}) == ""


def test_how_a_container_ended_is_known_while_it_runs_again():
    last = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "message": "loading\nout of memory"}}
    crashed = {"restartCount": 2, "state": {"running": {}}, "lastState": last}
    (found,) = replicas([pod(containerStatuses=[{"restartCount": 0, "state": {"running": {}}}, crashed])])
    assert (found.last_exit, found.problem) == ("exit code 137 (OOMKilled): out of memory", "")
    assert replicas([pod(containerStatuses=[{**crashed, "restartCount": 0}])])[0].last_exit == ""


@pytest.mark.parametrize(
    ("record", "shown"),
    [
        ({"message": "syrinx talker: no such voice"}, "syrinx talker: no such voice"),
        ({"message": "the talker failed", "exception": "Traceback\n  File x\nValueError: odd"}, "ValueError: odd"),
        ({"level": "info"}, '{"level": "info"}'),
    ],
)
def test_the_error_of_a_log_in_json_is_shown_without_its_fields(record, shown):
    log = '{"message": "earlier"}\n' + json.dumps(record) + "\n"
    assert problem({"state": crashed(message=log)}) == f"Terminated: exit code 1 (Error): {shown}"


def test_when_a_pod_last_changed():
    pending = pod()
    pending["status"] = {}
    assert replicas([pending])[0].changed == CREATED
    assert replicas([pod(ready="True")])[0].changed == CHANGED
    ending = pod(ready="True")
    ending["metadata"] |= {"deletionTimestamp": "2026-11-21T10:08:00Z", "deletionGracePeriodSeconds": 75}
    assert replicas([ending])[0].changed == "2026-11-21T10:06:45Z"


def test_a_pod_has_time_to_become_ready_from_the_end_of_its_downloads():
    init = [{"name": "fetch", "restartCount": 0, "state": {"running": {}}}]
    loading = pod(initContainerStatuses=init, conditions=[{"type": "Initialized", "status": "False"}])
    (found,) = replicas([loading])
    assert (found.initializing, found.unready_since, found.waits_for) == (True, CHANGED, "init container fetch")
    initialized = {"type": "Initialized", "status": "True", "lastTransitionTime": "2026-11-21T10:09:00Z"}
    init = [{"name": "fetch", "restartCount": 0, "state": {"terminated": {"exitCode": 0}}}]
    (found,) = replicas([pod(initContainerStatuses=init, conditions=[initialized])])
    assert (found.initializing, found.unready_since, found.waits_for) == (False, "2026-11-21T10:09:00Z", "")


def test_what_the_start_of_a_pod_waits_for():
    created = [{"restartCount": 0, **waiting("ContainerCreating")}]
    no_sandbox = {"type": "PodReadyToStartContainers", "status": "False"}
    assert replicas([pod(containerStatuses=created, conditions=[no_sandbox])])[0].waits_for == "volumes or network"
    assert replicas([pod(containerStatuses=created)])[0].waits_for == "image or volumes"


def test_a_pod_that_has_been_ready_since_its_container_started():
    running = {"restartCount": 0, "started": True, "state": {"running": {}}}
    assert replicas([pod(containerStatuses=[running])])[0].started
    assert not replicas([pod(containerStatuses=[running | {"started": False}])])[0].started
    assert not replicas([pod(containerStatuses=[running | {"state": {"terminated": {"exitCode": 1}}}])])[0].started
    assert not replicas([pod()])[0].started


@pytest.mark.parametrize(("deadline", "stuck"), [("2026-11-21T10:09:30Z", False), ("2026-11-21T10:08:30Z", True)])
def test_a_pod_is_stuck_a_minute_after_its_grace_period(deadline, stuck):
    ending = pod()
    ending["metadata"]["deletionTimestamp"] = deadline
    assert replicas([ending])[0].stuck == stuck


LOST = {
    "the node controller marks the pod": ({"conditions": [{"type": "ContainersReady", "status": "True"}]}, {}),
    "the reason": ({"reason": "NodeLost"}, {}),
    "the taint manager deletes the pod": (
        {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}]},
        {"deletionTimestamp": CHANGED},
    ),
}


@pytest.mark.parametrize(("status", "metadata"), LOST.values(), ids=LOST)
def test_a_pod_on_a_lost_node(status, metadata):
    lost = pod(**status)
    lost["metadata"] |= metadata
    lost["spec"]["nodeName"] = "gpu-7"
    (found,) = replicas([lost])
    assert (found.node_lost, found.node) == (True, "gpu-7")
    assert found.problem == "NodeLost: its node gpu-7 does not respond"


def test_a_pod_that_is_not_ready_is_not_on_a_lost_node():
    unready = {"type": "ContainersReady", "status": "False"}
    assert not replicas([pod(conditions=[unready])])[0].node_lost
    gated = pod(conditions=[{"type": "ContainersReady", "status": "True"}])
    gated["spec"]["readinessGates"] = [{"conditionType": "example.com/gate"}]
    assert not replicas([gated])[0].node_lost
