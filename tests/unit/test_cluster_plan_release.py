"""What restarts pods and what does not: images, templates and generations over a pipeline's lifetime."""

import itertools
import json

import msgspec
import pytest

from support.cluster_plan import (
    CONFIG,
    DOCUMENTS,
    EMPTY,
    after,
    document,
    objects,
    parsed,
    pipeline,
    planned,
    pod_template,
    templates,
)
from syrinx_operator.cluster.objects.state import STAGES, ObjectKey, OperatorConfig
from syrinx_operator.cluster.plan.connector import redis_cells
from syrinx_operator.cluster.plan.workload import pods
from syrinx_operator.resource.checks.pod_template import RESERVED_ENV
from syrinx_operator.resource.resolve import RedisForm
from syrinx_operator.resource.spec import TTSPipeline
from syrinx_operator.resource.stage_config import tracing_environment
from syrinx_stages.contract.keys import Keys
from syrinx_stages.contract.settings import StageConfig
from syrinx_stages.contract.stages import Stage

NEXT = OperatorConfig(stages_image="syrinx/stages:2.0.0", redis_image="redis:9", operator_namespace="syrinx-system")
RELEASE = ObjectKey("ConfigMap", "demo-release")
HUB = {"huggingFace": {"id": "Qwen/voice", "revision": "main"}}


def image_of(template):
    return template["spec"]["containers"][0]["image"]


def config_of(template):
    return msgspec.json.decode(template["metadata"]["annotations"]["syrinx.dev/config"].encode(), type=StageConfig)


def without(observed, *keys):
    left = {key: value for key, value in observed.objects.items() if key not in keys}
    return msgspec.structs.replace(observed, objects=left)


def objects_kept_for_life(plan):
    fields = ("selector", "serviceName", "podManagementPolicy", "volumeClaimTemplates")
    return {
        manifest["metadata"]["name"]: {field: manifest["spec"].get(field) for field in fields}
        for manifest in plan.manifests
        if manifest["kind"] in ("StatefulSet", "Deployment")
    }


@pytest.mark.parametrize("name", DOCUMENTS)
def test_an_operator_upgrade_changes_nothing(name, monkeypatch):
    subject = parsed(document(name))
    plan = planned(subject)
    monkeypatch.setattr(pods, "stage_template", lambda *_: pytest.fail("rendered again"))
    monkeypatch.setattr(redis_cells, "redis_template", lambda *_: pytest.fail("rendered again"))
    assert planned(subject, after(plan), NEXT).manifests == plan.manifests


def test_an_edit_after_an_upgrade_renders_a_new_template_with_the_recorded_image():
    plan = planned(pipeline())
    edited = pipeline({"talker": {"env": [{"name": "A", "value": "1"}]}})
    later = planned(edited, after(plan), NEXT)
    assert later.templates[Stage.TALKER] != plan.templates[Stage.TALKER]
    assert {c: later.templates[c] for c in (Stage.GATEWAY, Stage.CODEC, RedisForm.SINGLE)} == {
        c: plan.templates[c] for c in (Stage.GATEWAY, Stage.CODEC, RedisForm.SINGLE)
    }
    assert image_of(pod_template(later, edited, Stage.TALKER)) == CONFIG.stages_image


def test_a_user_image_replaces_the_recorded_default_until_it_is_removed():
    plan = planned(pipeline())
    own = planned(pipeline({"image": "example/own:1"}), after(plan), NEXT)
    assert image_of(pod_template(own, pipeline(), Stage.CODEC)) == "example/own:1"
    assert own.generation != plan.generation
    back = planned(pipeline(), after(own), NEXT)
    assert back.templates == plan.templates and back.generation == plan.generation


def test_a_lost_record_is_restored_from_running_workloads():
    plan = planned(pipeline())
    lost = without(after(plan), RELEASE)
    assert planned(pipeline(), lost, NEXT).manifests == plan.manifests


@pytest.mark.parametrize("text", ["", "{}", "[1]", "not JSON"])
def test_an_unreadable_record_is_replaced(text):
    plan = planned(pipeline())
    broken = after(plan)
    broken.objects[RELEASE]["data"] = {"release.json": text}
    assert planned(pipeline(), broken).templates == plan.templates


def test_a_record_edited_by_hand_does_not_reach_the_pods():
    plan = planned(pipeline())
    edited = after(plan)
    record = json.loads(edited.objects[RELEASE]["data"]["release.json"])
    record["templates"]["talker"]["template"]["spec"]["containers"][0]["image"] = "evil"
    del record["templates"]["codec"]["template"]["metadata"]
    edited.objects[RELEASE]["data"]["release.json"] = json.dumps(record)
    assert planned(pipeline(), edited).manifests == planned(pipeline()).manifests


@pytest.mark.parametrize(
    ("secret", "restarted"), [("password_uid", {*STAGES, RedisForm.SINGLE}), ("token_uid", {*STAGES})]
)
def test_a_new_password_or_token_restarts_those_who_have_it(secret, restarted):
    plan = planned(pipeline())
    renewed = planned(pipeline(), after(plan, **{secret: "another"}))
    changed = {component for component in plan.templates if renewed.templates[component] != plan.templates[component]}
    assert changed == restarted
    assert renewed.generation == plan.generation


def test_planning_a_managed_redis_requires_its_password():
    with pytest.raises(ValueError, match="password Secret"):
        planned(pipeline(), msgspec.structs.replace(EMPTY, password_uid=None))
    own = pipeline({"connector": {"url": "redis://mine:6379/0"}})
    assert planned(own, msgspec.structs.replace(EMPTY, password_uid=None)) == planned(own, EMPTY)


@pytest.mark.parametrize(
    "model",
    [
        {"path": "/voices/a"},
        {"path": "a", "claim": "voices"},
        {"path": "a", "claim": "others"},
        HUB,
        {"huggingFace": {"id": "Qwen/voice", "revision": "v2"}},
        {"huggingFace": {"id": "Qwen/other", "revision": "main"}},
        {"s3": {"uri": "s3://voices/1"}},
        {"s3": {"uri": "s3://voices/1", "endpoint": "http://minio:9000"}},
        {"image": {"reference": "voices/qwen:1"}},
        {"image": {"reference": "voices/qwen:1", "path": "v2"}},
        {"path": "a", "volume": {"nfs": {"server": "files", "path": "/voices"}}},
    ],
)
def test_another_model_changes_the_generation(model):
    plan = planned(pipeline())
    changed = planned(pipeline({"model": model}), after(plan))
    assert changed.generation != plan.generation
    assert changed.generation == planned(pipeline({"model": model})).generation
    assert changed.templates[RedisForm.SINGLE] == plan.templates[RedisForm.SINGLE]


@pytest.mark.parametrize(
    "model",
    [
        {**HUB, "name": "renamed"},
        {**HUB, "cache": {"storage": {"size": "1Gi"}}},
        {"huggingFace": {**HUB["huggingFace"], "tokenSecret": {"name": "hub", "key": "token"}}},
    ],
)
def test_the_same_weights_keep_the_generation(model):
    plan = planned(pipeline({"model": HUB}))
    assert planned(pipeline({"model": model}), after(plan)).generation == plan.generation


def test_a_path_in_a_user_volume_includes_the_volume_in_the_generation():
    def on(claim):
        volume = {"name": "voices", "mountPath": "/voices", "claim": claim}
        return pipeline({"model": {"path": "/voices/a"}, "talker": {"extraVolumes": [volume]}})

    assert planned(on("one")).generation == planned(on("one")).generation != planned(on("two")).generation


def test_users_may_not_set_what_the_plan_sets_in_pods():
    found = set()
    for name in DOCUMENTS:
        subject = parsed(document(name))
        theirs = {
            variable.name for stage in ("gateway", "talker", "codec") for variable in getattr(subject.spec, stage).env
        }
        for component, template in templates(planned(subject), subject).items():
            if component in STAGES:
                spec = template["spec"]
                for container in (*spec["containers"], *spec.get("initContainers", ())):
                    found |= {variable["name"] for variable in container["env"]} - theirs
    theirs_first = {"LOG_FORMAT", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}
    assert found == RESERVED_ENV | theirs_first | set(tracing_environment(parsed(document("everything")).spec))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_stages_accept_their_start_configuration(name):
    subject = parsed(document(name))
    plan = planned(subject)
    for stage in plan.release.templates.keys() & set(STAGES):
        config = config_of(pod_template(plan, subject, stage))
        assert Keys(config.pipeline, config.generation).prefix == f"{{{subject.name}:{plan.generation}:0}}"
        assert config.replica == "" and config.host == "" and config.settings_file
        body = json.loads(objects(plan)[ObjectKey("ConfigMap", f"{subject.name}-{stage}")]["data"]["settings.json"])
        msgspec.convert(body["settings"], type(getattr(config, stage)))


@pytest.mark.parametrize(("number", "first"), list(enumerate(DOCUMENTS)))
def test_immutable_fields_never_change_and_an_applied_plan_is_stable(number, first):
    """Whichever document follows which."""
    observed, kept = EMPTY, {}
    for name in (first, *itertools.chain.from_iterable((other, first) for other in DOCUMENTS[number:])):
        subject = msgspec.convert({**document(name), "metadata": {"name": "demo"}}, TTSPipeline)
        plan = planned(subject, observed)
        for key, fields in objects_kept_for_life(plan).items():
            assert kept.setdefault(key, fields) == fields
        assert planned(subject, after(plan, observed)).manifests == plan.manifests
        observed = after(plan, observed)
