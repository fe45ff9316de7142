"""Rules between fields: path and message of each violation."""

import msgspec
import pytest

from syrinx_operator.resource.connector import ConnectorSpec
from syrinx_operator.resource.gateway import ApiKeysSpec, GatewaySpec, TlsSpec
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
from syrinx_operator.resource.pods import ConfigMapKey, EnvVar, ExtraVolume, Resources, SecretKey, Toleration
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


@pytest.mark.parametrize("model", [ModelSpec(), ModelSpec(bundled=True, path="/a")])
def test_exactly_one_model_source(model):
    assert violated_paths(model=model) == ["spec.model"]


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


def test_the_message_does_not_contain_the_password():
    (violation,) = violations(pipeline(connector=ConnectorSpec(url="redis://u:hunter2@h")))
    assert "hunter2" not in violation.message
    assert "passwordEnv" in violation.message


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


SECRET = SecretKey(name="s", key="k")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ([EnvVar(name="A", value="")], []),
        ([EnvVar(name="A", secret=SECRET), EnvVar(name="B", config_map=ConfigMapKey(name="c", key="k"))], []),
        ([EnvVar(name="A")], ["0"]),
        ([EnvVar(name="A", value="x", secret=SECRET)], ["0"]),
        ([EnvVar(name="A", value="x"), EnvVar(name="A", value="y")], ["1.name"]),
        ([EnvVar(name="POD_NAME", value="x")], ["0.name"]),
    ],
)
def test_environment_variables(variables, expected):
    for stage, spec in (("gateway", GatewaySpec), ("talker", TalkerSpec), ("codec", CodecSpec)):
        assert violated_paths(**{stage: spec(env=tuple(variables))}) == [
            f"spec.{stage}.env.{path}" for path in expected
        ]


@pytest.mark.parametrize(
    ("path", "sub_path", "expected"),
    [
        ("/data", None, []),
        ("/tmpx", "a/b..c", []),
        ("/tmp", None, ["mountPath"]),
        ("/tmp/x", None, ["mountPath"]),
        ("/etc/syrinx/start", None, ["mountPath"]),
        ("/data/../models", None, ["mountPath"]),
        ("/./models", None, ["mountPath"]),
        ("/data", "/a", ["subPath"]),
        ("/data", "a/..", ["subPath"]),
    ],
)
def test_volumes_must_not_use_reserved_directories(path, sub_path, expected):
    volume = ExtraVolume(name="v", mount_path=path, sub_path=sub_path, claim="c")
    assert violated_paths(codec=CodecSpec(extra_volumes=(volume,))) == [
        f"spec.codec.extraVolumes.0.{each}" for each in expected
    ]


def test_volumes_need_unique_names_and_mount_paths():
    def volumes(*pairs):
        return tuple(ExtraVolume(name=name, mount_path=path, secret="s") for name, path in pairs)

    assert violated_paths(codec=CodecSpec(extra_volumes=volumes(("a", "/a"), ("b", "/b")))) == []
    assert violated_paths(codec=CodecSpec(extra_volumes=volumes(("a", "/a"), ("a", "/b")))) == [
        "spec.codec.extraVolumes.1.name"
    ]
    assert violated_paths(codec=CodecSpec(extra_volumes=volumes(("a", "/a"), ("b", "/a")))) == [
        "spec.codec.extraVolumes.1.mountPath"
    ]


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        (Toleration(operator="Exists"), []),
        (Toleration(key="a"), []),
        (Toleration(key="a", effect="NoExecute", toleration_seconds=5), []),
        (Toleration(), ["key"]),
        (Toleration(key="a", operator="Exists", value="b"), ["value"]),
        (Toleration(key="a", toleration_seconds=5), ["tolerationSeconds"]),
    ],
)
def test_tolerations_follow_kubernetes(toleration, expected):
    paths = violated_paths(talker=TalkerSpec(tolerations=(toleration,)))
    assert paths == [f"spec.talker.tolerations.0.{field}" for field in expected]


def test_reserved_labels_are_refused():
    assert violated_paths(codec=CodecSpec(pod_labels={"team": "a"}, pod_annotations={"example.org/a": "b"})) == []
    assert violated_paths(codec=CodecSpec(pod_labels={"syrinx.dev/pipeline": "a"})) == ["spec.codec.podLabels"]
    assert violated_paths(codec=CodecSpec(pod_annotations={"app.kubernetes.io/name": "a"})) == [
        "spec.codec.podAnnotations"
    ]


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


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"gateway": GatewaySpec(port=1024)}, []),
        ({"gateway": GatewaySpec(port=0)}, ["spec.gateway.port"]),
        ({"model": ModelSpec(path="/models/x")}, []),
        ({"model": ModelSpec(path="x", claim="weights")}, []),
        ({"model": ModelSpec(path="x")}, ["spec.model.path"]),
        ({"connector": ConnectorSpec(url="redis://h", password_env="P")}, ["spec.connector.passwordEnv"]),
        ({"connector": ConnectorSpec(url="redis://h", password_env="P", password_secret=SECRET)}, []),
    ],
)
def test_rules_for_kubernetes_only(spec, expected):
    assert violated_paths(**spec) == []
    assert [".".join(map(str, each.path)) for each in cluster_violations(pipeline(**spec))] == expected


KEYS, TLS = SecretKey(name="keys", key="keys.jsonl"), "speech-tls"


@pytest.mark.parametrize(
    ("gateway", "anywhere", "on_kubernetes"),
    [
        (GatewaySpec(api_keys=ApiKeysSpec(secret=KEYS), tls=TlsSpec(secret=TLS)), [], []),
        (GatewaySpec(api_keys=ApiKeysSpec(secret=KEYS, file="keys.jsonl")), [], []),
        (GatewaySpec(api_keys=ApiKeysSpec(file="keys.jsonl")), [], ["spec.gateway.apiKeys.file"]),
        (GatewaySpec(api_keys=ApiKeysSpec()), ["spec.gateway.apiKeys"], []),
        (GatewaySpec(tls=TlsSpec(certificate_file="c", key_file="k")), [], ["spec.gateway.tls.certificateFile"]),
        (GatewaySpec(tls=TlsSpec(secret=TLS, certificate_file="c")), ["spec.gateway.tls.certificateFile"], []),
        (GatewaySpec(tls=TlsSpec(secret=TLS, key_file="k")), ["spec.gateway.tls.keyFile"], []),
        (GatewaySpec(tls=TlsSpec()), ["spec.gateway.tls"], []),
    ],
)
def test_keys_and_certificates_are_in_secrets_on_kubernetes_and_in_files_elsewhere(gateway, anywhere, on_kubernetes):
    assert violated_paths(gateway=gateway) == anywhere
    found = cluster_violations(pipeline(gateway=gateway))
    assert [".".join(map(str, violation.path)) for violation in found] == on_kubernetes
