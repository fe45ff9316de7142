"""A Job fills the cache with another checkpoint before its pods replace those that serve."""

from __future__ import annotations

import kubernetes_validate
import msgspec
import pytest

from support.cluster_plan import (
    CONFIG,
    after,
    canary_status,
    check_golden,
    document,
    key,
    objects,
    owner_of,
    parsed,
    pipeline,
    planned,
    pods_of,
    templates,
)
from syrinx_operator.cluster.objects.state import STAGES, ObjectKey
from syrinx_operator.cluster.plan import plan
from syrinx_operator.cluster.report.diagnosis import job_problems
from syrinx_operator.resource.resolve import RedisForm, resolve

OLD, NEW = ({"s3": {"uri": f"s3://voices/{version}"}, "cache": {"claim": "c"}} for version in (1, 2))
BUCKET_3 = {**NEW, "s3": {"uri": "s3://voices/3"}}


def rolled_out(model, **spec):
    """A cluster in which a pipeline with this model serves."""
    first = planned(pipeline({"model": model, **spec}))
    return after(first, replicas=pods_of(first))


def finished(live, plan, kind="Complete", **status):
    """The cluster once the plan has been applied and its Job has ended."""
    live = after(plan, live)
    job = {**plan.download.job, "status": {"conditions": [{"type": kind, "status": "True", **status}]}}
    return msgspec.structs.replace(live, objects={**live.objects, key(job): job})


def test_pods_keep_their_template_until_the_job_has_finished():
    before = planned(pipeline({"model": OLD}))
    subject, live = pipeline({"model": NEW}), after(before)
    waiting = planned(subject, live)
    assert waiting.download.source == "s3://voices/2"
    assert waiting.generation == before.generation and templates(waiting, subject) == templates(before, subject)
    assert planned(subject, after(waiting, live)) == waiting
    done = planned(subject, finished(live, waiting))
    assert done.download is None and done.generation == planned(subject).generation
    assert {stage: done.templates[stage] for stage in STAGES} == {
        stage: planned(subject).templates[stage] for stage in STAGES
    }
    assert done.templates[RedisForm.SINGLE] == before.templates[RedisForm.SINGLE]
    assert not any(each.kind == "Job" for each in objects(planned(subject, after(done, live)))), "no Job remains"


def test_golden():
    """The Job downloads the files of all stages beside the pods that serve, where the talkers run, without a GPU."""
    talker = {
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    waiting = planned(pipeline({"model": NEW, "talker": talker}), rolled_out(OLD, talker=talker))
    check_golden("download.yaml", [waiting.download.policy, waiting.download.job])


@pytest.mark.parametrize("version", ["1.28", "1.33", "1.37"])
def test_the_job_matches_the_kubernetes_schema_and_its_name_fits(version):
    subject = document("longest-name") | {"spec": {"model": OLD}}
    live = after(planned(parsed(subject)))
    job = planned(parsed(subject | {"spec": {"model": NEW}}), live).download.job
    kubernetes_validate.validate(job, version, strict=True)
    assert len(job["metadata"]["name"]) <= 63, "it is a label of its pods"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (OLD, {**OLD, "name": "renamed"}),
        (OLD, {**OLD, "s3": {**OLD["s3"], "credentialsSecret": "other"}}),
        ({"s3": OLD["s3"]}, {"s3": NEW["s3"]}),
        ({"path": "/a"}, {"path": "/b"}),
    ],
    ids=["the same", "credentials", "no cache", "no download"],
)
def test_no_job_without_another_checkpoint_in_a_shared_cache(old, new):
    assert planned(pipeline({"model": new}), rolled_out(old)).download is None


CANARY = {"rollout": {"canary": {}}}


def test_the_pods_of_a_canary_start_once_the_job_has_finished():
    live = rolled_out(OLD, **CANARY)
    subject = pipeline({"model": NEW, **CANARY})
    waiting = planned(subject, live)
    assert waiting.download.source == "s3://voices/2" and waiting.canary is None
    assert templates(waiting, subject) == templates(planned(pipeline({"model": OLD, **CANARY})), subject)
    live = finished(live, waiting)
    testing = planned(subject, live)
    assert testing.download is None and testing.canary.is_running
    assert ObjectKey("Job", waiting.download.name) not in objects(testing), "it is deleted"
    again = planned(subject, after(testing, without_jobs(live)))
    assert again.download is None and again.canary == testing.canary, "nor does it come back"


@pytest.mark.parametrize("phase", ["RolledBack", "Promoted"])
def test_a_tested_checkpoint_is_not_downloaded_again(phase):
    live = rolled_out(OLD, **CANARY)
    subject = pipeline({"model": NEW, **CANARY})
    live = finished(live, planned(subject, live))
    testing = planned(subject, live)
    status = canary_status(testing, phase)
    ended = plan(resolve(subject), owner_of(subject), after(testing, without_jobs(live)), CONFIG, None, status)
    assert ended.download is None and (ended.canary is None) == (phase == "Promoted")
    if phase == "Promoted":
        assert templates(ended, subject) == templates(planned(subject), subject)


def without_jobs(live):
    return msgspec.structs.replace(
        live, objects={each: found for each, found in live.objects.items() if each.kind != "Job"}
    )


def test_a_new_pipeline_and_another_image_need_no_job():
    assert planned(pipeline({"model": OLD})).download is None
    assert planned(pipeline({"model": OLD, "image": "stages:2"}), rolled_out(OLD)).download is None


def test_another_edit_replaces_the_job_and_the_former_model_cancels_it():
    live = rolled_out(OLD)
    first = planned(pipeline({"model": NEW}), live)
    second = planned(pipeline({"model": BUCKET_3}), after(first, live))
    assert first.download.name != second.download.name
    assert ObjectKey("Job", first.download.name) not in objects(second)
    assert planned(pipeline({"model": OLD}), after(second, live)).download is None


def test_a_failed_job_keeps_the_pods_and_says_why():
    live = rolled_out(OLD)
    waiting = planned(pipeline({"model": NEW}), live)
    failed = planned(
        pipeline({"model": NEW}), finished(live, waiting, "Failed", reason="BackoffLimitExceeded", message="x")
    )
    assert failed.download.failure == "BackoffLimitExceeded: x" and failed.generation == waiting.generation


def pod(name, created, **state):
    labels = {"batch.kubernetes.io/job-name": "demo-models-1", "syrinx.dev/component": "models"}
    metadata = {"name": name, "labels": labels, "creationTimestamp": created}
    return {"metadata": metadata, "spec": {}, "status": {"containerStatuses": [{"name": "fetch", "state": state}]}}


def test_the_reason_is_that_of_the_newest_pod():
    error = "syrinx fetch: downloading\nsyrinx fetch: no s3://voices/2 (404 NoSuchBucket)\n"
    old = pod("a", "2026-11-21T11:00:00Z", terminated={"exitCode": 1, "reason": "Error", "message": "another"})
    new = pod("b", "2026-11-21T12:00:00Z", terminated={"exitCode": 1, "reason": "Error", "message": error})
    found = {"demo-models-1": "exit code 1 (Error): syrinx fetch: no s3://voices/2 (404 NoSuchBucket)"}
    assert job_problems([new, old]) == found
    assert job_problems([pod("b", "2026-11-21T12:00:00Z", running={})]) == {}
