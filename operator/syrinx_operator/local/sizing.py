"""The default pipeline of `syrinx up`: as many talkers and codecs as the machine's cores can run."""

import math

from msgspec import structs

from syrinx_operator.resource.spec import TTSPipeline, default_pipeline

CORES_PER_TALKER = 4
"""A talker that batches 16 requests generates as much audio as three codecs decode."""
CORES_PER_GATEWAY = 8
"""Of this many cores, gateway, Redis and clients need one."""
ROWS = 16
"""`maxNumSeqs` of a talker with several codecs."""
MAX_CORES = 64
GIB_PER_PROCESS = 0.5


def sized_pipeline(cores: int, memory_gib: float) -> TTSPipeline:
    """Returns a pipeline of the bundled voice for a machine: 1 talker and 1 codec on two cores, 4 and 10 on 16."""
    cores = max(1, min(cores, MAX_CORES, int(memory_gib / GIB_PER_PROCESS)))
    talkers = math.ceil(cores / CORES_PER_TALKER)
    codecs = max(1, cores - talkers - cores // CORES_PER_GATEWAY)
    pipeline = default_pipeline()
    talker = structs.replace(pipeline.spec.talker, replicas=talkers)
    if codecs > talkers:
        talker = structs.replace(talker, max_num_seqs=ROWS)
    codec = structs.replace(pipeline.spec.codec, replicas=codecs)
    return structs.replace(pipeline, spec=structs.replace(pipeline.spec, talker=talker, codec=codec))
