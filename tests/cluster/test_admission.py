"""Admission of pipelines by a real API server."""

import json
from pathlib import Path

import pytest
import yaml

from cluster.client import ApiError
from cluster.installation import EXAMPLES, ROOT

BASE = {"apiVersion": "syrinx.dev/v1beta1", "kind": "TTSPipeline"}


def resource(name="refused", **spec):
    return {**BASE, "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"talker": {"maxNumSeqs": 0}}, "spec.talker.maxNumSeqs"),
        ({"talker": {"maxNumSeqs": 64, "maxResident": 32}}, "maxResident"),
        ({"talker": {"replicas": 100}}, "spec.talker.replicas"),
        ({"talker": {"maxNumSeq": 4}}, "maxNumSeq"),
        ({"codec": {"chunkRamp": []}}, "spec.codec.chunkRamp"),
        ({"codec": {"capturePairs": [{"rows": 4, "frames": 2}, {"rows": 2, "frames": 2}]}}, "capturePairs"),
        ({"codec": {"capturePairs": [{"rows": 64, "frames": 2}], "maxResident": 32}}, "maxResident"),
        ({"model": {"bundled": True, "path": "/models/x"}}, "spec.model"),
        ({"model": {"name": "nothing"}}, "spec.model"),
        ({"model": {"huggingFace": {"id": "Qwen/Qwen3-TTS"}}}, "spec.model.huggingFace.revision"),
        ({"connector": {"managed": True, "url": "redis://elsewhere:6379/0"}}, "spec.connector"),
        ({"connector": {"url": "redis://:secret@elsewhere:6379/0"}}, "password"),
        ({"connector": {"url": "http://elsewhere"}}, "spec.connector.url"),
        ({"tuning": {"bounds": {"talkerMaxNumSeqs": {"min": 9, "max": 3}}}}, "talkerMaxNumSeqs"),
        ({"tuning": {"mode": "Sometimes"}}, "spec.tuning.mode"),
        ({"slo": {"ttfa": [{"taskType": "Base", "ttfaP95Ms": 123}]}}, "ttfaP95Ms"),
        ({"gateway": {"env": [{"name": "REDIS_URL", "value": "x"}]}}, "REDIS_URL"),
        ({"gateway": {"port": 80}}, "spec.gateway.port"),
    ],
)
def test_an_invalid_field_is_rejected_by_name(installed, spec, named):
    with pytest.raises(ApiError) as refused:
        installed.cluster.apply(resource(**spec), dry_run=True)
    assert refused.value.status in (400, 422, 500), refused.value
    assert named in refused.value.message


def files(kind):
    found = sorted((ROOT / "tests" / "fixtures" / "resources" / kind).glob("*.yaml"))
    return pytest.mark.parametrize("file", found, ids=lambda file: file.stem)


def verdict(file: Path) -> tuple[str, str]:
    """Returns `accepted`, `refused` or `cluster`, and the field to blame: the first line of the file."""
    head, _, field = file.read_text().splitlines()[0].removeprefix("# ").partition(": ")
    return head, field


@files("valid")
def test_a_valid_resource_is_accepted(installed, file):
    installed.cluster.create(yaml.safe_load(file.read_text()), dry_run=True)


@files("invalid")
def test_an_invalid_resource_is_rejected_by_name(installed, file):
    with pytest.raises(ApiError) as refused:
        installed.cluster.create(yaml.safe_load(file.read_text()), dry_run=True)
    assert verdict(file)[1] in refused.value.message


@files("edits")
def test_an_edit_is_accepted_or_rejected_by_name(installed, file):
    before, after = yaml.safe_load_all(file.read_text())
    name = before["metadata"]["name"]
    installed.cluster.delete("TTSPipeline", name)
    installed.cluster.create(before)
    try:
        expected, field = verdict(file)
        if expected == "accepted":
            installed.cluster.replace(after, dry_run=True)
        else:
            with pytest.raises(ApiError) as refused:
                installed.cluster.replace(after, dry_run=True)
            assert field in refused.value.message
    finally:
        installed.cluster.delete("TTSPipeline", name)


@pytest.mark.parametrize("name", ["a" * 41, "9lives"])
def test_a_too_long_name_is_rejected(installed, name):
    with pytest.raises(ApiError) as refused:
        installed.cluster.apply(resource(name=name), dry_run=True)
    assert refused.value.status == 422
    assert "name" in refused.value.message


def test_an_empty_spec_gets_defaults(installed):
    accepted = installed.cluster.apply({**BASE, "metadata": {"name": "almost-empty"}, "spec": {}}, dry_run=True)
    assert accepted["spec"]["model"]["bundled"] is True
    assert accepted["spec"]["connector"]["managed"] is True
    assert "maxNumSeqs" not in accepted["spec"]["talker"], "the device decides"
    assert accepted["spec"]["tuning"]["mode"] == "Recommend"


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.name)
def test_every_example_is_accepted(installed, file):
    documents = [each for each in yaml.safe_load_all(file.read_text()) if each]
    for document in (each for each in documents if each["kind"] == "TTSPipeline"):
        installed.cluster.apply(document, dry_run=True)


FORMER = "syrinx.dev/v1alpha1"


@pytest.fixture
def former(installed):
    """A pipeline that was created as v1alpha1."""
    cluster = installed.cluster
    cluster.delete("TTSPipeline", "former")
    resource = {"apiVersion": FORMER, "kind": "TTSPipeline", "metadata": {"name": "former"}}
    path = cluster.path("TTSPipeline").replace(BASE["apiVersion"], FORMER)
    yield cluster.call("POST", path, json={**resource, "spec": {"talker": {"replicas": 2}}}).json()
    cluster.delete("TTSPipeline", "former")


def apply(cluster, version, subresource="", **body):
    """Server-side apply as the operator, in a version."""
    path = cluster.path("TTSPipeline", "former", subresource).replace(BASE["apiVersion"], version)
    resource = {"apiVersion": version, "kind": "TTSPipeline", "metadata": {"name": "former"}, **body}
    options = {"params": {"fieldManager": "syrinx-operator", "force": "true"}, "content": json.dumps(resource)}
    return cluster.call("PATCH", path, headers={"Content-Type": "application/apply-patch+yaml"}, **options).json()


def test_both_versions_have_the_same_content(installed, former):
    found = installed.cluster.get("TTSPipeline", "former")
    assert (found["apiVersion"], found["spec"]) == (BASE["apiVersion"], former["spec"])
    again = apply(installed.cluster, BASE["apiVersion"], spec={"talker": {"replicas": 2}})
    assert again["metadata"]["generation"] == 1, "the same content in the other version is no edit"
    for version in (FORMER, BASE["apiVersion"]):
        with pytest.raises(ApiError) as refused:
            apply(installed.cluster, version, spec={"talker": {"replicas": 0}})
        assert "spec.talker.replicas" in refused.value.message


def test_the_status_of_operators_of_other_versions_is_accepted(installed, former):
    condition = {"type": "CanaryReady", "status": "True", "reason": "Weighted", "message": "5 %"}
    condition |= {"lastTransitionTime": "2026-11-24T00:00:00Z", "observedGeneration": 1}
    tuning = {"phase": "Exploring", "quarantine": [{"failures": 1}], "trial": {"id": 1, "period": {"index": 0}}}
    other = {"conditions": [condition], "tuning": tuning, "canary": {"weight": 5}, "slo": [{"taskType": "Song"}]}
    assert apply(installed.cluster, FORMER, "status", status=other)["status"] == other
    ours = {"tuning": {"phase": "Watching"}}
    assert apply(installed.cluster, BASE["apiVersion"], "status", status=ours)["status"] == ours


def test_every_field_has_a_description(installed):
    schema = installed.cluster.get("CustomResourceDefinition", "ttspipelines.syrinx.dev")
    root = schema["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    ours = [root["properties"]["spec"], root["properties"]["status"]]
    mute = [path for part in ours for path in unexplained(part, "")]
    assert not mute


def unexplained(node, path):
    for name, child in node.get("properties", {}).items():
        if not child.get("description"):
            yield f"{path}.{name}"
        yield from unexplained(child, f"{path}.{name}")
    if isinstance(node.get("items"), dict):
        yield from unexplained(node["items"], f"{path}[]")
