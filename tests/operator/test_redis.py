"""Changes of the managed Redis, its volumes and the checkpoint of a running pipeline."""

import pytest

pytestmark = pytest.mark.virtual
THREE = [f"demo-redis-ha-{number}" for number in range(3)]


def names_of(harness, kind):
    return [each["metadata"]["name"] for each in harness.cluster.list(kind)]


def urls(harness):
    """Returns the Redis that each stage's pod uses."""
    return {
        variable["value"].partition("://")[0]
        for pod in harness.cluster.list("pod")
        for container in pod["spec"]["containers"]
        for variable in container.get("env", ())
        if variable["name"] == "REDIS_URL"
    }


async def until_only(harness, scheme, pods):
    """Waits until all stages use another Redis. Until then both exist."""

    def all_use_it():
        both_exist = {"demo-redis", "demo-redis-ha"} <= set(names_of(harness, "statefulset"))
        assert both_exist or urls(harness) != {"redis", "redis+sentinel"}
        return urls(harness) == {scheme}

    await harness.wait(all_use_it, "all stages use the other Redis")
    await harness.wait(
        lambda: {name for name in harness.uids() if "redis" in name} == set(pods), "the other one is gone"
    )
    await harness.settled()


async def test_replicas_come_and_go_as_a_roll_out(harness):
    async with harness.operator():
        harness.apply()
        await harness.settled()
        before = harness.uids()
        harness.apply(connector={"managed": True, "replicas": 3})
        await until_only(harness, "redis+sentinel", THREE)
        assert not set(before.values()) & set(harness.uids().values())
        assert "demo-redis-ha" in names_of(harness, "poddisruptionbudget")
        for kind in ("service", "networkpolicy", "serviceaccount"):
            await harness.wait(lambda kind=kind: "demo-redis" not in names_of(harness, kind), f"its {kind} is gone")
        assert harness.condition("ConnectorReady")["message"] == "3 of 3 servers are ready"
        harness.apply(connector={"managed": True, "replicas": 1})
        await until_only(harness, "redis", ["demo-redis-0"])
        await harness.wait(lambda: names_of(harness, "poddisruptionbudget") == [], "the budget is gone")


async def test_cells_come_and_go_as_a_roll_out(harness):
    two = {"talker": {"replicas": 2}, "codec": {"replicas": 2}}
    async with harness.operator():
        harness.apply(**two)
        await harness.settled()
        before = harness.uids()
        harness.apply(**two, connector={"managed": True, "cells": 2})
        await harness.settled()
        await harness.wait(lambda: harness.condition("Progressing")["reason"] == "Complete", "all stages are new")
        after = harness.uids()
        assert {name for name in before if after.get(name) == before[name]} == {"demo-redis-0"}
        assert names_of(harness, "statefulset").count("demo-redis-c1") == 1
        assert harness.condition("ConnectorReady")["message"] == "2 of 2 servers are ready, 2 of 2 cells serve"
        harness.apply(**two, connector={"managed": True, "cells": 1})
        former = {uid for name, uid in after.items() if "redis" not in name}

        def all_are_new():
            is_over = not former & set(harness.uids().values())
            assert is_over or "demo-redis-c1" in names_of(harness, "statefulset"), "a stage's pod may need it"
            return is_over

        await harness.wait(all_are_new, "no pod of two cells is left")
        for kind in ("statefulset", "service", "networkpolicy"):
            await harness.wait(lambda kind=kind: "demo-redis-c1" not in names_of(harness, kind), f"its {kind} is gone")
        await harness.settled()
        assert harness.uids()["demo-redis-0"] == before["demo-redis-0"]


def downloading(harness):
    """Returns whether each stage's pod downloads its checkpoint."""
    pods = harness.cluster.list("pod")
    return {bool(pod["spec"].get("initContainers")) for pod in pods if "redis" not in pod["metadata"]["name"]}


async def test_another_kind_of_checkpoint_is_a_roll_out(harness):
    # The bundled voice is the default of the stored resource.
    hub = {"bundled": False, "huggingFace": {"id": "a/b", "revision": "v1"}, "cache": {"storage": {"size": "1Gi"}}}
    bundled = {"bundled": True, "huggingFace": None, "cache": None}
    async with harness.operator():
        harness.apply()
        await harness.settled()
        redis = harness.uids()["demo-redis-0"]
        harness.apply(model=hub)
        job = await harness.wait(lambda: names_of(harness, "job"), "a Job downloads the checkpoint")
        assert downloading(harness) == {False}, "the pods serve meanwhile"
        done = {"conditions": [{"type": "Complete", "status": "True"}]}
        harness.cluster.patch("job", job[0], {"status": done}, subresource="status")
        await harness.wait(lambda: downloading(harness) == {True}, "all stages have the checkpoint of the hub")
        assert names_of(harness, "persistentvolumeclaim") == ["demo-models"]
        harness.cluster.patch("ttspipeline", "demo", {"spec": {"model": bundled}})

        def none_downloads():
            is_over = True not in downloading(harness)
            assert is_over or names_of(harness, "persistentvolumeclaim") == ["demo-models"], "a pod may need it again"
            return is_over

        await harness.wait(none_downloads, "all stages have the bundled voice")
        await harness.wait(lambda: names_of(harness, "persistentvolumeclaim") == [], "the cache is gone")
        await harness.settled()
        assert harness.uids()["demo-redis-0"] == redis


@pytest.mark.parametrize("connector", [{"managed": True}, {"url": "redis://cache:6379/0"}], ids=["managed", "own"])
async def test_what_ready_stages_warn_of_is_in_the_condition_of_their_redis(harness, connector):
    evicts, unchecked = "cache: maxmemory-policy is allkeys-lru", "cache: the user may not run info"
    admins = harness.cluster.kubelet.admins
    async with harness.operator():
        harness.apply(connector=connector)
        await harness.settled()
        healthy = harness.condition("ConnectorReady")
        admins.warnings = [evicts, unchecked]
        expected = f"{healthy['message']}; warning: {evicts}; warning: {unchecked}"
        await harness.wait(lambda: harness.condition("ConnectorReady")["message"] == expected, "it has the warnings")
        assert harness.condition("ConnectorReady")["status"] == harness.condition("Ready")["status"] == "True"
        admins.warnings = []
        await harness.wait(lambda: harness.condition("ConnectorReady") == healthy, "it has no warning")
