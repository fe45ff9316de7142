"""What `syrinx up` makes of a machine: the GPU of each process, and how many replicas it runs."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from syrinx_operator.local.events import Event
from syrinx_operator.local.gpus import describe, is_shared, place, shared_gpu
from syrinx_operator.local.machine import usable_cores
from syrinx_operator.local.sizing import sized_pipeline, with_gpu_replicas
from syrinx_operator.resource.checks.check import load_one
from syrinx_operator.resource.resolve import resolve
from syrinx_operator.resource.spec import CodecSpec, PipelineSpec, TalkerSpec, TTSPipeline, VllmSpec, default_pipeline
from syrinx_operator.resource.stage_config import StageProcess, plan_local
from syrinx_stages.contract.keys import cell_of

GPUS = ("GPU-a", "GPU-b", "GPU-c", "GPU-d")


def processes(talker: TalkerSpec, codec: CodecSpec, **spec: Any) -> list[StageProcess]:
    pipeline = msgspec.structs.replace(default_pipeline(), spec=PipelineSpec(talker=talker, codec=codec, **spec))
    return plan_local(resolve(pipeline), "1")


CUDA = CodecSpec(device="cuda")
STOOD_BY = TalkerSpec(device="cuda", replicas=2, standby=True)
ON_VLLM = TalkerSpec(device="cuda", engine="vllm", vllm=VllmSpec(tensor_parallel_size=2))


def on_gpus(talkers: int, codecs: int, **spec: Any) -> list[StageProcess]:
    return processes(TalkerSpec(device="cuda", replicas=talkers), CodecSpec(device="cuda", replicas=codecs), **spec)


@pytest.mark.parametrize(
    ("gpus", "plan", "expected"),
    [
        (2, on_gpus(1, 1), {"talker-0": "a", "codec-0": "b"}),
        (2, on_gpus(2, 2), {"talker-0": "a", "talker-1": "b", "codec-0": "a", "codec-1": "b"}),
        (4, on_gpus(3, 1), {"talker-0": "a", "talker-1": "b", "talker-2": "c", "codec-0": "d"}),
        (1, on_gpus(1, 1), {"talker-0": "a", "codec-0": "a"}),
        (3, processes(ON_VLLM, CUDA), {"talker-0": "ab", "codec-0": "c"}),
        (1, processes(ON_VLLM, CUDA), {}),
        (
            2,
            processes(STOOD_BY, CUDA),
            {"talker-0": "a", "talker-1": "b", "codec-0": "a", "talker-standby-0": "a", "talker-standby-1": "b"},
        ),
    ],
)
def test_processes_take_gpus_in_turn(gpus: int, plan: list[StageProcess], expected: dict[str, str]) -> None:
    """One each; a talker on vLLM those of its tensor parallelism, and a standby those of its replica."""
    assert place(plan, "abcd"[:gpus]) == {name: tuple(chosen) for name, chosen in expected.items()}


def test_the_processes_of_each_gpu_are_shown_and_an_idle_one_is_a_warning() -> None:
    shown = describe({"talker-0": ("GPU-a",), "codec-0": ("GPU-b",)}, GPUS[:2])
    assert shown == Event("notice", "gpus", "GPU 0: talker-0; GPU 1: codec-0")
    idle = describe({"talker-0": ("GPU-a",), "codec-0": ("GPU-b",)}, GPUS[:3])
    assert (idle.kind, idle.text.partition(".")[0]) == ("warning", "GPU 0: talker-0; GPU 1: codec-0; GPU 2: idle")


async def test_processes_with_a_gpu_each_need_no_multi_process_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    plan = on_gpus(1, 1)
    alone, together = place(plan, GPUS[:2]), place(plan, GPUS[:1])
    assert (is_shared(alone), is_shared(together)) == (False, True)
    events: list[Event] = []
    for each in (alone, together, {}):
        async with shared_gpu(plan, each, {}, events.append) as variables:
            assert variables == {}
    assert ["not installed" in event.text for event in events] == [True, True]


def roles(plan: list[StageProcess]) -> dict[str, tuple[str, float | None]]:
    """Returns the replica that each process is a standby of, and its memory of a GPU."""
    return {each.config.replica: (each.config.standby_of, each.config.memory_fraction) for each in plan}


def test_a_standby_gets_a_third_of_its_stages_memory() -> None:
    stood_by = processes(TalkerSpec(device="cuda", standby=True), CodecSpec(device="cuda", memory_fraction=0.3))
    assert roles(stood_by) == {
        "talker-0": ("", 0.4),
        "talker-standby-0": ("talker-0", 0.2),
        "codec-0": ("", 0.3),
        "gateway-0": ("", None),
    }
    given = processes(TalkerSpec(device="cuda", memory_fraction=0.3, standby=True), CodecSpec())
    assert [roles(given)[name][1] for name in ("talker-0", "talker-standby-0")] == [0.2, 0.1]
    on_cpu = processes(TalkerSpec(), CodecSpec(standby=True))
    assert roles(on_cpu) == {
        "talker-0": ("", None),
        "codec-0": ("", None),
        "codec-standby-0": ("codec-0", None),
        "gateway-0": ("", None),
    }


def test_a_standby_is_in_the_cell_of_its_replica() -> None:
    plan = [each.config for each in processes(STOOD_BY, CUDA)]
    assert all(cell_of(each.replica, 2) == cell_of(each.standby_of, 2) for each in plan if each.standby_of)


def file(gib: float = 24, **stages: object) -> TTSPipeline:
    """Returns a pipeline of a file on four GPUs with so much memory."""
    resource = {"apiVersion": "syrinx.dev/v1beta1", "kind": "TTSPipeline", "metadata": {"name": "demo"}, "spec": stages}
    data = msgspec.yaml.encode(resource)
    return load_one("p.yaml", data, complete=lambda value: with_gpu_replicas(value, lambda: [int(gib * 2**30)] * 4))


def test_a_file_with_only_the_device_gets_a_talker_and_a_codec_on_each_gpu() -> None:
    spec = file(talker={"device": "cuda"}, codec={"device": "cuda"}).spec
    assert (spec.talker.replicas, spec.codec.replicas, spec.gateway.replicas) == (4, 4, 5)
    assert file(talker={"device": "cuda"}, gateway={"replicas": 2}).spec.gateway.replicas == 2


def test_replicas_of_the_file_are_kept_and_stages_on_the_cpu_have_one() -> None:
    spec = file(talker={"device": "cuda", "replicas": 1}, codec={"maxNumSeqs": 4}).spec
    assert (spec.talker.replicas, spec.codec.replicas, spec.gateway.replicas) == (1, 1, 1)


@pytest.mark.parametrize(("gib", "has_standby"), [(22.0, False), (39.4, True), (139.8, True)])
def test_gpus_with_40_gb_have_standbys(gib: float, has_standby: bool) -> None:
    spec = file(gib, talker={"device": "cuda"}, codec={"device": "cuda", "standby": False}).spec
    assert (spec.talker.standby, spec.codec.standby) == (has_standby, False)
    others = {"talker": {"device": "cuda", "engine": "vllm"}, "codec": {"device": "cuda", "replicas": 4}}
    assert not (file(gib, **others).spec.talker.standby or file(gib, **others).spec.codec.standby)
    assert not file(gib).spec.talker.standby, "on the CPU"


def test_replicas_on_vllm_share_the_gpus_by_their_tensor_parallelism() -> None:
    talker = {"device": "cuda", "engine": "vllm", "vllm": {"tensorParallelSize": 2}}
    assert file(talker=talker).spec.talker.replicas == 2


@pytest.mark.parametrize("resource", [None, [], {}, {"spec": 3}, {"spec": {"talker": "cuda"}}, {"spec": {}}])
def test_other_data_is_left_to_the_checks_without_a_look_at_the_gpus(resource: object) -> None:
    def fail() -> list[int]:
        raise AssertionError("asked for GPUs")

    assert with_gpu_replicas(resource, fail) == resource


def replicas(cores: int, memory_gib: float = 64) -> tuple[int, int]:
    spec = sized_pipeline(cores, memory_gib).spec
    return spec.talker.replicas, spec.codec.replicas


def test_two_cores_run_the_default_pipeline() -> None:
    assert sized_pipeline(1, 64) == sized_pipeline(2, 64) == default_pipeline()


@pytest.mark.parametrize(("cores", "expected"), [(3, (1, 2)), (4, (2, 2)), (8, (4, 4)), (16, (8, 8)), (96, (16, 16))])
def test_more_cores_run_as_many_talkers_as_codecs(cores: int, expected: tuple[int, int]) -> None:
    assert replicas(cores) == expected


def test_the_processes_fit_the_memory() -> None:
    assert sum(replicas(64, memory_gib=4)) == 8
    assert replicas(8, memory_gib=0.25) == (1, 1)


@pytest.mark.parametrize(("quota", "cores"), [("100000 100000", 1), ("50000 100000", 1), ("99900000 100000", None)])
def test_a_container_has_the_cores_of_its_quota(tmp_path: Path, quota: str, cores: int | None) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    unlimited = usable_cores(tmp_path / "missing")
    assert usable_cores(tmp_path / "cpu.max") == (cores or unlimited)
    (tmp_path / "cpu.max").write_text("max 100000")
    assert usable_cores(tmp_path / "cpu.max") == unlimited
