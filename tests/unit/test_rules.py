"""Rules between fields: paths and messages at their limits. `test_crd.py` has examples of the others."""

import msgspec
import pytest

from syrinx_operator.resource.connector import ConnectorSpec
from syrinx_operator.resource.model import (
    S3,
    CsiVolume,
    HuggingFace,
    ModelCache,
    ModelImage,
    ModelSpec,
    ModelVolume,
    NfsVolume,
)
from syrinx_operator.resource.pods import Resources, SecretKey
from syrinx_operator.resource.rules import cluster_violations, violations
from syrinx_operator.resource.spec import (
    CaptureShape,
    CodecSpec,
    PipelineSpec,
    TalkerSpec,
    VllmSpec,
    default_pipeline,
)
from syrinx_operator.resource.tuning import CaptureBounds, RowBounds, TuningBounds, TuningSpec


def pipeline(**spec):
    return msgspec.structs.replace(default_pipeline(), spec=PipelineSpec(**spec))


def violated_paths(**spec):
    return [".".join(map(str, violation.path)) for violation in violations(pipeline(**spec))]


@pytest.mark.parametrize("stage", ["talker", "codec"])
def test_rows_per_step_need_resident_state(stage):
    spec = {"talker": TalkerSpec, "codec": CodecSpec}[stage]
    assert violated_paths(**{stage: spec(max_num_seqs=8, max_resident=8)}) == []
    assert violated_paths(**{stage: spec(max_num_seqs=9, max_resident=8)}) == [f"spec.{stage}.maxNumSeqs"]


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ([(1, 2), (1, 4), (2, 2)], []),
        ([(1, 4), (1, 2)], ["spec.codec.capturePairs.1"]),
        ([(2, 2), (1, 4)], ["spec.codec.capturePairs.1"]),
        ([(1, 2), (1, 2)], ["spec.codec.capturePairs.1"]),
        ([(32, 2)], []),
        ([(33, 2)], ["spec.codec.capturePairs.0.rows"]),
    ],
)
def test_capture_pairs_must_be_sorted_unique_and_usable(shapes, expected):
    pairs = tuple(CaptureShape(rows=rows, frames=frames) for rows, frames in shapes)
    assert violated_paths(codec=CodecSpec(max_resident=32, capture_pairs=pairs)) == expected


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


NFS = ModelVolume(nfs=NfsVolume(server="files", path="/voices"))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (ModelSpec(s3=S3(uri="s3://a/b"), cache=ModelCache(claim="c")), []),
        (ModelSpec(s3=S3(uri="s3://a/b"), hugging_face=HuggingFace(id="a/b", revision="c")), ["spec.model"]),
        (ModelSpec(s3=S3(uri="s3://a/b"), image=ModelImage(reference="a:1")), ["spec.model"]),
        (ModelSpec(image=ModelImage(reference="a:1", path="x"), path="/y"), ["spec.model"]),
        (ModelSpec(image=ModelImage(reference="a:1", path="a/../b")), ["spec.model.image.path"]),
        (ModelSpec(image=ModelImage(reference="a:1"), cache=ModelCache(claim="c")), ["spec.model.cache"]),
        (ModelSpec(path="a", volume=NFS), []),
        (ModelSpec(path="a/..", volume=NFS), ["spec.model.path"]),
        (ModelSpec(path="a", volume=NFS, claim="c"), ["spec.model.volume"]),
        (ModelSpec(bundled=True, volume=NFS), ["spec.model.volume"]),
        (ModelSpec(path="a", volume=ModelVolume()), ["spec.model.volume"]),
        (ModelSpec(path="a", volume=ModelVolume(nfs=NFS.nfs, csi=CsiVolume(driver="d"))), ["spec.model.volume"]),
        (ModelSpec(s3=S3(uri="s3://a", endpoint="http://169.254.169.254")), ["spec.model.s3.endpoint"]),
        (ModelSpec(s3=S3(uri="s3://a", endpoint="https://[fd00:ec2::254]/")), ["spec.model.s3.endpoint"]),
        (ModelSpec(s3=S3(uri="s3://a", endpoint="https://minio.storage:9000")), []),
    ],
)
def test_sources_of_the_checkpoint(model, expected):
    assert violated_paths(model=model) == expected


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


@pytest.mark.parametrize(
    ("ramps", "expected"),
    [
        (None, []),
        ((), []),
        (((2, 4), (2, 4, 4), (4, 2)), []),
        (((2, 4), (1,), (2, 4)), ["chunkRamps.2"]),
    ],
)
def test_chunk_ramps_must_be_unique(ramps, expected):
    tuning = TuningSpec(bounds=TuningBounds(chunk_ramps=ramps))
    started = violated_paths(talker=TalkerSpec(max_num_seqs=8), tuning=tuning)
    assert started == [f"spec.tuning.bounds.{field}" for field in expected]


@pytest.mark.parametrize(("most", "expected"), [(2, []), (1, ["capturePairs.max"]), (0, [])])
def test_the_bound_of_captured_shapes_must_include_the_starting_point(most, expected):
    codec = CodecSpec(capture_pairs=(CaptureShape(rows=1, frames=2), CaptureShape(rows=1, frames=4)))
    tuning = TuningSpec(bounds=TuningBounds(capture_pairs=CaptureBounds(max=most)))
    assert violated_paths(codec=codec, tuning=tuning) == [f"spec.tuning.bounds.{field}" for field in expected]


@pytest.mark.parametrize(
    ("talker", "expected"),
    [
        (TalkerSpec(engine="vllm"), []),
        (TalkerSpec(engine="vllm", vllm=VllmSpec(quantization="fp8")), []),
        (TalkerSpec(vllm=VllmSpec()), ["vllm"]),
        (TalkerSpec(engine="torch", vllm=VllmSpec(quantization="fp8")), ["vllm"]),
    ],
)
def test_vllm_options_need_the_vllm_engine(talker, expected):
    assert violated_paths(talker=talker) == [f"spec.talker.{field}" for field in expected]


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
