"""Pods that no node accepts, and nodes that are cordoned, drained or lost."""

import subprocess

import pytest

from cluster import speech
from cluster.pipeline import running

PIPELINE = "placed"
HOSTNAME = "kubernetes.io/hostname"


@pytest.fixture(scope="module")
def demo(installed):
    """The Ready pipeline of this file; on SYRINX_TEST_NODE if it is set."""
    name = installed.parameters.node
    node = installed.cluster.get("Node", name) if name else None
    placed = {"nodeSelector": {HOSTNAME: node["metadata"]["labels"][HOSTNAME]}} if node else {}
    with running(installed, PIPELINE, gateway=placed, talker=placed, codec=placed) as pipeline:
        yield pipeline


@pytest.fixture
def cordon(demo):
    """Cordons the node, and uncordons it at the end."""
    node = demo.parameters.node
    if not node:
        pytest.skip("SYRINX_TEST_NODE names no node that may be cordoned")

    def uncordon():
        demo.cluster.patch("Node", node, {"spec": {"unschedulable": None}})

    demo.cluster.patch("Node", node, {"spec": {"unschedulable": True}})
    yield uncordon
    uncordon()


def test_a_pod_without_a_fitting_node_is_reported_in_the_words_of_the_scheduler(demo):
    before = demo.uids()
    demo.edit({"codec": {"resources": {"requests": {"cpu": "1000"}}}})
    message = demo.wait_condition("Progressing", "RollingOut", "Insufficient cpu")
    assert f"{PIPELINE}-codec-1" in message and "no node fits" in message
    assert "updateStrategy: Replace" in message
    assert speech.is_speech(speech.speak(demo.cluster, PIPELINE)), "the running codec is kept"
    demo.edit({"codec": {"resources": {"requests": {"cpu": "200m"}}}})
    demo.wait_ready()
    assert demo.uids() == before


def test_pods_that_a_quota_forbids_are_reported(demo):
    """Only the Events of a StatefulSet say why it creates no pod."""
    before = demo.uids()
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "full"}}
    demo.cluster.apply({**quota, "spec": {"hard": {"pods": str(len(demo.cluster.list("Pod")))}}})
    try:
        demo.edit({"codec": {"replicas": 2}})
        message = demo.wait_condition("Degraded", "PodsMissing")
        assert f"StatefulSet {PIPELINE}-codec has 1 of 2 pods" in message
    finally:
        demo.cluster.delete("ResourceQuota", "full")
    demo.edit({"codec": {"replicas": 1}})
    demo.wait_condition("Degraded", "AsExpected")
    demo.wait_ready()
    assert demo.uids() == before


def test_a_cordoned_node_keeps_its_pods_and_gets_no_new_ones(demo, cordon):
    before = demo.uids()
    demo.edit({"codec": {"replicas": 2}})
    demo.wait_condition("Progressing", "Starting", "unschedulable")
    assert before.items() < demo.uids().items()
    assert speech.is_speech(speech.speak(demo.cluster, PIPELINE))
    cordon()
    demo.wait("to have two codecs", lambda: demo.status["codec"]["summary"] == "2/2", slow=True)
    demo.edit({"codec": {"replicas": 1}})
    demo.wait("to have one codec", lambda: demo.uids() == before, slow=True)
    demo.wait_ready()


def test_a_drained_node_lets_single_pods_go(demo, cordon):
    before = demo.uids()
    for pod in before:
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
        demo.cluster.call("POST", demo.cluster.path("Pod", pod, "eviction"), json=eviction)
    demo.wait("to have no pod of before", lambda: not set(before.values()) & set(demo.uids().values()), slow=True)
    demo.wait("not to be Ready", lambda: demo.condition("Ready")["status"] == "False")
    assert "unschedulable" in demo.wait_condition("Ready", "Unschedulable")
    cordon()
    demo.wait_ready()
    assert speech.is_speech(speech.speak(demo.cluster, PIPELINE))


def test_a_lost_node_is_reported_until_it_is_back(demo):
    if not (demo.parameters.node and demo.parameters.stop_node):
        pytest.skip("SYRINX_TEST_STOP_NODE has no command")
    subprocess.run(demo.parameters.stop_node, shell=True, check=True)
    try:
        assert demo.parameters.node in demo.wait_condition("Degraded", "NodeLost")
    finally:
        subprocess.run(demo.parameters.start_node, shell=True, check=True)
    demo.wait_condition("Degraded", "AsExpected")
    demo.wait_ready()
    assert speech.is_speech(speech.speak(demo.cluster, PIPELINE))
