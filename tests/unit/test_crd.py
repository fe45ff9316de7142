"""The CustomResourceDefinition is current, structural and consistent with the typed resource."""

import copy
import re
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import event, given

from support.admission import Refused, admit, storage_schema
from support.kube import fields
from support.kube.kinds import from_crd
from support.pipelines import resources
from syrinx_operator.cluster.objects.state import parse_pipeline
from syrinx_operator.resource.checks.check import check, field_name, problems_of
from syrinx_operator.resource.checks.rules import cluster_violations
from syrinx_operator.resource.generate import crd_file, custom_resource, fields_file
from syrinx_operator.resource.spec import TTSPipeline, default_pipeline

ROOT = Path(__file__).parents[2]
RESOURCES = ROOT / "tests" / "fixtures" / "resources"
CRD = custom_resource()
SCHEMA = storage_schema(CRD)


def files(kind):
    found = sorted((RESOURCES / kind).glob("*.yaml"))
    assert found
    return pytest.mark.parametrize("file", found, ids=[file.stem for file in found])


def refusals(new, old=None):
    try:
        admit(CRD, new, old)
    except Refused as refused:
        return refused.messages
    return []


def nodes(schema=SCHEMA, path=""):
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}".lstrip("."))
    for inner in ("items", "additionalProperties"):
        if isinstance(schema.get(inner), dict):
            yield from nodes(schema[inner], f"{path}[]")


def first_comment(file):
    return file.read_text().splitlines()[0].removeprefix("# ")


@pytest.mark.parametrize(
    ("file", "text"), [("crds/ttspipelines.syrinx.dev.yaml", crd_file), ("docs/fields.md", fields_file)]
)
def test_the_generated_files_are_current(file, text):
    assert (ROOT / file).read_text() == text(), "run `make generate`"


def test_printer_columns_and_scale_name_fields():
    (version,) = CRD["spec"]["versions"]
    paths = {path for path, _ in nodes()}
    for column in version["additionalPrinterColumns"]:
        path = re.sub(r"\[\?\(.*\)\]", "[]", column["jsonPath"]).lstrip(".")
        assert path in paths | {"metadata.creationTimestamp"}, column
    scale = version["subresources"]["scale"]
    assert {path.lstrip(".") for path in scale.values()} <= paths


def test_every_field_has_a_description_and_a_type():
    for path, node in nodes():
        if path.count(".") and not path.startswith("metadata") and not path.endswith("[]"):
            assert node.get("description", "").strip().endswith((".", ")")), path
        assert "type" in node or node.get("x-kubernetes-int-or-string"), path
        assert not {"$ref", "oneOf", "not", "allOf", "nullable"} & node.keys(), path
        assert "anyOf" not in node or node["x-kubernetes-int-or-string"], path


def test_every_field_of_the_spec_is_bounded():
    for path, node in nodes():
        if not path.startswith("spec") or "enum" in node:
            continue
        if node.get("type") == "array":
            assert "maxItems" in node, path
        if node.get("type") == "string":
            assert "maxLength" in node, path
        if "additionalProperties" in node:
            assert "maxProperties" in node, path
        assert node.get("type") != "object" or node.keys() & {
            *("properties", "additionalProperties", "x-kubernetes-preserve-unknown-fields")
        }, path


def test_in_the_spec_only_placement_and_pod_templates_preserve_unknown_fields():
    free = {
        path.rsplit(".", 1)[1]
        for path, node in nodes()
        if node.get("x-kubernetes-preserve-unknown-fields") and path.startswith("spec")
    }
    assert free == {"affinity", "topologySpreadConstraints[]", "podTemplate"}


def test_the_status_accepts_what_operators_of_other_versions_write():
    for path, node in nodes():
        if path.startswith("status"):
            assert "properties" not in node or node["x-kubernetes-preserve-unknown-fields"], path
            is_of_condition = path.startswith("status.conditions[]")
            closed = {"enum", "maximum", "minimum", "maxItems", "minItems", "maxLength", "minLength", "pattern"}
            assert is_of_condition or not closed & node.keys(), path
            assert is_of_condition or node.get("required", []) in ([], ["replica"], ["taskType"]), path
    types = SCHEMA["properties"]["status"]["properties"]["conditions"]["items"]["properties"]
    assert "enum" not in types["type"] and "enum" not in types["reason"]


def test_patterns_mean_the_same_in_re2_and_python():
    for path, node in nodes():
        if "pattern" in node:
            assert not re.search(r"\(\?[=!<P]|\\[1-9Z]", node["pattern"]), path
            assert node["pattern"].startswith("^") and node["pattern"].endswith("$"), path


@pytest.mark.parametrize(
    "spec",
    [
        None,
        {},
        {"model": None, "talker": None},
        {"gateway": {}, "talker": {}, "codec": {}, "slo": {}, "tuning": {}, "monitoring": {}},
        {"gateway": {"service": {}}, "tuning": {"bounds": {"talkerMaxNumSeqs": {}, "codecMaxNumSeqs": {}}}},
    ],
)
def test_an_almost_empty_resource_is_stored_with_defaults(spec):
    resource = {"apiVersion": "syrinx.dev/v1beta1", "kind": "TTSPipeline", "metadata": {"name": "demo"}}
    stored = admit(CRD, resource if spec is None else resource | {"spec": spec})
    assert stored["spec"]["model"] == {"bundled": True}
    assert stored["spec"]["connector"]["managed"] is True
    assert stored["spec"]["talker"]["leadLimitSeconds"] == 8.0
    assert as_typed(stored) == default_pipeline()


def as_typed(stored):
    return parse_pipeline(stored | {"metadata": {"namespace": "default", "uid": "1", **stored["metadata"]}})


@files("valid")
def test_a_resource_that_was_applied_client_side_can_be_applied_server_side(file):
    applied = yaml.safe_load(file.read_text())
    assert fields.conflicts(from_crd(CRD).schema, applied, admit(CRD, applied)) == set()


@files("valid")
def test_valid_resources_are_accepted_and_decode_to_the_same_value_after_storage(file):
    checked = check(file.name, file.read_bytes())
    assert (checked.problems, checked.on_kubernetes) == ([], [])
    stored = admit(CRD, yaml.safe_load(file.read_text()))
    assert as_typed(stored) == checked.pipelines[0]
    assert admit(CRD, stored, stored) == stored, "a second apply changes nothing"


@files("invalid")
def test_errors_of_invalid_resources_name_the_field(file):
    (kind, _, field) = first_comment(file).partition(": ")
    checked = check(file.name, file.read_bytes())
    findings = checked.problems if kind == "refused" else checked.on_kubernetes
    assert any(field_name(problem.path).startswith(field) for problem in findings), checked
    assert checked.pipelines or kind == "refused"
    messages = refusals(yaml.safe_load(file.read_text()))
    assert any(message.startswith((f"{field}", "strict")) and field in message for message in messages), messages
    assert "hunter2" not in str(messages) + str(findings), "no message contains the password"


@files("edits")
def test_updates(file):
    before, after = yaml.safe_load_all(file.read_text())
    verdict, _, field = first_comment(file).partition(": ")
    messages = refusals(after, admit(CRD, before))
    assert refusals(after) == [], "valid as a new resource"
    if verdict == "accepted":
        assert messages == []
    else:
        assert any(message.startswith(f"{field}: Forbidden") for message in messages), messages


@given(resources(SCHEMA))
def test_the_api_server_and_the_typed_resource_accept_the_same_resources(resource):
    findings = list(problems_of(copy.deepcopy(resource)))
    if not findings:
        typed = msgspec.convert(resource, TTSPipeline)
        findings = [(violation.path, violation.message) for violation in cluster_violations(typed)]
    messages = refusals(resource)
    event("valid" if not findings else "invalid")
    assert bool(findings) == bool(messages), (findings, messages)
    if findings:
        # Each side may stop at its first error, but both name the same field.
        ours = {top(field_name(path)) for path, _ in findings}
        theirs = {top(found) for message in messages for found in re.findall(r"(?:spec|metadata)[.\w\[\]/-]*", message)}
        assert ours & theirs or not ours, (findings, messages)
    else:
        stored = admit(CRD, resource)
        assert as_typed(stored) == typed


def top(field):
    return tuple(re.split(r"[.\[]", field)[:2])


def test_list_maps_are_optional():
    """Server-side apply sets a list without items to null, which counts as absent."""
    merged = [
        f"{path}.{name}"
        for path, schema in nodes()
        for name, child in schema.get("properties", {}).items()
        if child.get("x-kubernetes-list-type") == "map" and name in schema.get("required", [])
    ]
    assert not merged
