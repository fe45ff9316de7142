"""A user's pod template: what it may change, and how it is merged."""

import pytest

from support.cluster_plan import after, pipeline, planned, pod_template
from syrinx_operator.cluster.objects.state import InvalidSpec, parse_pipeline
from syrinx_operator.cluster.plan.workload.pod_template import with_patch
from syrinx_operator.resource.resolve import RedisForm
from syrinx_stages.contract.stages import Stage

TALKER = {"name": "talker"}


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ({"apiVersion": "v1"}, "apiVersion"),
        ({"metadata": {"name": "x"}}, "metadata.name"),
        ({"metadata": {"labels": {"syrinx.dev/pipeline": "x"}}}, "metadata.labels[syrinx.dev/pipeline]"),
        ({"metadata": {"annotations": {"a": 1}}}, "metadata.annotations"),
        ({"spec": {"restartPolicy": "Never"}}, "spec.restartPolicy"),
        ({"spec": {"serviceAccountName": "admin"}}, "spec.serviceAccountName"),
        ({"spec": {"terminationGracePeriodSeconds": 1}}, "spec.terminationGracePeriodSeconds"),
        ({"spec": {"containers": {}}}, "spec.containers"),
        ({"spec": {"containers": [{"image": "x"}]}}, "spec.containers[0]"),
        ({"spec": {"containers": [{**TALKER, "command": ["sh"]}]}}, "spec.containers[0].command"),
        ({"spec": {"containers": [{**TALKER, "ports": []}]}}, "spec.containers[0].ports"),
        ({"spec": {"containers": [{**TALKER, "readinessProbe": None}]}}, "spec.containers[0].readinessProbe"),
        ({"spec": {"containers": [{**TALKER, "resources": {"limits": {}}}]}}, "spec.containers[0].resources"),
        (
            {"spec": {"containers": [{**TALKER, "env": [{"name": "REDIS_URL", "value": "x"}]}]}},
            "spec.containers[0].env[0].name",
        ),
        (
            {"spec": {"containers": [{**TALKER, "volumeMounts": [{"name": "v", "mountPath": "/etc/syrinx/start"}]}]}},
            "spec.containers[0].volumeMounts[0].mountPath",
        ),
        (
            {"spec": {"containers": [{"name": "proxy", "ports": [{"name": "admin", "containerPort": 1}]}]}},
            "spec.containers[0].ports[0].name",
        ),
        (
            {"spec": {"containers": [{"name": "proxy", "ports": [{"containerPort": 9091}]}]}},
            "spec.containers[0].ports[0].containerPort",
        ),
        ({"spec": {"initContainers": [{"name": "fetch", "image": "x"}]}}, "spec.initContainers[0].image"),
        ({"spec": {"volumes": [{"name": "syrinx-start", "emptyDir": {}}]}}, "spec.volumes[0].name"),
    ],
)
def test_what_syrinx_relies_on_is_refused_by_its_path(template, path):
    live = {
        "apiVersion": "syrinx.dev/v1beta1",
        "kind": "TTSPipeline",
        "metadata": {"name": "demo"},
        "spec": {"talker": {"podTemplate": template}},
    }
    with pytest.raises(InvalidSpec, match="podTemplate") as refused:
        parse_pipeline(live)
    assert f"spec.talker.podTemplate.{path}: " in str(refused.value)


PATCH = {
    "metadata": {"labels": {"team": "speech"}, "annotations": {"sidecar.example/inject": "yes"}},
    "spec": {
        "schedulerName": "volcano",
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["redis"]}],
        "securityContext": {"supplementalGroups": [7]},
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "h100"}],
        "containers": [
            {**TALKER, "env": [{"name": "A", "value": "b"}], "resources": {"claims": [{"name": "gpu"}]}},
            {"name": "proxy", "image": "proxy:1"},
        ],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    },
}


def test_a_template_is_merged_by_name_and_restarts_only_its_stage():
    before, changed = planned(pipeline()), pipeline({"talker": {"podTemplate": PATCH}})
    plan = planned(changed, after(before))
    template, plain = (pod_template(each, changed, Stage.TALKER) for each in (plan, before))
    assert template["metadata"]["labels"]["team"] == "speech"
    own, proxy = template["spec"]["containers"]
    assert own["command"] == plain["spec"]["containers"][0]["command"]
    assert own["env"] == [*plain["spec"]["containers"][0]["env"], {"name": "A", "value": "b"}]
    assert own["resources"] == {**plain["spec"]["containers"][0]["resources"], "claims": [{"name": "gpu"}]}
    assert proxy == {"name": "proxy", "image": "proxy:1"}
    assert template["spec"]["securityContext"]["runAsNonRoot"] is True
    assert template["spec"]["volumes"][:-1] == plain["spec"]["volumes"]
    restarted = {each for each, hash in plan.templates.items() if hash != before.templates[each]}
    assert restarted == {Stage.TALKER}


def test_the_managed_redis_has_a_template_too():
    changed = pipeline({"connector": {"managed": True, "podTemplate": {"spec": {"nodeSelector": {"disk": "ssd"}}}}})
    assert pod_template(planned(changed), changed, RedisForm.SINGLE)["spec"]["nodeSelector"] == {"disk": "ssd"}


def test_null_removes_a_field_and_other_lists_are_replaced():
    template = {"spec": {"securityContext": {"runAsUser": 1, "runAsNonRoot": True}, "tolerations": [{"key": "a"}]}}
    patch = {"spec": {"securityContext": {"runAsUser": None}, "tolerations": [{"key": "b"}]}}
    expected = {"spec": {"securityContext": {"runAsNonRoot": True}, "tolerations": [{"key": "b"}]}}
    assert with_patch(template, patch) == expected
    assert with_patch(template, None) is template
