"""The default pipeline of `syrinx up`: as many talkers and codecs as the machine's cores can run."""

from msgspec import structs

from syrinx_operator.resource.spec import TTSPipeline, default_pipeline

MAX_CORES = 32
"""More replicas of each stage share less, and one gateway serves no more."""
GIB_PER_PROCESS = 0.5


def sized_pipeline(cores: int, memory_gib: float) -> TTSPipeline:
    """Returns a pipeline of the bundled voice for a machine: a talker and a codec for every two cores."""
    cores = max(2, min(cores, MAX_CORES, int(memory_gib / GIB_PER_PROCESS)))
    pipeline = default_pipeline()
    talker = structs.replace(pipeline.spec.talker, replicas=cores // 2)
    codec = structs.replace(pipeline.spec.codec, replicas=cores - cores // 2)
    return structs.replace(pipeline, spec=structs.replace(pipeline.spec, talker=talker, codec=codec))
