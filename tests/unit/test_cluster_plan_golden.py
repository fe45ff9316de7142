"""Golden plans of whole pipelines, checked against the Kubernetes schemas.

After an intended change, regenerate them and review the diff:

    GOLDEN=write python -m pytest tests/unit/test_cluster_plan_golden.py && git diff tests/unit/golden
"""

import json
import re
from functools import cache

import kubernetes_validate
import pytest
from kubernetes_validate import utils

from support.cluster_plan import (
    DOCUMENTS,
    EMPTY,
    after,
    check_golden,
    document,
    key,
    objects,
    owner_of,
    parsed,
    planned,
)
from syrinx_operator.cluster.objects.state import ObjectKey
from syrinx_operator.cluster.plan.connector.redis import password_secret
from syrinx_operator.cluster.plan.settings_token import token_secret
from syrinx_stages.contract.stages import Stage

KUBERNETES = ("1.28", "1.33", "1.37")
CUSTOM = ("PodMonitor", "HTTPRoute", "ScaledObject")
"""Kinds that are not Kubernetes' own."""
UNKNOWN = {("image", "1.28")}
"""Documents with fields that a version does not have; its API server refuses the objects."""
WORKLOADS = ("Deployment", "StatefulSet")
NARRATOR_TALKERS = ObjectKey("StatefulSet", "narrator-talker")


def observed_of(name):
    """Returns the observed state for a document: empty except for the autoscaled pipeline."""
    if name != "autoscaled-gpu":
        return EMPTY
    first = planned(pipeline_of(name))
    talkers = objects(first)[NARRATOR_TALKERS]
    scaled = {"manager": "kube-controller-manager", "subresource": "scale", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
    talkers["metadata"] |= {"managedFields": [scaled], "resourceVersion": "77"}
    talkers["spec"]["replicas"] = 5
    return after(first, autoscaled=frozenset({NARRATOR_TALKERS}))


@cache
def pipeline_of(name):
    return parsed(document(name))


@cache
def plan_of(name):
    return planned(pipeline_of(name), observed_of(name))


def readable(manifest):
    """Returns the manifest with a readable release record, without templates, which the workloads contain."""
    manifest = json.loads(json.dumps(manifest))  # No two parts of it are one object: YAML would show that.
    text = manifest.get("data", {}).get("release.json")
    if text is None:
        return manifest
    record = json.loads(text)
    for template in (*record["templates"].values(), *record["redis"].values()):
        template["template"] = "..."
    return {**manifest, "data": {"release.json": record}}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_golden(name):
    check_golden(f"{name}.yaml", [readable(m) for m in plan_of(name).manifests])


@pytest.fixture(autouse=True, scope="module")
def schemas():
    """Reads each schema once instead of for each object."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "schema_contents", cache(utils.schema_contents))
        patch.setattr(utils, "all_versions", cache(utils.all_versions))
        yield


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_object_matches_the_kubernetes_schema(name, version):
    owner = owner_of(pipeline_of(name))
    for manifest in (*plan_of(name).manifests, password_secret(owner, "a password"), token_secret(owner, "a token")):
        if manifest["kind"] not in CUSTOM and (name, version) not in UNKNOWN:
            kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_names_and_labels_fit_kubernetes_limits(name):
    plan = plan_of(name)
    pipeline = pipeline_of(name)
    label = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
    for manifest in plan.manifests:
        assert label.fullmatch(manifest["metadata"]["name"])
        for value in manifest["metadata"]["labels"].values():
            assert re.fullmatch(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,62}", value)
        if manifest["kind"] == "StatefulSet":
            assert label.fullmatch(f"{manifest['metadata']['name']}-{'x' * 10}"), "controller-revision-hash"
            assert label.fullmatch(f"{manifest['metadata']['name']}-63"), "a pod's name, a label too"
    assert len({key(manifest) for manifest in plan.manifests}) == len(plan.manifests)
    claim = "syrinx-data-"  # A StatefulSet names the claims of its pods after the volume.
    names = [manifest["metadata"]["name"].removeprefix(claim) for manifest in plan.manifests]
    assert all(name.startswith(pipeline.name) for name in names)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_pod_meets_the_restricted_profile_and_has_no_token(name):
    for manifest in plan_of(name).manifests:
        if manifest["kind"] not in WORKLOADS:
            continue
        pod = manifest["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False and pod["enableServiceLinks"] is False
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            claims = {claim["metadata"]["name"] for claim in manifest["spec"].get("volumeClaimTemplates", ())}
            assert mounted <= {volume["name"] for volume in pod["volumes"]} | claims


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_pipeline_owns_every_object(name):
    owner = owner_of(pipeline_of(name))
    for manifest in (*plan_of(name).manifests, password_secret(owner, "a password"), token_secret(owner, "a token")):
        (reference,) = manifest["metadata"]["ownerReferences"]
        assert (reference["kind"], reference["name"], reference["uid"]) == ("TTSPipeline", owner.name, owner.uid)
        assert manifest["metadata"]["namespace"] == owner.namespace
        assert manifest["metadata"]["labels"]["syrinx.dev/pipeline"] == owner.name


@pytest.mark.parametrize("name", DOCUMENTS)
def test_services_disruption_budgets_and_policies_select_existing_pods_and_ports(name):
    plan, found = plan_of(name), objects(plan_of(name))
    for manifest in plan.manifests:
        if manifest["kind"] not in ("Service", "PodDisruptionBudget", "NetworkPolicy"):
            continue
        spec, component = manifest["spec"], manifest["metadata"]["labels"]["syrinx.dev/component"]
        kind = "Deployment" if component == Stage.GATEWAY else "StatefulSet"
        template = found[ObjectKey(kind, manifest["metadata"]["name"])]["spec"]["template"]
        selector = spec.get("podSelector", spec.get("selector"))
        selector = selector.get("matchLabels", selector)
        assert selector.items() <= template["metadata"]["labels"].items()
        containers = template["spec"]["containers"]
        ports = {port["name"]: port["containerPort"] for container in containers for port in container["ports"]}
        if manifest["kind"] == "Service":
            assert {port["targetPort"] for port in spec["ports"]} <= set(ports)
        if manifest["kind"] == "NetworkPolicy":
            assert {port["port"] for rule in spec["ingress"] for port in rule["ports"]} == set(ports.values())
