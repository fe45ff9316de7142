"""Names of objects: those of one pipeline are never those of another one, whatever it is called."""

import pytest

from support.cluster_plan import CONFIG, DOCUMENTS, EMPTY, after, document, key, owner_of, parsed, pods_of
from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.state import REDIS, ObjectKey
from syrinx_operator.cluster.plan import plan
from syrinx_operator.resource.resolve import resolve

CANARY = {"rollout": {"canary": {}}}
NEW_IMAGE = {"image": "syrinx/stages:2"}
BUCKETS = tuple({"model": {"s3": {"uri": f"s3://voices/{each}"}, "cache": {"claim": "c"}}} for each in (1, 2))
EDITS = [
    *(((document(each).get("spec") or {}) | CANARY, NEW_IMAGE) for each in DOCUMENTS),
    BUCKETS,
]
"""Specs and edits of them, by which all kinds of objects are planned."""


def keys_of(name):
    """Returns the keys of all objects that a pipeline of this name may have."""
    found = {ObjectKey("ConfigMap", names.tuning_record(name))}
    secrets = [names.token_secret(name), *(names.workload(name, redis) for redis in REDIS)]
    found |= {ObjectKey("Secret", secret) for secret in secrets}
    observed = EMPTY
    for spec, edit in EDITS:
        for version in (spec, spec | edit):
            resource = {"apiVersion": "syrinx.dev/v1beta1", "kind": "TTSPipeline", "metadata": {"name": name}}
            pipeline = parsed({**resource, "spec": version})
            planned = plan(resolve(pipeline), owner_of(pipeline), observed if version is not spec else EMPTY, CONFIG)
            observed = after(planned, replicas=pods_of(planned))
            found |= {key(manifest) for manifest in planned.manifests}
    return found


def starts(name):
    """Returns the names that a name begins with, at its hyphens."""
    parts = name.split("-")
    return {"-".join(parts[:count]) for count in range(1, len(parts))}


OWN = keys_of("demo")
OTHERS = sorted({start for each in OWN for start in starts(each.name)} - {"demo"})


def test_objects_of_all_purposes_are_compared():
    kinds = {"Job", "Secret", "PodMonitor", "PersistentVolumeClaim", "ScaledObject", "HTTPRoute", "Deployment"}
    assert kinds <= {each.kind for each in OWN} and any("canary" in each.name for each in OWN)
    assert {"demo-redis", "demo-models", "demo-gateway", "syrinx-data-demo"} <= set(OTHERS)


@pytest.mark.parametrize("other", sorted({*OTHERS, "demo-canary", "demo-talker", "demo-stages", "demo-tuning"}))
def test_a_pipeline_that_is_called_like_an_object_of_another_shares_none(other):
    assert OWN & keys_of(other) == set()
