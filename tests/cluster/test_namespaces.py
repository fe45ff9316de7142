"""What disappears below the operator: a namespace that it watches, and the CRD."""

import pytest

from cluster.client import Kubernetes
from cluster.installation import is_gone
from cluster.pipeline import Pipeline

OTHER = "elsewhere"
POLICIES = {f"{OTHER}-{component}" for component in ("gateway", "talker", "codec", "redis")}
CRD = "ttspipelines.syrinx.dev"


def create(installed):
    """Creates a pipeline in the other namespace, whose pods need not run, and waits until it has its objects."""
    pipeline = Pipeline(installed, OTHER, installed.other)
    pipeline.create()
    pipeline.wait("to have its workloads", lambda: len(pipeline.cluster.list("StatefulSet", pipeline.selector)) == 3)
    return pipeline


@pytest.fixture
def here(installed):
    """A pipeline in the test namespace, whose pods need not run."""
    pipeline = Pipeline(installed, "here")
    pipeline.create()
    yield pipeline
    pipeline.remove()


def follows(pipeline, queue):
    """Edits a pipeline, and waits until the operator has followed."""
    pipeline.edit({"gateway": {"maxQueue": queue}})

    def is_applied():
        found = pipeline.cluster.get("ConfigMap", f"{pipeline.name}-gateway")
        return found and f'"max_queue":{queue}' in found["data"]["settings.json"].replace(" ", "")

    pipeline.wait("to be served by the operator", is_applied)


def test_network_policies_are_accepted(installed):
    pipeline = create(installed)
    found = {each["metadata"]["name"]: each for each in pipeline.cluster.list("NetworkPolicy", pipeline.selector)}
    assert found.keys() == POLICIES
    (rule,) = found[f"{OTHER}-redis"]["spec"]["ingress"]
    assert [port["port"] for port in rule["ports"]] == [6379]
    assert rule["from"], "Redis is not open to everybody"
    pipeline.remove()


def test_a_deleted_namespace_disturbs_no_other(installed, here):
    create(installed)
    follows(here, 101)
    namespace = installed.other.namespace
    installed.cluster.delete("Namespace", namespace)
    here.wait("not to see the other namespace", lambda: is_gone(installed.cluster, "Namespace", namespace), slow=True)
    follows(here, 102)
    installed.cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    installed.permit()
    follows(create(installed), 103)


def test_a_pipeline_that_no_operator_watches_says_so(installed):
    unwatched = Kubernetes(f"{installed.cluster.namespace}-unwatched")
    unwatched.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": unwatched.namespace}})
    try:
        pipeline = Pipeline(installed, "unseen", unwatched)
        pipeline.create()
        ready = pipeline.condition("Ready")
        assert (ready["status"], ready["reason"]) == ("Unknown", "Pending")
        assert "does it watch this namespace?" in ready["message"]
    finally:
        installed.cluster.delete("Namespace", unwatched.namespace)


def test_a_deleted_crd_can_be_installed_again(installed):
    if not installed.parameters.delete_crd:
        pytest.skip("SYRINX_TEST_DELETE_CRD is not set")
    create(installed)
    installed.cluster.delete("CustomResourceDefinition", CRD)
    pipeline = Pipeline(installed, OTHER, installed.other)
    pipeline.wait("to be gone with the CRD", lambda: is_gone(installed.cluster, "CustomResourceDefinition", CRD))
    pipeline.wait("to leave nothing", lambda: not pipeline.cluster.list("StatefulSet", pipeline.selector), slow=True)
    installed.define()
    follows(create(installed), 104)
