"""Rules between fields: paths and messages at their limits. `test_crd.py` has examples of the others."""

import msgspec
import pytest

from syrinx_operator.resource.checks.rules import cluster_violations, violations
from syrinx_operator.resource.fields.connector import ConnectorSpec
from syrinx_operator.resource.fields.pods import Resources, SecretKey
from syrinx_operator.resource.spec import CodecSpec, PipelineSpec, TalkerSpec, VllmSpec, default_pipeline


def pipeline(**spec):
    return msgspec.structs.replace(default_pipeline(), spec=PipelineSpec(**spec))


def violated_paths(**spec):
    return [".".join(map(str, violation.path)) for violation in violations(pipeline(**spec))]


CA = SecretKey(name="redis", key="ca.crt")


@pytest.mark.parametrize(
    ("connector", "expected"),
    [
        (ConnectorSpec(url="redis+sentinel://a,b:26380/primary/1"), []),
        (ConnectorSpec(url="redis+sentinel://a,b"), ["spec.connector.url"]),
        (ConnectorSpec(url="redis+cluster://a,b:7000"), []),
        (ConnectorSpec(url="rediss+cluster://user@[fd00::1]:7000,b", ca_secret=CA), []),
        (ConnectorSpec(url="redis+cluster://a", ca_secret=CA), ["spec.connector.caSecret"]),
        (ConnectorSpec(url="redis+cluster://a,,b"), ["spec.connector.url"]),
        (ConnectorSpec(url="redis+cluster://a,b/0"), ["spec.connector.url"]),
        (ConnectorSpec(url="redis+cluster://u:secret@a,b"), ["spec.connector.url"]),
    ],
)
def test_addresses_of_sentinels_and_clusters(connector, expected):
    assert violated_paths(connector=connector) == expected


def test_a_standby_is_for_syrinx_up_and_for_the_own_engine():
    assert violated_paths(talker=TalkerSpec(standby=True), codec=CodecSpec(standby=True)) == []
    assert violated_paths(talker=TalkerSpec(standby=True, engine="vllm")) == ["spec.talker.standby"]
    found = cluster_violations(pipeline(codec=CodecSpec(standby=True)))
    assert found == [(("spec", "codec", "standby"), "is for `syrinx up`: set replicas to at least 2")]


def on_gpus(gpus, **talker):
    return {"talker": TalkerSpec(engine="vllm", vllm=VllmSpec(tensor_parallel_size=gpus), **talker)}


def limited_to(amount):
    return Resources(limits={"nvidia.com/gpu": amount})


@pytest.mark.parametrize(
    ("gpus", "resources", "accepted"),
    [
        (1, Resources(), True),
        (2, limited_to(2), True),
        (2, limited_to("2"), True),
        (2, limited_to(8), True),
        (2, limited_to(1), False),
        (2, limited_to("2.0"), False),
        (2, Resources(requests={"nvidia.com/gpu": 2}), False),
        (2, Resources(limits={"amd.com/gpu": 2}), False),
    ],
)
def test_tensor_parallelism_needs_enough_gpus_in_the_limits(gpus, resources, accepted):
    spec = on_gpus(gpus, device="cuda", resources=resources)
    assert violated_paths(**spec) == []
    found = [(".".join(each.path), each.message) for each in cluster_violations(pipeline(**spec))]
    expected = ("spec.talker.vllm.tensorParallelSize", "needs 2 GPUs: set talker.resources.limits nvidia.com/gpu: 2")
    assert found == ([] if accepted else [expected])
