"""The managed Redis with replicas: streams survive the loss of each of its servers."""

import pytest

from cluster import speech
from cluster.client import ApiError
from cluster.pipeline import running

PIPELINE = "replicated"
WORKLOAD = f"{PIPELINE}-redis-ha"
SERVERS = [f"{WORKLOAD}-{ordinal}" for ordinal in range(3)]


@pytest.fixture(scope="module")
def demo(installed):
    """The Ready pipeline of this file."""
    with running(installed, PIPELINE, connector={"managed": True, "replicas": 3}) as pipeline:
        yield pipeline


@pytest.fixture(scope="module")
def quiet(demo):
    """The PCM of undisturbed streams."""
    return speech.together(demo.cluster, PIPELINE)


def role(demo, server):
    """Returns the role of a server: `master` or `slave`."""
    script = "redis-cli --user syrinx --no-auth-warning -p 6379 role | head -n 1"
    return demo.cluster.execute(server, "redis", script).strip()


def primary(demo):
    """Waits until there is one primary with two replicas, and returns it."""

    def found():
        roles = {server: role(demo, server) for server in SERVERS}
        masters = [server for server, each in roles.items() if each == "master"]
        return masters[0] if sorted(roles.values()) == ["master", "slave", "slave"] else None

    return demo.wait("to have one primary and two replicas", found, slow=True)


def converged(demo, before):
    """Waits until all servers are ready, and others than `before` are."""

    def is_new():
        return demo.uids("redis-ha").keys() == set(SERVERS) and demo.uids("redis-ha") != before

    demo.wait("to have three servers", is_new, slow=True)
    demo.wait_ready()
    demo.wait_condition("ConnectorReady", "Serving", "3 of 3 servers are ready")


def test_three_servers_come_up(demo):
    demo.wait_condition("ConnectorReady", "Serving", "3 of 3 servers are ready")
    assert demo.status["redis"]["summary"] == "3/3"
    assert primary(demo) in SERVERS


@pytest.mark.parametrize("grace", [None, 0], ids=["deleted", "killed"])
def test_the_loss_of_the_primary_costs_no_stream(demo, quiet, grace):
    before, lost = demo.uids("redis-ha"), primary(demo)
    disturbed = speech.together(demo.cluster, PIPELINE, lambda: demo.lose(lost, grace))
    for pcm, expected in zip(disturbed, quiet, strict=True):
        assert speech.difference(pcm, expected) <= demo.parameters.pcm_tolerance
    converged(demo, before)
    assert primary(demo) != lost, "a replica was promoted"


def test_one_server_at_a_time_can_be_evicted(demo):
    """As the drain of a node does."""
    primary(demo)
    before = demo.uids("redis-ha")
    demo.wait("to permit an eviction", lambda: budget(demo)["disruptionsAllowed"] == 1)
    evict(demo, SERVERS[0])
    with pytest.raises(ApiError) as refused:
        evict(demo, SERVERS[1])
    assert refused.value.status == 429
    converged(demo, before)


def budget(demo):
    """Returns the status of the PodDisruptionBudget."""
    return demo.cluster.get("PodDisruptionBudget", WORKLOAD)["status"]


def evict(demo, pod):
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
    demo.cluster.call("POST", demo.cluster.path("Pod", pod, "eviction"), json=eviction)


def test_servers_are_spread_over_nodes(demo):
    nodes = [each["metadata"]["name"] for each in demo.cluster.list("Node") if accepts_pods(each)]
    if len(nodes) < len(SERVERS):
        pytest.skip(f"the cluster has {len(nodes)} nodes that accept pods")
    assert len({pod["spec"]["nodeName"] for pod in demo.pods("redis-ha").values()}) == len(SERVERS)


def accepts_pods(node):
    taints = node["spec"].get("taints", [])
    return not any(taint["effect"] in ("NoSchedule", "NoExecute") for taint in taints)
