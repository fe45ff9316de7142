"""Reconciles of a pipeline against an in-memory API server, without stages."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from support.cluster_status import condition, message
from support.fake_api import FakeApi, forbidden, pipeline_object, unavailable
from syrinx_operator.cluster.config import options
from syrinx_operator.cluster.objects.kinds import PIPELINE
from syrinx_operator.cluster.objects.state import owner_of
from syrinx_operator.cluster.reconcile.reconciler import Reconciler
from syrinx_operator.cluster.reconcile.secrets import UNREADY_SECONDS
from syrinx_operator.cluster.watch.api import ApiError
from syrinx_operator.cluster.watch.cache import Cache
from syrinx_operator.cluster.watch.lease import Leases
from syrinx_operator.cluster.watch.telemetry import Telemetry
from syrinx_operator.cluster.watch.workqueue import NamespacedName, Outcome, Result
from syrinx_stages.contract.settings import ReportedSettings

DEMO = NamespacedName("voices", "demo")


class NoStages:
    """Stages that answer no request, unless they report settings."""

    reported: ReportedSettings | None = None

    async def read_settings(self, namespace, replicas, token):
        return tuple(msgspec.structs.replace(each, reported=self.reported) for each in replicas)

    async def push_settings(self, namespace, replicas, desired, fence, token):
        return tuple(replicas)

    async def scrape(self, namespace, replica):
        raise OSError("no route")


class World:
    """A reconciler, its API server, and the pipeline `demo`."""

    def __init__(self, identity: str = "operator-1", api: FakeApi | None = None, secret_seconds: float = 0.0) -> None:
        self.api = api or FakeApi()
        if api is None:
            self.api.add(pipeline_object())
        telemetry, stages = Telemetry(), NoStages()
        self.stages = stages
        found = options({"POD_NAME": identity, "SYRINX_STAGES_IMAGE": "stages:1"})
        settings = msgspec.structs.replace(found, relist_seconds=secret_seconds)
        self.cache = Cache(self.api, (DEMO.namespace,), lambda *_: None, relist_seconds=300.0, max_backoff_seconds=60.0)
        lease = NamespacedName("operators", settings.lease_name)
        leases = Leases(self.api, identity, lease, settings.lease_seconds, self.cache.outdate)
        self.reconciler = Reconciler(
            api=self.api, cache=self.cache, leases=leases, stages=stages, telemetry=telemetry, options=settings
        )
        self.registry = telemetry.registry

    async def relist(self) -> None:
        """Lists every kind, as the informers do from time to time."""
        for informer in self.cache._informers.values():
            await informer._list()

    async def reconcile(self, failures: int = 0) -> Result:
        """Reconciles once the cache has everything."""
        await self.relist()
        return await self.reconciler.reconcile(DEMO, failures)

    @property
    def pipeline(self) -> dict[str, Any]:
        return self.api.objects["TTSPipeline", "demo"]

    def message(self, kind: str) -> str:
        return message(self.pipeline["status"], kind)

    def condition(self, kind: str) -> tuple[str, str]:
        return condition(self.pipeline["status"], kind)

    def edit(self, **spec: Any) -> None:
        live = self.pipeline
        live["spec"], live["metadata"]["generation"] = spec, live["metadata"]["generation"] + 1
        self.api.add(live)


async def reconciled() -> World:
    world = World()
    await world.reconcile()
    return world


@pytest.mark.parametrize("server", ["dropped", "refused"])
async def test_no_workload_is_applied_on_a_server_without_image_volumes(server):
    world = World()
    world.edit(model={"image": {"reference": "voices/qwen:1"}})
    world.api.image_volumes = server
    result = await world.reconcile()
    assert result.outcome is Outcome.BLOCKED
    assert world.api.names("StatefulSet") == ["demo-redis"] and world.api.names("Deployment") == []
    assert world.condition("Degraded") == ("True", "ImageVolumesNotSupported")
    assert world.message("Degraded").count("Kubernetes 1.35") == 1
    world.api.image_volumes = "supported"
    assert (await world.reconcile()).outcome is Outcome.SUCCEEDED
    assert world.api.names("StatefulSet") == ["demo-codec", "demo-redis", "demo-talker"]
    assert world.condition("Degraded") == ("False", "AsExpected")


async def test_the_status_shows_the_download_and_its_failure():
    world, served = World(), None
    for version in (1, 2):
        world.edit(model={"s3": {"uri": f"s3://voices/{version}"}, "cache": {"claim": "c"}})
        await world.reconcile()
        served = served or world.api.objects["StatefulSet", "demo-talker"]["spec"]["template"]
    (name,) = world.api.names("Job")
    assert world.api.objects["StatefulSet", "demo-talker"]["spec"]["template"] == served
    assert world.condition("Progressing") == ("True", "Downloading")
    assert f"Job {name} downloads s3://voices/2" in world.message("Progressing")
    assert world.condition("Degraded") == ("False", "AsExpected")

    job = world.api.objects["Job", name]
    labels = {"batch.kubernetes.io/job-name": name, "syrinx.dev/pipeline": "demo"}
    metadata = {"name": "p", "namespace": "voices", "labels": labels}
    missing = {"reason": "CreateContainerConfigError", "message": 'secret "voices" not found'}
    error = {"exitCode": 1, "reason": "Error", "message": "syrinx fetch: no s3://voices/2 (404 NoSuchBucket)"}
    ended = {"type": "Failed", "status": "True", "reason": "R", "message": "m"}
    for state, conditions, text in (
        ({"waiting": missing}, [], 'secret "voices"'),
        ({"terminated": error}, [ended], "404 NoSuchBucket"),
    ):
        status = {"containerStatuses": [{"name": "fetch", "state": state}]}
        world.api.add({"kind": "Pod", "metadata": metadata, "spec": {}, "status": status})
        world.api.add({**job, "status": {"conditions": conditions}})
        await world.reconcile()
        assert world.condition("Degraded") == ("True", "DownloadFailed") and text in world.message("Degraded")
    assert "10 minutes" in world.message("Degraded")

    world.api.add({**job, "status": {"conditions": [{"type": "Complete", "status": "True"}]}})
    for _ in range(2):
        await world.reconcile()
    assert world.api.objects["StatefulSet", "demo-talker"]["spec"]["template"] != served
    assert world.api.names("Job") == [] and world.condition("Degraded") == ("False", "AsExpected")


@pytest.mark.parametrize(
    ("before", "after", "is_advised"),
    [
        (None, {"size": "1Gi"}, False),
        ({"size": "1Gi"}, {"size": "2Gi"}, True),
        ({"size": "1Gi"}, {"size": "512Mi"}, False),
    ],
    ids=["new", "grown", "shrunk"],
)
async def test_only_growth_that_is_refused_gets_advice_about_it(before, after, is_advised):
    world = World()
    if before:
        world.edit(connector={"managed": True, "storage": before})
        assert (await world.reconcile()).outcome is Outcome.SUCCEEDED
    world.edit(connector={"managed": True, "storage": after})
    world.api.fail = lambda verb, kind, name: (
        forbidden() if (verb, kind) == ("apply", "PersistentVolumeClaim") else None
    )
    await world.reconcile()
    assert world.condition("Degraded") == ("True", "ApplyFailed")
    text = world.message("Degraded")
    assert text.startswith("PersistentVolumeClaim demo-redis cannot be applied: not allowed (Forbidden)")
    assert ("set the size back" in text) == is_advised


async def test_an_invalid_resource_changes_only_the_status():
    world = await reconciled()
    world.edit(talker={"replicas": 0})
    world.api.writes.clear()
    result = await world.reconcile()
    assert result.outcome is Outcome.INVALID and "spec.talker.replicas" in result.message
    assert {kind for _, kind, _ in world.api.writes} == {"Event", "TTSPipeline/status"}
    assert world.condition("Degraded") == ("True", "Invalid")
    assert world.pipeline["status"]["observedGeneration"] == 1


async def test_a_paused_pipeline_changes_only_its_status():
    world = await reconciled()
    world.edit(paused=True, connector={"url": "redis://cache:6379/0"}, talker={"replicas": 3})
    world.api.writes.clear()
    result = await world.reconcile()
    assert result.outcome is Outcome.SUCCEEDED
    assert {kind for _, kind, _ in world.api.writes} == {"TTSPipeline/status"}
    assert world.condition("Progressing") == world.condition("TuningReady") == ("False", "Paused")
    assert world.condition("Ready")[0] == "False", "there are no pods"
    assert world.pipeline["status"]["observedGeneration"] == 1
    world.edit(connector={"url": "redis://cache:6379/0"}, talker={"replicas": 3})
    await world.reconcile()
    assert ("delete", "StatefulSet", "demo-redis") in world.api.writes
    assert world.condition("Progressing")[1] != "Paused"


async def test_a_new_paused_pipeline_has_no_objects():
    world = World()
    world.edit(paused=True)
    result = await world.reconcile()
    assert result.outcome is Outcome.BLOCKED
    assert {kind for _, kind, _ in world.api.writes} <= {"Lease", "Event", "TTSPipeline/status"}
    assert world.condition("Ready") == ("False", "Paused")


@pytest.mark.parametrize("missing", [True, False], ids=["missing", "terminating"])
async def test_a_deleted_pipeline_is_not_touched(missing):
    world = World()
    world.pipeline["metadata"]["deletionTimestamp"] = "2026-11-21T10:00:00Z"
    if missing:
        world.api.objects.clear()
    assert (await world.reconcile()).outcome is Outcome.DELETED
    assert world.api.writes == []


async def test_a_pipeline_whose_lease_another_operator_holds_is_not_touched():
    first = World()
    await first.reconcile()
    second = World("operator-2", first.api)
    first.api.writes.clear()
    result = await second.reconcile()
    assert (result.outcome, result.requeue_after) == (Outcome.STANDBY, 5.0)
    assert "operator-1" in result.message
    assert first.api.writes == []


async def test_an_object_of_another_owner_blocks_pruning_but_not_the_other_objects():
    world = World()
    world.api.add({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "demo-gateway"}, "spec": {}})
    result = await world.reconcile()
    assert result.outcome is Outcome.BLOCKED
    assert "Service demo-gateway exists and does not belong to this pipeline" in result.message
    assert world.api.objects["Service", "demo-gateway"]["spec"] == {}
    assert "demo-talker" in world.api.names("StatefulSet")
    assert world.condition("Degraded") == ("True", "NameConflict")
    assert "observedGeneration" not in world.pipeline["status"]


async def test_an_object_with_the_label_of_the_pipeline_and_another_owner_is_not_changed():
    world = await reconciled()
    live = world.api.objects["Service", "demo-gateway"]
    world.api.add({**live, "metadata": {**live["metadata"], "ownerReferences": []}, "spec": {"ports": []}})
    world.edit(gateway={"port": 8001})
    assert (await world.reconcile()).outcome is Outcome.BLOCKED
    assert world.api.objects["Service", "demo-gateway"]["spec"] == {"ports": []}
    assert world.condition("Degraded") == ("True", "NameConflict")


async def test_the_objects_of_a_former_pipeline_of_the_same_name_are_not_observed():
    world = await reconciled()
    owner = owner_of(world.pipeline)
    found = (await world.reconciler._objects.observe(owner, {})).objects
    assert {"demo-release", "demo-tuning", "demo-talker"} <= {key.name for key in found}
    another = msgspec.structs.replace(owner, uid="another")
    assert (await world.reconciler._objects.observe(another, {})).objects == {}


@pytest.mark.parametrize("other", [{}, {"syrinx.dev/pipeline": "another"}])
async def test_the_plan_is_made_from_a_record_that_had_lost_its_label(other):
    world = await reconciled()
    record, workload = ("ConfigMap", "demo-release"), ("StatefulSet", "demo-talker")
    live = world.api.objects[record]
    labels = live["metadata"]["labels"]
    world.api.add({**live, "metadata": {**live["metadata"], "labels": other}})
    before = world.api.objects[workload]["spec"]["template"]
    # An upgraded operator, whose default image is another: only the record says that the pods keep theirs.
    upgraded = World(api=world.api)
    config = msgspec.structs.replace(upgraded.reconciler._options.pipelines, stages_image="stages:2")
    upgraded.reconciler._options = msgspec.structs.replace(upgraded.reconciler._options, pipelines=config)
    assert (await upgraded.reconcile()).outcome is Outcome.SUCCEEDED
    assert world.api.objects[record]["metadata"]["labels"] == labels
    assert '"image":"stages:1"' in world.api.objects[record]["data"]["release.json"]
    assert world.api.objects[workload]["spec"]["template"] == before


async def test_what_nothing_needs_is_deleted_while_another_object_is_missing():
    world = World()
    world.edit(talker={"replicas": 2})
    await world.reconcile()
    assert world.api.names("PodDisruptionBudget") == ["demo-talker"]
    world.edit(talker={"replicas": 1}, connector={"url": "redis://cache:6379/0"})
    world.api.fail = lambda verb, kind, name: forbidden() if (verb, name) == ("apply", "demo-talker") else None
    assert (await world.reconcile()).outcome is Outcome.BLOCKED
    assert world.api.names("PodDisruptionBudget") == []
    assert "demo-redis" in world.api.names("StatefulSet"), "the talkers still use it"


async def test_a_reconcile_without_changes_makes_no_request():
    world = World(secret_seconds=300.0)
    await world.reconcile()
    await world.reconcile()
    await world.relist()
    requests: list[tuple[str, str, str]] = []
    world.api.fail = lambda *request: requests.append(request)
    result = await world.reconciler.reconcile(DEMO, 0)
    assert result.outcome is Outcome.SUCCEEDED and 0 < result.requeue_after <= 15.0
    assert requests == []


async def test_an_own_write_is_seen_without_a_watch():
    world = await reconciled()
    world.api.writes.clear()
    assert (await world.reconciler.reconcile(DEMO, 0)).outcome is Outcome.SUCCEEDED
    assert [write for write in world.api.writes if write[0] == "apply"] == []


async def test_an_object_that_was_replaced_unseen_is_read_again():
    """The write names the UID of the object in the cache, so that it is refused."""
    world = await reconciled()
    settings = world.api.objects.pop(("ConfigMap", "demo-codec"))
    world.api.add({**settings, "metadata": {**settings["metadata"], "uid": "u-new"}})
    world.edit(codec={"maxNumSeqs": 5})
    world.cache.of(PIPELINE, DEMO.namespace).put(world.pipeline)
    assert (await world.reconciler.reconcile(DEMO, 0)).outcome is Outcome.SUCCEEDED
    found = world.api.objects["ConfigMap", "demo-codec"]
    assert found["metadata"]["uid"] == "u-new" and '"max_num_seqs":5' in found["data"]["settings.json"]


async def test_a_password_secret_of_another_owner_blocks_the_plan():
    world = World()
    world.api.add({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "demo-redis"}})
    assert (await world.reconcile()).outcome is Outcome.BLOCKED
    assert world.condition("Degraded") == ("True", "NameConflict")
    assert world.api.names("StatefulSet") == []


async def test_a_deleted_token_is_replaced_and_the_stages_restart():
    world = await reconciled()
    first, before = world.api.objects.pop(("Secret", "demo-stages")), world.api.objects["StatefulSet", "demo-talker"]
    await world.reconcile()
    assert world.api.objects["Secret", "demo-stages"]["data"] != first["data"]
    assert world.api.objects["StatefulSet", "demo-talker"]["spec"]["template"] != before["spec"]["template"]


@pytest.mark.virtual
@pytest.mark.parametrize("is_ready", [False, True])
async def test_a_deleted_secret_is_noticed_early_only_while_the_pipeline_is_not_ready(is_ready):
    """A pod that waits for it makes the pipeline unready."""
    world = World(secret_seconds=300.0)
    for _ in range(2):
        await world.reconcile()
    del world.api.objects["Secret", "demo-stages"]
    if is_ready:
        [ready] = [each for each in world.pipeline["status"]["conditions"] if each["type"] == "Ready"]
        ready["status"] = "True"
        world.api.add(world.pipeline)
    await asyncio.sleep(UNREADY_SECONDS)
    await world.reconcile()
    assert (("Secret", "demo-stages") in world.api.objects) is not is_ready


@pytest.mark.parametrize("data", [{}, {"token": "?"}, {"token": ""}, {"token": "YQpi"}])
async def test_a_secret_without_a_usable_token_blocks_the_plan(data):
    world = await reconciled()
    world.api.objects["Secret", "demo-stages"]["data"] = data
    assert (await world.reconcile()).outcome is Outcome.BLOCKED
    assert world.condition("Degraded") == ("True", "InvalidSecret")


async def test_an_unavailable_server_is_reported_from_the_second_failure_on():
    world = World()
    world.api.fail = lambda verb, kind, name: unavailable() if (verb, kind) == ("apply", "Service") else None
    result = await world.reconcile(failures=0)
    assert (result.outcome, result.retry_after) == (Outcome.FAILED, 7.0)
    assert "status" not in world.pipeline
    await world.reconcile(failures=1)
    assert world.condition("Degraded") == ("True", "ApiUnavailable")


def talker(world: World, number: int, template: str, *, lost: bool = False) -> None:
    """Adds the pod of a talker, which is ready or on a lost node."""
    labels = {"syrinx.dev/pipeline": "demo", "syrinx.dev/component": "talker", "syrinx.dev/template": template}
    metadata = {"name": f"demo-talker-{number}", "namespace": "voices", "uid": f"pod-{number}", "labels": labels}
    metadata |= {"deletionTimestamp": "2026-11-21T10:00:00Z"} if lost else {}
    status = {"conditions": [{"type": "Ready", "status": "False" if lost else "True"}]}
    world.api.add({"kind": "Pod", "metadata": metadata, "spec": {"containers": []}, "status": status})


async def past_a_lost_node() -> World:
    """A roll-out of three talkers, of which the last is on a lost node, and another one stands in for it."""
    world = World()
    world.edit(talker={"replicas": 3})
    world.stages.reported = ReportedSettings(1, {}, {})
    await world.reconcile()
    template = world.api.objects["StatefulSet", "demo-talker"]["spec"]["template"]["metadata"]["labels"]
    for number, given in ((0, "old"), (1, "old"), (2, "old"), (3, template["syrinx.dev/template"])):
        talker(world, number, given, lost=number == 2)
    return world


async def test_a_rollout_passes_over_a_lost_node():
    world = await past_a_lost_node()
    await world.reconcile()
    spec = world.api.objects["StatefulSet", "demo-talker"]["spec"]
    assert (spec["replicas"], spec["updateStrategy"]["rollingUpdate"]["partition"]) == (4, 1)
    assert [name for verb, kind, name in world.api.writes if (verb, kind) == ("delete", "Pod")] == ["demo-talker-1"]
    assert world.condition("Degraded") == ("True", "StuckTerminating")


async def test_a_missing_right_to_delete_pods_is_reported():
    world = await past_a_lost_node()
    world.api.fail = lambda verb, kind, name: forbidden() if (verb, kind) == ("delete", "Pod") else None
    assert (await world.reconcile()).outcome is Outcome.BLOCKED
    assert "Pod demo-talker-1 cannot be deleted: not allowed" in world.message("Degraded")


async def test_the_conditions_are_exported_until_the_pipeline_is_deleted():
    def exported() -> dict[str, str]:
        samples = [each for family in world.registry.collect() for each in family.samples]
        found = [each.labels for each in samples if each.name == "syrinx_operator_pipeline_condition"]
        assert all((each["pipeline_namespace"], each["pipeline"]) == ("voices", "demo") for each in found)
        return {each["condition"]: each["reason"] for each in found}

    world = await reconciled()
    assert exported()["Progressing"] == "Scaling"
    world.reconciler.forget(DEMO)
    assert exported() == {}


async def test_a_conflict_makes_a_new_plan_in_the_same_reconcile():
    world, conflicts = World(), iter([ApiError(409, "Conflict", "modified")])
    world.api.fail = lambda verb, kind, name: next(conflicts, None) if (verb, name) == ("apply", "demo-codec") else None
    assert (await world.reconcile()).outcome is Outcome.SUCCEEDED
    assert "demo-codec" in world.api.names("ConfigMap")


async def test_an_internal_error_is_reported_and_retried(monkeypatch):
    world = World()

    def fail(*_: object) -> None:
        raise KeyError("bug")

    monkeypatch.setattr("syrinx_operator.cluster.reconcile.reconciler.plan", fail)
    result = await world.reconcile()
    assert result.outcome is Outcome.FAILED
    assert world.condition("Degraded") == ("True", "InternalError")


async def test_repeated_events_of_one_change_are_written_once():
    """An operator killed before it wrote the status creates the same Event again."""
    world = World()
    world.edit(talker={"replicas": 0})
    world.api.fail = lambda verb, kind, name: unavailable() if kind == "TTSPipeline/status" else None
    await world.reconcile()
    await world.reconcile()
    assert len(world.api.names("Event")) == 1
