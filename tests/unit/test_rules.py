"""Rules between fields: paths and messages at their limits. `test_crd.py` has examples of the others."""

import msgspec
import pytest

from syrinx_operator.resource.connector import ConnectorSpec
from syrinx_operator.resource.pods import Resources, SecretKey
from syrinx_operator.resource.rules import cluster_violations, violations
from syrinx_operator.resource.spec import (
    PipelineSpec,
    TalkerSpec,
    VllmSpec,
    default_pipeline,
)
from syrinx_operator.resource.tuning import RowBounds, TuningBounds, TuningSpec


def pipeline(**spec):
    return msgspec.structs.replace(default_pipeline(), spec=PipelineSpec(**spec))


def violated_paths(**spec):
    return [".".join(map(str, violation.path)) for violation in violations(pipeline(**spec))]


CA = SecretKey(name="redis", key="ca.crt")


@pytest.mark.parametrize(
    ("connector", "expected"),
    [
        (ConnectorSpec(managed=True), []),
        (ConnectorSpec(url="redis://redis.example:6379/0"), []),
        (ConnectorSpec(url="rediss://user@redis.example"), []),
        (ConnectorSpec(url="redis://h", password_env="SECRET"), []),
        (ConnectorSpec(), ["spec.connector"]),
        (ConnectorSpec(managed=True, url="redis://h"), ["spec.connector"]),
        (ConnectorSpec(managed=True, password_env="SECRET"), ["spec.connector.passwordEnv"]),
        (ConnectorSpec(url="http://h"), ["spec.connector.url"]),
        (ConnectorSpec(url="redis://"), ["spec.connector.url"]),
        (ConnectorSpec(url="redis://h:70000"), ["spec.connector.url"]),
        (ConnectorSpec(url="redis://u:secret@h"), ["spec.connector.url"]),
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
def test_exactly_one_redis_and_no_password_in_the_resource(connector, expected):
    assert violated_paths(connector=connector) == expected


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        (RowBounds(min=8, max=8), []),
        (RowBounds(min=9, max=8), ["talkerMaxNumSeqs"]),
        (RowBounds(max=7), ["talkerMaxNumSeqs"]),
    ],
)
def test_tuning_bounds_must_include_the_starting_point(bounds, expected):
    tuning = TuningSpec(bounds=TuningBounds(talker_max_num_seqs=bounds))
    started = violated_paths(talker=TalkerSpec(max_num_seqs=8), tuning=tuning)
    assert started == [f"spec.tuning.bounds.{field}" for field in expected]


def test_vllm_cannot_be_colocated():
    assert violated_paths(topology="Colocated", talker=TalkerSpec(engine="torch")) == []
    (violation,) = violations(pipeline(topology="Colocated", talker=TalkerSpec(engine="vllm")))
    assert violation.path == ("spec", "talker", "engine")
    assert violation.message == "vLLM needs its own process: use engine torch or topology Separate"


def on_gpus(gpus, **talker):
    return {"talker": TalkerSpec(engine="vllm", vllm=VllmSpec(tensor_parallel_size=gpus), **talker)}


def limited_to(amount):
    return Resources(limits={"nvidia.com/gpu": amount})


def test_tensor_parallelism_needs_gpus():
    assert violated_paths(**on_gpus(1, device="cpu")) == []
    assert violated_paths(**on_gpus(2)) == violated_paths(**on_gpus(2, device="cuda")) == []
    (violation,) = violations(pipeline(**on_gpus(2, device="cpu")))
    assert violation.path == ("spec", "talker", "vllm", "tensorParallelSize")
    assert violation.message == "2 needs GPUs: set device cuda"


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
