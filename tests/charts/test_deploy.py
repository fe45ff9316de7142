"""`deploy/` contains all objects of the charts and is current."""

import importlib.util
import json

import pytest
import yaml

from support.charts import ROOT, objects, of_kind, one, parsed, validate
from support.kube import checks, defaults, fields
from support.kube.kinds import Kinds
from syrinx_operator.resource.spec import API_VERSION

DEPLOY = ROOT / "deploy"
VARIANTS = {"namespaced": DEPLOY, "cluster-wide": DEPLOY / "cluster-wide"}
EVERY = pytest.mark.parametrize("directory", VARIANTS.values(), ids=VARIANTS)


def generator():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "charts" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATED = generator().generated()


def kustomized(directory):
    """Returns the objects of `kubectl apply -k`. These files use only the list of resources."""
    kustomization = yaml.safe_load((directory / "kustomization.yaml").read_text())
    assert kustomization.keys() == {"apiVersion", "kind", "resources"}
    found = []
    for resource in kustomization["resources"]:
        path = directory / resource
        found += kustomized(path) if path.is_dir() else parsed(path.read_text())
    return found


@pytest.mark.parametrize("path", GENERATED)
def test_files_are_current(path):
    assert (ROOT / path).read_text() == GENERATED[path], "run `make generate`"


@EVERY
def test_every_generated_object_is_used(directory):
    used = {manifest["metadata"]["name"] for manifest in kustomized(directory)}
    made = [m for path, text in GENERATED.items() if path.startswith("deploy/common") for m in parsed(text)]
    assert {manifest["metadata"]["name"] for manifest in made} <= used


@EVERY
def test_every_object_is_valid_and_unique_and_in_one_restricted_namespace(directory):
    manifests = kustomized(directory)
    for manifest in manifests:
        validate(manifest, "1.28.0")
        assert "helm" not in yaml.safe_dump(manifest["metadata"]).lower()
    keys = [(m["kind"], m["metadata"].get("namespace"), m["metadata"]["name"]) for m in manifests]
    assert len(keys) == len(set(keys))
    namespace = one(manifests, "Namespace")["metadata"]
    assert namespace["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert {placed for _, placed, _ in keys} == {None, namespace["name"]}


CHART = objects("syrinx", {"networkPolicy": {"enabled": True, "from": [{}]}, "replicas": 2})
BUILT_IN = [each for each in (*CHART, *kustomized(DEPLOY)) if not each["apiVersion"].startswith("monitoring")]


@pytest.mark.parametrize("manifest", [pytest.param(m, id=f"{m['kind']}-{m['metadata']['name']}") for m in BUILT_IN])
def test_what_was_applied_client_side_can_be_applied_server_side(manifest):
    """The API server's defaults in an atomic object, such as a fieldRef, belong to who applied it first."""
    kind = Kinds().of(manifest)
    stored = checks.decode(kind, manifest, [], exact=False)
    defaults.fill(stored)
    assert fields.conflicts(kind.schema, manifest, stored) == set()


def test_the_variants_differ_in_permissions():
    namespaced, everywhere = (kustomized(directory) for directory in VARIANTS.values())
    assert len(of_kind(namespaced, "Role", "RoleBinding")) == 2
    assert not of_kind(everywhere, "Role", "RoleBinding")
    assert len(of_kind(everywhere, "ClusterRoleBinding")) == 1
    for each, word in ((namespaced, "--namespace=syrinx"), (everywhere, "--all-namespaces")):
        assert one(each, "Deployment")["spec"]["template"]["spec"]["containers"][0]["command"][-1] == word


@EVERY
def test_the_definition_serves_the_watched_version(directory):
    definition = one(kustomized(directory), "CustomResourceDefinition")
    assert f"{definition['spec']['group']}/{definition['spec']['versions'][0]['name']}" == API_VERSION
    assert definition["spec"] == one(objects("syrinx-crds"), "CustomResourceDefinition")["spec"]
    # kubectl keeps what it applied as JSON in an annotation, and all annotations together may have 256 KiB.
    assert len(json.dumps(definition, separators=(",", ":"))) < 240_000
