"""Numbers of replicas of `syrinx up`, where nothing sets them: as many as the machine's cores or GPUs can run."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import structs

from syrinx_operator.resource.spec import TTSPipeline, default_pipeline

MAX_CORES = 32
"""More replicas of each stage share less, and one gateway serves no more."""
GIB_PER_PROCESS = 0.5
MAX_GATEWAYS = 8
"""One Redis serves no more."""
STANDBY_BYTES = 38 << 30
"""Memory of a GPU on which a third of each stage's share has room for the weights of 1.7B and more than 100 requests:
what a GPU that is sold with 40 GB has."""


def sized_pipeline(cores: int, memory_gib: float) -> TTSPipeline:
    """Returns a pipeline of the bundled voice for a machine: a talker and a codec for every two cores."""
    cores = max(2, min(cores, MAX_CORES, int(memory_gib / GIB_PER_PROCESS)))
    pipeline = default_pipeline()
    talker = structs.replace(pipeline.spec.talker, replicas=cores // 2)
    codec = structs.replace(pipeline.spec.codec, replicas=cores - cores // 2)
    return structs.replace(pipeline, spec=structs.replace(pipeline.spec, talker=talker, codec=codec))


def with_gpu_replicas(resource: Any, gpus: Callable[[], Sequence[int]]) -> Any:
    """Returns a resource, as plain data that may be invalid, with a talker and a codec on each GPU.

    `gpus` returns the bytes of memory of each. Applies to stages with device cuda that leave `replicas` out. They get
    standbys, too, if the memory permits and the resource does not say otherwise. One gateway process serves about as
    many listeners as one GPU, so there is one more than GPUs, up to `MAX_GATEWAYS`, unless `spec.gateway.replicas` is
    given.
    """
    spec = resource.get("spec") if isinstance(resource, dict) else None
    if not isinstance(spec, dict):
        return resource
    stages = {name: spec.get(name) for name in ("talker", "codec")}
    added = {
        name: {**stage, "replicas": max(1, len(gpus()) // _gpus_of_a_replica(stage)), **_standby(stage, gpus())}
        for name, stage in stages.items()
        if isinstance(stage, dict) and stage.get("device") == "cuda" and "replicas" not in stage
    }
    if not added:
        return resource
    gateway = spec.get("gateway", {})
    if isinstance(gateway, dict) and "replicas" not in gateway:
        added["gateway"] = {**gateway, "replicas": min(1 + len(gpus()), MAX_GATEWAYS)}
    return {**resource, "spec": {**spec, **added}}


def _standby(stage: dict[str, Any], gpus: Sequence[int]) -> dict[str, bool]:
    """Returns the field `standby` of a stage that leaves it out, on GPUs of so many bytes."""
    has_room = min(gpus, default=0) >= STANDBY_BYTES and stage.get("engine") != "vllm"
    return {"standby": True} if has_room and "standby" not in stage else {}


def _gpus_of_a_replica(stage: dict[str, Any]) -> int:
    """Returns the tensor parallelism of a talker on vLLM, otherwise 1."""
    options = stage.get("vllm") if stage.get("engine") == "vllm" else None
    size = options.get("tensorParallelSize") if isinstance(options, dict) else None
    return size if isinstance(size, int) and size > 0 else 1
