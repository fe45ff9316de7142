"""The TTSPipeline resource: defaults, rules between fields, and what is planned from it."""

import msgspec
import pytest

from syrinx_operator.plan import Stage, model_generation, plan_local
from syrinx_operator.rules import violations
from syrinx_operator.spec import (
    CaptureShape,
    CodecSpec,
    ConnectorSpec,
    GatewaySpec,
    Metadata,
    ModelSpec,
    PipelineSpec,
    TalkerSpec,
    TTSPipeline,
    default_pipeline,
)
from syrinx_stages.contract.keys import Keys
from syrinx_stages.contract.settings import StageConfig, load_config


def pipeline(**spec):
    return msgspec.structs.replace(default_pipeline(), spec=PipelineSpec(**spec))


def broken(**spec):
    return [".".join(map(str, violation.path)) for violation in violations(pipeline(**spec))]


def every_field(struct, seen=()):
    for field in msgspec.structs.fields(struct):
        yield struct, field
        for nested in structs_in(field.type):
            yield from every_field(nested)


def structs_in(annotation):
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return [annotation]
    return [struct for part in getattr(annotation, "__args__", ()) for struct in structs_in(part)]


def test_every_field_has_a_description():
    fields = list(every_field(TTSPipeline))
    assert len(fields) > 20
    for struct, field in fields:
        info = msgspec.inspect.type_info(field.type)
        description = getattr(info, "extra_json_schema", None) or {}
        assert description.get("description"), f"{struct.__name__}.{field.name}"


def test_an_almost_empty_resource_is_the_bundled_voice_with_one_of_each_stage():
    assert violations(default_pipeline()) == []
    assert [(process.stage, process.replica) for process in plan_local(default_pipeline(), "1")] == [
        (Stage.TALKER, "talker-0"),
        (Stage.CODEC, "codec-0"),
        (Stage.GATEWAY, "gateway-0"),
    ]


def test_defaults_are_the_stages_own():
    talker = plan_local(default_pipeline(), "1")[0].config
    default = StageConfig(pipeline="demo", generation=talker.generation, replica="talker-0", model="bundled")
    assert talker == msgspec.structs.replace(default, drain_seconds=talker.drain_seconds)


def test_every_value_reaches_the_stage_it_is_for():
    processes = plan_local(
        TTSPipeline(
            api_version="syrinx.dev/v1alpha1",
            kind="TTSPipeline",
            metadata=Metadata(name="big"),
            spec=PipelineSpec(
                model=ModelSpec(path="/models/qwen/", name="qwen"),
                gateway=GatewaySpec(port=9000, max_queue=3, max_queue_seconds=2.5, reference_hosts=("example.org",)),
                talker=TalkerSpec(replicas=2, max_num_seqs=5, max_resident=50, lead_limit_seconds=3),
                codec=CodecSpec(
                    replicas=3,
                    max_num_seqs=6,
                    max_resident=60,
                    chunk_ramp=(1, 4),
                    capture_pairs=(CaptureShape(rows=1, frames=2), CaptureShape(rows=4, frames=8)),
                ),
            ),
        ),
        "1",
    )
    configs = {process.replica: process.config for process in processes}
    assert list(configs) == ["talker-0", "talker-1", "codec-0", "codec-1", "codec-2", "gateway-0"]
    assert {(config.pipeline, config.model, config.model_name) for config in configs.values()} == {
        ("big", "/models/qwen/", "qwen")
    }
    assert configs["talker-1"].max_resident == 50
    assert configs["talker-1"].talker.max_num_seqs == 5
    assert configs["talker-1"].talker.lead_limit_seconds == 3
    assert configs["codec-2"].max_resident == 60
    assert configs["codec-2"].codec.max_num_seqs == 6
    assert configs["codec-2"].codec.chunk_ramp == (1, 4)
    assert configs["codec-2"].codec.capture_pairs == ((1, 2), (4, 8))
    assert configs["gateway-0"].port == 9000
    assert configs["gateway-0"].gateway.max_queue == 3
    assert configs["gateway-0"].gateway.max_queue_seconds == 2.5
    assert configs["gateway-0"].reference_hosts == ("example.org",)
    assert configs["talker-0"].port == configs["codec-0"].port == 0


def test_a_config_survives_its_file():
    for process in plan_local(default_pipeline(), "1"):
        assert load_config(msgspec.json.encode(process.config)) == process.config


def test_all_stages_share_one_generation_that_is_fit_for_a_key():
    generations = {process.config.generation for process in plan_local(default_pipeline(), "1")}
    assert len(generations) == 1
    assert Keys(pipeline="demo", generation=generations.pop()).prefix


def test_the_generation_follows_from_the_model_alone():
    bundled = model_generation(ModelSpec(bundled=True), "1")
    assert bundled == model_generation(ModelSpec(bundled=True, name="other"), "1")
    assert bundled != model_generation(ModelSpec(bundled=True), "2"), "a new Syrinx may bring a new voice"
    a, b = (model_generation(ModelSpec(path=path), "1") for path in ("/a", "/b"))
    assert len({bundled, a, b}) == 3
    assert a == model_generation(ModelSpec(path="/a"), "2")


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (ModelSpec(bundled=True), "syrinx-us"),
        (ModelSpec(path="/models/Qwen3-TTS/"), "Qwen3-TTS"),
        (ModelSpec(path="qwen"), "qwen"),
        (ModelSpec(path="/models/x", name="mine"), "mine"),
    ],
)
def test_the_model_name_defaults_to_where_the_model_comes_from(model, name):
    assert pipeline(model=model).model_name == name


@pytest.mark.parametrize("model", [ModelSpec(), ModelSpec(bundled=True, path="/a")])
def test_exactly_one_model_source(model):
    assert broken(model=model) == ["spec.model"]


@pytest.mark.parametrize("stage", ["talker", "codec"])
def test_rows_per_step_need_resident_state(stage):
    spec = {"talker": TalkerSpec, "codec": CodecSpec}[stage]
    assert broken(**{stage: spec(max_num_seqs=8, max_resident=8)}) == []
    assert broken(**{stage: spec(max_num_seqs=9, max_resident=8)}) == [f"spec.{stage}.maxNumSeqs"]


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
def test_capture_pairs_are_sorted_unique_and_of_use(shapes, expected):
    pairs = tuple(CaptureShape(rows=rows, frames=frames) for rows, frames in shapes)
    assert broken(codec=CodecSpec(capture_pairs=pairs)) == expected


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
    ],
)
def test_exactly_one_redis_and_no_password_in_the_resource(connector, expected):
    assert broken(connector=connector) == expected


def test_a_password_in_the_url_is_not_repeated_in_the_message():
    (violation,) = violations(pipeline(connector=ConnectorSpec(url="redis://u:hunter2@h")))
    assert "hunter2" not in violation.message
    assert "passwordEnv" in violation.message
