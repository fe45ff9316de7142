"""The TTSPipeline resource: defaults, and the configurations derived from it."""

from pathlib import Path

import msgspec
import pytest

from support.cluster_plan import check_golden
from syrinx_operator.local.machine import publishable_pipeline
from syrinx_operator.local.pipeline import LocalPipeline
from syrinx_operator.resource.checks.check import load_one
from syrinx_operator.resource.checks.local_rules import ignored_locally
from syrinx_operator.resource.checks.rules import violations
from syrinx_operator.resource.fields.connector import ConnectorSpec
from syrinx_operator.resource.fields.gateway import (
    ApiKeysSpec,
    CorsSpec,
    GatewaySpec,
    ServiceSpec,
    TlsSpec,
)
from syrinx_operator.resource.fields.model import S3, HuggingFace, ModelImage, ModelSpec, ModelVolume, NfsVolume
from syrinx_operator.resource.fields.pods import EnvVar, SecretKey
from syrinx_operator.resource.fields.tuning import PrometheusSpec, SloSpec, TuningSpec
from syrinx_operator.resource.resolve import resolve
from syrinx_operator.resource.spec import CodecSpec, PipelineSpec, TalkerSpec, VllmSpec, default_pipeline
from syrinx_operator.resource.stage_config import LocalError, model_generation, plan_local
from syrinx_stages.contract.settings import (
    StageConfig,
    VllmOptions,
)
from syrinx_stages.contract.stages import Stage

GOLDEN = Path(__file__).parent / "golden" / "local"


def pipeline(**spec):
    return msgspec.structs.replace(default_pipeline(), spec=PipelineSpec(**spec))


def test_the_default_is_the_bundled_voice_with_one_replica_of_each_stage():
    assert violations(default_pipeline()) == []
    stages = [process.stage for process in plan_local(resolve(default_pipeline()), "1")]
    assert stages == [Stage.TALKER, Stage.CODEC, Stage.GATEWAY]


def test_defaults_are_those_of_the_stages():
    talker = plan_local(resolve(default_pipeline()), "1")[0].config
    default = StageConfig(pipeline="demo", generation=talker.generation, replica="talker-0", model="bundled")
    assert talker == msgspec.structs.replace(default, drain_seconds=talker.drain_seconds, settings_port=0)


@pytest.mark.parametrize("name", ["separate", "colocated"])
def test_golden(name):
    """Every value reaches its stage, and no other one; what is not shown is the stage's default."""
    file = GOLDEN / f"{name}.pipeline.yaml"
    planned = {}
    for process in plan_local(resolve(load_one(file.name, file.read_bytes())), "1"):
        default = msgspec.to_builtins(StageConfig(pipeline="", generation="", model=""))
        found = {key: value for key, value in msgspec.to_builtins(process.config).items() if value != default[key]}
        planned[f"{process.stage} {process.config.replica}"] = found
    check_golden(f"local/{name}.yaml", [planned])


def test_vllm_bounds_are_those_of_the_stages():
    def bounds(kind):
        while isinstance(kind, msgspec.inspect.Metadata):
            kind = kind.type
        return [bounds(each) for each in kind.types] if isinstance(kind, msgspec.inspect.UnionType) else kind

    def options(struct):
        fields = msgspec.inspect.type_info(struct).fields
        return {field.name: (bounds(field.type), field.default) for field in fields}

    assert options(VllmSpec) == options(VllmOptions)


@pytest.mark.parametrize(("given", "served"), [(None, True), (True, True), (False, False)])
def test_the_playground_is_on_with_up_unless_it_is_turned_off(given, served):
    assert plan_local(resolve(pipeline(gateway=GatewaySpec(playground=given))), "1")[-1].config.playground is served


@pytest.mark.parametrize(
    ("gateway", "field"),
    [
        (GatewaySpec(api_keys=ApiKeysSpec(secret=SecretKey(name="a", key="b"))), "apiKeys.file"),
        (GatewaySpec(tls=TlsSpec(secret="a")), "tls.certificateFile"),
    ],
)
def test_a_pipeline_whose_keys_are_in_a_secret_does_not_run_open_elsewhere(gateway, field):
    with pytest.raises(LocalError, match=f"supported only on Kubernetes: set spec.gateway.{field}"):
        plan_local(resolve(pipeline(gateway=gateway)), "1")


def test_a_published_pipeline_names_no_paths_and_hosts():
    gateway = GatewaySpec(
        api_keys=ApiKeysSpec(file="/home/me/keys"),
        tls=TlsSpec(certificate_file="/home/me/crt", key_file="/home/me/key"),
        cors=CorsSpec(allow_origins=("https://me.example",)),
        trusted_proxies=("10.0.0.0/8",),
        reference_hosts=("me.example",),
    )
    published = msgspec.json.encode(publishable_pipeline(pipeline(gateway=gateway))).decode()
    assert not [hidden for hidden in ("home", "me.example", "10.0.0.0") if hidden in published]


def test_local_tensor_parallelism_needs_a_device():
    def spec(device):
        return TalkerSpec(engine="vllm", device=device, vllm=VllmSpec(tensor_parallel_size=2))

    message = "spec.talker.vllm.tensorParallelSize: needs GPUs: set spec.talker.device: cuda"
    with pytest.raises(LocalError, match=message):
        plan_local(resolve(pipeline(talker=spec(None))), "1")
    assert plan_local(resolve(pipeline(talker=spec("cuda"))), "1")[0].config.device == "cuda"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            ModelSpec(hugging_face=HuggingFace(id="a/b", revision="v1")),
            "spec.model.huggingFace: supported only on Kubernetes: .*hf download a/b --revision v1.* spec.model.path",
        ),
        (ModelSpec(s3=S3(uri="s3://a/b")), "spec.model.s3: supported only on Kubernetes: download s3://a/b and "),
        (ModelSpec(image=ModelImage(reference="a/b:1")), "spec.model.image: .* on Kubernetes: copy .* a/b:1"),
        (
            ModelSpec(path="qwen", volume=ModelVolume(nfs=NfsVolume(server="files", path="/"))),
            "spec.model.volume: .* on Kubernetes: .* spec.model.path",
        ),
        (ModelSpec(path="qwen", claim="weights"), "spec.model.claim: .* on Kubernetes: .* spec.model.path"),
    ],
)
def test_models_for_kubernetes_do_not_run_locally(model, message):
    with pytest.raises(LocalError, match=message):
        plan_local(resolve(pipeline(model=model)), "1")
    with pytest.raises(LocalError, match=message):
        LocalPipeline(pipeline(model=model))


def test_ignored_fields_are_listed():
    assert list(ignored_locally(default_pipeline().spec)) == []
    used = {"model": ModelSpec(path="/x", name="y"), "codec": CodecSpec(device="cpu", replicas=2, drain_seconds=3)}
    assert list(ignored_locally(PipelineSpec(**used))) == []
    spec = {
        "image": "syrinx/stages:1",
        "gateway": GatewaySpec(replicas=2, service=ServiceSpec(type="NodePort")),
        "talker": TalkerSpec(env=(EnvVar(name="A", value="b"),), max_num_seqs=4),
        "connector": ConnectorSpec(url="redis://h", password_secret=SecretKey(name="a", key="b"), password_env="P"),
        "slo": SloSpec(underrun_ratio=0.02),
        "tuning": TuningSpec(mode="Off", prometheus=PrometheusSpec(url="http://prometheus:9090")),
    }
    assert list(ignored_locally(PipelineSpec(**spec))) == [
        *("spec.image", "spec.gateway.service", "spec.talker.env"),
        *("spec.connector.passwordSecret", "spec.tuning.prometheus"),
    ]


def test_the_generation_depends_on_the_model():
    def generation(version="1", **model):
        return model_generation(PipelineSpec(model=ModelSpec(**model)), version)

    bundled = generation(bundled=True)
    assert bundled == generation(bundled=True, name="other")
    assert bundled != generation("2", bundled=True), "a new version of Syrinx may contain a new voice"
    a, b = generation(path="/a"), generation(path="/b")
    assert len({bundled, a, b}) == 3
    assert a == generation("2", path="/a")


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (ModelSpec(bundled=True), "syrinx-us"),
        (ModelSpec(path="/models/Qwen3-TTS/"), "Qwen3-TTS"),
        (ModelSpec(path="qwen"), "qwen"),
        (ModelSpec(s3=S3(uri="s3://models/qwen/1.0/")), "1.0"),
        (ModelSpec(image=ModelImage(reference="registry.example:5000/voices/qwen:1.0")), "qwen"),
        (ModelSpec(image=ModelImage(reference="voices/qwen@sha256:" + "0" * 64)), "qwen"),
        (ModelSpec(image=ModelImage(reference="voices/all:1", path="models/small/")), "small"),
        (ModelSpec(path="/models/x", name="mine"), "mine"),
    ],
)
def test_the_default_model_name_is_from_the_source(model, name):
    assert pipeline(model=model).model_name == name
