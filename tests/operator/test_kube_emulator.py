"""The emulated cluster behaves like Kubernetes as far as an operator relies on it."""

import asyncio
import json

import httpx
import pytest

from support.kube import ApiError, KubeCluster, Rights
from support.operator import SECONDS

pytestmark = pytest.mark.virtual
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"


def template(image="a:1", app="x", **container):
    return {
        "metadata": {"labels": {"app": app}},
        "spec": {"containers": [{"name": "main", "image": image, **container}]},
    }


def workload(kind="StatefulSet", name="web", replicas=2, **fields):
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "x"}}, "template": template()}
    if kind == "StatefulSet":
        spec |= {"serviceName": name, "podManagementPolicy": "Parallel"}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec | fields}


def config_map(name="settings", **data):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


@pytest.fixture
async def cluster():
    async with KubeCluster(pod_monitors=True) as cluster:
        yield cluster


@pytest.fixture
async def http(cluster):
    async with httpx.AsyncClient(base_url=cluster.url, timeout=SECONDS) as client:
        yield client


MAPS = "/api/v1/namespaces/default/configmaps"


async def apply(http, path, obj, manager="operator", **params):
    query = {"fieldManager": manager, **params}
    return await http.patch(path, params=query, content=json.dumps(obj), headers={"Content-Type": APPLY})


async def ready(cluster, kind, name, count):
    await cluster.wait(
        lambda: cluster.get(kind, name)["status"].get("readyReplicas", 0) == count, SECONDS, f"{count} of {name} ready"
    )


def refused(code, call, *arguments, **options):
    with pytest.raises(ApiError) as error:
        call(*arguments, **options)
    assert error.value.code == code
    return str(error.value)


# --- server-side apply


async def test_apply_creates_then_changes_then_does_nothing(http):
    created = await apply(http, f"{MAPS}/settings", config_map(a="1"))
    changed = await apply(http, f"{MAPS}/settings", config_map(a="2"))
    same = await apply(http, f"{MAPS}/settings", config_map(a="2"))
    assert (created.status_code, changed.status_code, same.status_code) == (201, 200, 200)
    versions = [answer.json()["metadata"]["resourceVersion"] for answer in (created, changed, same)]
    assert versions[0] != versions[1] == versions[2]


async def test_apply_removes_only_fields_that_its_manager_no_longer_applies(cluster):
    cluster.apply(config_map(mine="1", shared="1"), manager="operator")
    cluster.apply(config_map(shared="1", theirs="1"), manager="other")
    cluster.apply(config_map(), manager="operator")
    assert cluster.get("configmap", "settings")["data"] == {"shared": "1", "theirs": "1"}


async def test_apply_conflicts_with_another_owner_unless_forced(cluster, http):
    cluster.apply(config_map(a="1"), manager="other")
    refusal = await apply(http, f"{MAPS}/settings", config_map(a="2"))
    assert refusal.status_code == 409
    [cause] = refusal.json()["details"]["causes"]
    assert cause == {"reason": "FieldManagerConflict", "message": 'conflict with "other"', "field": ".data.a"}
    assert (await apply(http, f"{MAPS}/settings", config_map(a="2"), force="true")).status_code == 200
    owners = {
        entry["manager"]: entry["fieldsV1"]
        for entry in cluster.get("configmap", "settings")["metadata"]["managedFields"]
    }
    assert owners == {"operator": {"f:data": {"f:a": {}}}}


async def test_an_update_owns_the_fields_that_it_changes(cluster, http):
    await apply(http, f"{MAPS}/settings", config_map(a="1", b="1"))
    cluster.patch("configmap", "settings", {"data": {"a": "2"}}, manager="edit")
    refusal = await apply(http, f"{MAPS}/settings", config_map(a="1", b="1"))
    assert refusal.status_code == 409
    assert 'conflict with "edit" using v1: .data.a' in refusal.json()["message"]


async def test_keyed_lists_merge_by_item(cluster):
    mine = workload(template=template(env=[{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]))
    cluster.apply(mine, manager="operator")
    theirs = {"name": "sidecar", "image": "s:1"}
    added = workload(template={**template(), "spec": {"containers": [{"name": "main"}, theirs]}})
    del added["spec"]["template"]["spec"]["containers"][0]
    cluster.apply(added, manager="injector")
    cluster.apply(workload(template=template(env=[{"name": "B", "value": "1"}])), manager="operator")
    main, sidecar = cluster.get("statefulset", "web")["spec"]["template"]["spec"]["containers"]
    assert main["env"] == [{"name": "B", "value": "1"}]
    assert sidecar["name"] == "sidecar"
    assert main["image"] == "a:1"


async def test_unknown_fields_are_rejected_by_apply_and_dropped_by_create(cluster, http):
    wrong = {**config_map(), "datta": {}}
    refusal = await apply(http, f"{MAPS}/settings", wrong)
    assert refusal.status_code == 500
    assert ".datta: field not declared in schema" in refusal.json()["message"]
    strict = await http.post(MAPS, params={"fieldValidation": "Strict"}, json=wrong)
    assert (strict.status_code, strict.json()["message"]) == (400, 'strict decoding error: unknown field "datta"')
    warned = await http.post(MAPS, json=wrong)
    assert warned.status_code == 201
    assert "datta" not in warned.json()
    assert warned.headers["Warning"] == '299 - "unknown field "datta""'


# --- objects


async def test_generation_counts_spec_changes_only(cluster):
    cluster.apply(workload())
    await ready(cluster, "statefulset", "web", 2)
    cluster.patch("statefulset", "web", {"metadata": {"labels": {"a": "b"}}})
    assert cluster.get("statefulset", "web")["metadata"]["generation"] == 1
    cluster.scale("statefulset", "web", 3)
    assert cluster.get("statefulset", "web")["metadata"]["generation"] == 2


async def test_the_status_is_written_only_by_its_subresource(cluster):
    cluster.apply(workload())
    cluster.manager.paused = True
    cluster.patch("statefulset", "web", {"status": {"replicas": 9}})
    assert "status" not in cluster.get("statefulset", "web")
    change = {"spec": {"replicas": 9}, "status": {"replicas": 9}}
    cluster.patch("statefulset", "web", change, subresource="status")
    obj = cluster.get("statefulset", "web")
    assert (obj["spec"]["replicas"], obj["status"]["replicas"]) == (2, 9)


async def test_an_outdated_resource_version_is_a_conflict(cluster, http):
    old = cluster.apply(config_map(a="1"))
    cluster.patch("configmap", "settings", {"data": {"a": "2"}})
    late = await http.put(f"{MAPS}/settings", json=old)
    assert (late.status_code, late.json()["reason"]) == (409, "Conflict")
    patch = {"metadata": {"resourceVersion": old["metadata"]["resourceVersion"]}}
    refused(409, cluster.patch, "configmap", "settings", patch)


IMMUTABLE = {
    "serviceName": (workload(), {"spec": {"serviceName": "other"}}, "updates to statefulset spec"),
    "selector": (
        workload("Deployment"),
        {"spec": {"selector": {"matchLabels": {"app": "y"}}, "template": template(app="y")}},
        "field is immutable",
    ),
    "clusterIP": (
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}},
        {"spec": {"clusterIP": "10.0.0.1"}},
        "may not change once set",
    ),
    "immutable": (
        config_map("web", a="1") | {"immutable": True},
        {"data": {"a": "2"}},
        "immutable when `immutable` is set",
    ),
}


@pytest.mark.parametrize("field", IMMUTABLE)
async def test_immutable_fields(cluster, field):
    obj, change, message = IMMUTABLE[field]
    cluster.apply(obj)
    assert message in refused(422, cluster.patch, obj["kind"], "web", change)


# --- reading


async def test_lists_by_selectors_in_pages(cluster, http):
    for name, tier in (("a", "front"), ("b", "back"), ("c", "front")):
        cluster.apply({**config_map(), "metadata": {"name": name, "labels": {"tier": tier}}})
    page = (await http.get(MAPS, params={"labelSelector": "tier in (front)", "limit": 1})).json()
    assert [item["metadata"]["name"] for item in page["items"]] == ["a"]
    assert "kind" not in page["items"][0]
    more = {"labelSelector": "tier in (front)", "continue": page["metadata"]["continue"]}
    rest = (await http.get(MAPS, params=more)).json()
    assert [item["metadata"]["name"] for item in rest["items"]] == ["c"]
    one = (await http.get(MAPS, params={"fieldSelector": "metadata.name=b"})).json()
    assert [item["metadata"]["name"] for item in one["items"]] == ["b"]
    cluster.patch("configmap", "a", {"data": {"x": "y"}})
    cluster.store.compact()
    assert (await http.get(MAPS, params=more)).status_code == 410


class Watch:
    """Yields the events of a watch."""

    def __init__(self, http, path, **params):
        self._request = http.stream("GET", path, params={"watch": "true", **params})

    async def __aenter__(self):
        self._response = await self._request.__aenter__()
        self._lines = self._response.aiter_lines()
        return self

    async def __aexit__(self, *error):
        await self._request.__aexit__(*error)

    async def next(self):
        async with asyncio.timeout(SECONDS):
            event = json.loads(await anext(self._lines))
        return event["type"], event["object"]

    async def end(self):
        async with asyncio.timeout(SECONDS):
            return [json.loads(line)["type"] async for line in self._lines]


async def test_a_watch_continues_from_a_list(cluster, http):
    version = (await http.get(MAPS)).json()["metadata"]["resourceVersion"]
    cluster.apply(config_map(a="1"))
    async with Watch(http, MAPS, resourceVersion=version) as watch:
        assert (await watch.next())[0] == "ADDED"
        cluster.patch("configmap", "settings", {"data": {"a": "2"}})
        kind, obj = await watch.next()
        assert (kind, obj["data"], obj["kind"]) == ("MODIFIED", {"a": "2"}, "ConfigMap")
        cluster.delete("configmap", "settings")
        assert (await watch.next())[0] == "DELETED"


async def test_a_watch_with_a_selector_sees_objects_come_and_go_by_their_labels(cluster, http):
    version = cluster.apply(config_map())["metadata"]["resourceVersion"]
    async with Watch(http, MAPS, labelSelector="a=b", resourceVersion=version) as watch:
        cluster.patch("configmap", "settings", {"metadata": {"labels": {"a": "b"}}})
        assert (await watch.next())[0] == "ADDED"
        cluster.patch("configmap", "settings", {"metadata": {"labels": {"a": "c"}}})
        assert (await watch.next())[0] == "DELETED"


async def test_a_watch_from_an_expired_version_gets_410(cluster, http):
    cluster.apply(config_map())
    cluster.store.compact()
    async with Watch(http, MAPS, resourceVersion="1001") as watch:
        kind, status = await watch.next()
        assert (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")


async def test_watches_end_in_time_with_a_bookmark_and_when_they_are_dropped(cluster, http):
    version = str(cluster.store.version)
    options = {"timeoutSeconds": "0.05", "allowWatchBookmarks": "true", "resourceVersion": version}
    async with Watch(http, MAPS, **options) as watch:
        assert await watch.end() == ["BOOKMARK"]
    async with Watch(http, MAPS, resourceVersion=version) as watch:
        await cluster.wait(lambda: len(cluster.watches), SECONDS, "the watch")
        cluster.watches.drop()
        assert await watch.end() == []


# --- deletion


async def test_a_finalizer_delays_deletion(cluster, http):
    cluster.apply({**config_map(), "metadata": {"name": "settings", "finalizers": ["a.b/c"]}})
    kept = (await http.delete(f"{MAPS}/settings")).json()
    assert "deletionTimestamp" in kept["metadata"]
    cluster.patch("configmap", "settings", {"metadata": {"finalizers": None}})
    assert cluster.find("configmap", "settings") is None
    assert (await http.delete(f"{MAPS}/settings")).status_code == 404


# --- controllers


def images(cluster, selector="app=x"):
    return [pod["spec"]["containers"][0]["image"] for pod in cluster.list("pod", selector)]


async def test_a_stateful_set_updates_one_pod_at_a_time_from_the_highest_to_the_partition(cluster):
    cluster.apply(workload(replicas=3))
    await ready(cluster, "statefulset", "web", 3)
    cluster.kubelet.hold("web-2")
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}
    new = workload(replicas=3, template=template("a:2"), updateStrategy=rolling)
    cluster.apply(new)
    await cluster.wait(lambda: images(cluster) == ["a:1", "a:1", "a:2"], SECONDS, "the highest to be new")
    await ready(cluster, "statefulset", "web", 2)
    assert images(cluster) == ["a:1", "a:1", "a:2"]
    cluster.kubelet.release()
    await cluster.wait(lambda: images(cluster) == ["a:1", "a:2", "a:2"], SECONDS, "the next to be new")
    await ready(cluster, "statefulset", "web", 3)
    status = cluster.get("statefulset", "web")["status"]
    assert (status["updatedReplicas"], status["currentReplicas"]) == (2, 1)
    assert status["currentRevision"] != status["updateRevision"]
    cluster.delete("pod", "web-0")
    await ready(cluster, "statefulset", "web", 3)
    assert images(cluster) == ["a:1", "a:2", "a:2"]
    new["spec"]["updateStrategy"]["rollingUpdate"]["partition"] = 0
    cluster.apply(new)
    await cluster.wait(lambda: images(cluster) == ["a:2"] * 3, SECONDS, "all to be new")
    await ready(cluster, "statefulset", "web", 3)
    status = cluster.get("statefulset", "web")["status"]
    assert status["currentRevision"] == status["updateRevision"]


async def test_a_deployment_with_max_unavailable_zero_surges_first(cluster):
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    cluster.apply(workload("Deployment", strategy=strategy))
    await ready(cluster, "deployment", "web", 2)
    before = {pod["metadata"]["name"] for pod in cluster.list("pod")}
    new = "a:2"
    cluster.kubelet.break_image(new)
    cluster.apply(workload("Deployment", strategy=strategy, template=template(new)))
    await cluster.wait(lambda: len(cluster.list("pod")) == 3, SECONDS, "one pod more")
    [added] = [pod for pod in cluster.list("pod") if pod["metadata"]["name"] not in before]
    await cluster.wait(
        lambda: cluster.get("pod", added["metadata"]["name"])["status"]["containerStatuses"], SECONDS, "its status"
    )
    [container] = cluster.get("pod", added["metadata"]["name"])["status"]["containerStatuses"]
    assert container["state"]["waiting"]["reason"] == "ImagePullBackOff"
    assert cluster.get("deployment", "web")["status"]["readyReplicas"] == 2
    cluster.kubelet.release()
    await cluster.wait(lambda: images(cluster) == [new, new], SECONDS, "both to be new")


async def test_an_idle_pod_answers_through_the_proxy(cluster, http):
    cluster.apply(config_map(**{"settings.json": '{"generation": 3, "settings": {"a": 1}}'}))
    pod = template(ports=[{"name": "admin", "containerPort": 9090}])
    pod["spec"]["volumes"] = [{"name": "settings", "configMap": {"name": "settings"}}]
    cluster.apply(workload(replicas=1, template=pod))
    await ready(cluster, "statefulset", "web", 1)
    path = "/api/v1/namespaces/default/pods/web-0:9090/proxy/settings"
    assert (await http.get(path)).json() == {"generation": 3, "settings": {"a": 1}, "base": {"a": 1}}
    put = {"generation": 4, "settings": {"a": 2}}
    assert (await http.put(path, json=put)).json() == {**put, "base": {"a": 2}}
    assert (await http.put(path, json={"generation": 2, "settings": {}})).status_code == 409
    limited = await http.put(path, json={"generation": 4, "settings": {"a": 9}, "seconds": 60})
    assert (limited.json()["settings"], limited.json()["base"]) == ({"a": 9}, {"a": 2})
    assert 50 < limited.json()["seconds"] <= 60
    assert (await http.put(path, json=put)).json() == {**put, "base": {"a": 2}}
    await http.put(path, json={"generation": 4, "settings": {"a": 9}, "seconds": 0.01})
    await cluster.wait(
        lambda: cluster.kubelet.admins.report("web-0")["settings"] == {"a": 2}, 5, "the override expires"
    )


# --- rights and faults


async def test_requests_without_a_matching_rule_are_forbidden():
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["patch", "list"]}]
    rights = Rights.of_role(rules)
    async with KubeCluster(rights=rights) as cluster, httpx.AsyncClient(base_url=cluster.url) as http:
        assert (await http.get(MAPS)).status_code == 200
        assert (await apply(http, f"{MAPS}/settings", config_map())).status_code == 403, "applying may create"
        refusal = await http.get("/api/v1/configmaps")
        assert refusal.json()["message"].endswith('"configmaps" in API group "" at the cluster scope')
        assert [(asked.verb, asked.namespace) for asked in rights.denied] == [("create", "default"), ("list", "")]
        cluster.apply(config_map())
        assert (await apply(http, f"{MAPS}/settings", config_map(a="1"))).status_code == 200


async def test_a_request_hangs_until_it_is_released(cluster, http):
    fault = cluster.faults.hang("GET", "configmaps")
    request = asyncio.create_task(http.get(MAPS))
    await asyncio.wait_for(fault.struck.wait(), SECONDS)
    assert not request.done()
    fault.release()
    assert (await request).status_code == 200
