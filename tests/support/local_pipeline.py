"""Local pipelines of real processes, for tests of anything but admission."""

from msgspec import structs

from syrinx_operator.local.pipeline import LocalPipeline
from syrinx_operator.resource.spec import TTSPipeline, default_pipeline

MAX_QUEUE_SECONDS = 600.0
"""A busy machine may serve one request after the other."""


def local_pipeline(pipeline: TTSPipeline, **options: object) -> LocalPipeline:
    """Returns a pipeline on a free port that refuses no request because the machine is busy."""
    gateway = structs.replace(pipeline.spec.gateway, max_queue_seconds=MAX_QUEUE_SECONDS)
    patient = structs.replace(pipeline, spec=structs.replace(pipeline.spec, gateway=gateway))
    return LocalPipeline(patient, port=0, **options)


def replicated(name: str = "demo", **replicas: int) -> TTSPipeline:
    """Returns the default pipeline with so many replicas of stages."""
    default = default_pipeline(name)
    stages = {stage: structs.replace(getattr(default.spec, stage), replicas=n) for stage, n in replicas.items()}
    return structs.replace(default, spec=structs.replace(default.spec, **stages))
