"""The TTSPipeline resource: defaults, and the configurations derived from it."""

import msgspec
import pytest

from syrinx_operator.local.machine import publishable_pipeline
from syrinx_operator.local.pipeline import LocalPipeline
from syrinx_operator.resource.connector import ConnectorSpec
from syrinx_operator.resource.gateway import (
    ApiKeysSpec,
    ApiSpec,
    CorsSpec,
    GatewaySpec,
    ServiceSpec,
    TlsSpec,
    VoicesSpec,
)
from syrinx_operator.resource.model import S3, HuggingFace, ModelImage, ModelSpec, ModelVolume, NfsVolume
from syrinx_operator.resource.pods import EnvVar, Resources, SecretKey
from syrinx_operator.resource.rules import violations
from syrinx_operator.resource.spec import CaptureShape, CodecSpec, PipelineSpec, TalkerSpec, VllmSpec, default_pipeline
from syrinx_operator.resource.stage_config import LocalError, Stage, ignored_locally, model_generation, plan_local
from syrinx_operator.resource.tuning import PrometheusSpec, SloSpec, TtfaObjective, TuningSpec
from syrinx_stages.contract.messages import TaskType
from syrinx_stages.contract.settings import (
    ApiConfig,
    CodecSettings,
    GatewaySettings,
    StageConfig,
    TalkerSettings,
    TlsFiles,
    VllmOptions,
    VoiceLimits,
)


def pipeline(**spec):
    return msgspec.structs.replace(default_pipeline(), spec=PipelineSpec(**spec))


def test_the_default_is_the_bundled_voice_with_one_replica_of_each_stage():
    assert violations(default_pipeline()) == []
    stages = [process.stage for process in plan_local(default_pipeline(), "1")]
    assert stages == [Stage.TALKER, Stage.CODEC, Stage.GATEWAY]


def test_defaults_are_those_of_the_stages():
    talker = plan_local(default_pipeline(), "1")[0].config
    default = StageConfig(pipeline="demo", generation=talker.generation, replica="talker-0", model="bundled")
    assert talker == msgspec.structs.replace(default, drain_seconds=talker.drain_seconds, settings_port=0)


def test_every_value_reaches_its_stage():
    api = ApiSpec(openai_names=False, voice_aliases={"narrator": "us"})
    spec = {
        "model": ModelSpec(path="/models/qwen/", name="qwen"),
        "gateway": GatewaySpec(
            port=9000,
            max_queue=3,
            max_queue_seconds=2.5,
            reference_hosts=("example.org",),
            api=api,
            voices=VoicesSpec(max_per_key=3, max_total=9),
        ),
        "talker": TalkerSpec(replicas=2, max_num_seqs=5, max_resident=50, lead_limit_seconds=3),
        "codec": CodecSpec(
            max_num_seqs=6, max_resident=60, chunk_ramp=(1, 4), capture_pairs=(CaptureShape(rows=1, frames=2),)
        ),
        "slo": SloSpec(
            ttfa=(
                TtfaObjective(task_type="CustomVoice", ttfa_p95_ms=300),
                TtfaObjective(task_type="Base", ttfa_p95_ms=2000, target=0.5),
            )
        ),
    }
    talker, second, codec, gateway = (process.config for process in plan_local(pipeline(**spec), "1"))
    names = [each.replica for each in (talker, second, codec, gateway)]
    assert names == ["talker-0", "talker-1", "codec-0", "gateway-0"]
    assert {(each.model, each.model_name) for each in (talker, second, codec, gateway)} == {("/models/qwen/", "qwen")}
    assert (second.max_resident, second.talker) == (50, TalkerSettings(max_num_seqs=5, lead_limit_seconds=3))
    settings = CodecSettings(max_num_seqs=6, chunk_ramp=(1, 4), capture_pairs=((1, 2),))
    assert (codec.max_resident, codec.codec) == (60, settings)
    limits = {TaskType.CUSTOM_VOICE: 0.3, TaskType.BASE: 2.0}
    expected = GatewaySettings(max_queue=3, max_queue_seconds=2.5, ttfa_seconds=limits)  # And no temporary setting.
    assert (gateway.port, gateway.gateway) == (9000, expected)
    assert gateway.reference_hosts == ("example.org",)
    assert gateway.api == ApiConfig(openai_names=False, voice_aliases={"narrator": "us"})
    assert gateway.voices == VoiceLimits(max_per_key=3, max_total=9)
    assert (talker.port, talker.api, codec.port) == (0, ApiConfig(), 0)


def test_device_and_drain_reach_the_stages():
    spec = {
        "gateway": GatewaySpec(drain_seconds=7),
        "talker": TalkerSpec(device="cuda", drain_seconds=0),
        "codec": CodecSpec(drain_seconds=9, resources=Resources(limits={"nvidia.com/gpu": 1})),
    }
    configs = [process.config for process in plan_local(pipeline(**spec), "1")]
    assert [(each.device, each.drain_seconds) for each in configs] == [("cuda", 0), ("cuda", 9), ("cpu", 7)]


def test_the_engine_and_its_options_reach_only_the_talkers():
    options = {"tensor_parallel_size": 2, "quantization": "fp8", "kv_cache_dtype": "fp8_e5m2"}
    options |= {"gpu_memory_utilization": 0.75, "max_num_batched_tokens": 512}
    talker = TalkerSpec(engine="vllm", device="cuda", vllm=VllmSpec(**options))
    configs = [process.config for process in plan_local(pipeline(talker=talker), "1")]
    known, default = ("vllm", VllmOptions(**options)), ("torch", VllmOptions())
    assert [(each.engine, each.vllm) for each in configs] == [known, default, default]


def test_vllm_bounds_are_those_of_the_stages():
    def bounds(kind):
        while isinstance(kind, msgspec.inspect.Metadata):
            kind = kind.type
        return [bounds(each) for each in kind.types] if isinstance(kind, msgspec.inspect.UnionType) else kind

    def options(struct):
        fields = msgspec.inspect.type_info(struct).fields
        return {field.name: (bounds(field.type), field.default) for field in fields}

    assert options(VllmSpec) == options(VllmOptions)


def test_local_files_of_keys_and_certificate():
    gateway = GatewaySpec(
        api_keys=ApiKeysSpec(file="/keys"),
        tls=TlsSpec(certificate_file="/crt", key_file="/key"),
        cors=CorsSpec(allow_origins=("*",)),
        trusted_proxies=("10.0.0.0/8",),
    )
    config = plan_local(pipeline(gateway=gateway), "1")[-1].config
    assert (config.api_keys_file, config.tls) == ("/keys", TlsFiles(certificate="/crt", key="/key"))
    assert (config.cors_origins, config.trusted_proxies) == (("*",), ("10.0.0.0/8",))


@pytest.mark.parametrize(("given", "served"), [(None, True), (True, True), (False, False)])
def test_the_playground_is_on_with_up_unless_it_is_turned_off(given, served):
    assert plan_local(pipeline(gateway=GatewaySpec(playground=given)), "1")[-1].config.playground is served


@pytest.mark.parametrize(
    ("gateway", "field"),
    [
        (GatewaySpec(api_keys=ApiKeysSpec(secret=SecretKey(name="a", key="b"))), "apiKeys.file"),
        (GatewaySpec(tls=TlsSpec(secret="a")), "tls.certificateFile"),
    ],
)
def test_a_pipeline_whose_keys_are_in_a_secret_does_not_run_open_elsewhere(gateway, field):
    with pytest.raises(LocalError, match=f"is supported only on Kubernetes: set spec.gateway.{field}"):
        plan_local(pipeline(gateway=gateway), "1")


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

    message = "spec.talker.vllm.tensorParallelSize needs GPUs: set spec.talker.device: cuda"
    with pytest.raises(LocalError, match=message):
        plan_local(pipeline(talker=spec(None)), "1")
    assert plan_local(pipeline(talker=spec("cuda")), "1")[0].config.device == "cuda"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            ModelSpec(hugging_face=HuggingFace(id="a/b", revision="v1")),
            "spec.model.huggingFace is supported only on Kubernetes: .*hf download a/b --revision v1.* spec.model.path",
        ),
        (ModelSpec(s3=S3(uri="s3://a/b")), "spec.model.s3 is supported only on Kubernetes: download s3://a/b and "),
        (ModelSpec(image=ModelImage(reference="a/b:1")), "spec.model.image is .* on Kubernetes: copy .* a/b:1"),
        (
            ModelSpec(path="qwen", volume=ModelVolume(nfs=NfsVolume(server="files", path="/"))),
            "spec.model.volume is .* on Kubernetes: .* spec.model.path",
        ),
        (ModelSpec(path="qwen", claim="weights"), "spec.model.claim is .* on Kubernetes: .* spec.model.path"),
    ],
)
def test_models_for_kubernetes_do_not_run_locally(model, message):
    with pytest.raises(LocalError, match=message):
        plan_local(pipeline(model=model), "1")
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


def test_the_generation_depends_on_model_and_topology():
    def generation(version="1", topology="Separate", **model):
        return model_generation(PipelineSpec(model=ModelSpec(**model), topology=topology), version)

    bundled = generation(bundled=True)
    assert bundled == generation(bundled=True, name="other")
    assert bundled != generation("2", bundled=True), "a new version of Syrinx may contain a new voice"
    a, b = generation(path="/a"), generation(path="/b")
    assert len({bundled, a, b}) == 3
    assert a == generation("2", path="/a")
    assert a != generation(path="/a", topology="Colocated"), "stages of different topologies never exchange data"


def test_colocated_talker_processes_have_a_codec():
    talker = TalkerSpec(replicas=2, device="cuda", drain_seconds=7, max_resident=16)
    codec = CodecSpec(max_num_seqs=4, max_resident=24)
    processes = plan_local(pipeline(topology="Colocated", talker=talker, codec=codec), "1")
    assert [process.module for process in processes] == ["colocated", "colocated", "gateway"]
    names = [[config.replica for _, config in process.stages] for process in processes]
    assert names == [["talker-0", "codec-0"], ["talker-1", "codec-1"], ["gateway-0"]]
    talker, codec = (config for _, config in processes[1].stages)
    assert (talker.device, talker.drain_seconds, talker.max_resident) == ("cuda", 7, 16)
    assert (codec.device, codec.drain_seconds, codec.max_resident) == ("cuda", 7, 24)
    assert codec.codec.max_num_seqs == 4
    assert len({config.generation for process in processes for _, config in process.stages}) == 1


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
