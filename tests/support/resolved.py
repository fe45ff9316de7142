"""Resolved pipelines of a spec."""

from typing import Any

from msgspec import structs

from syrinx_operator.resource.resolve import ResolvedPipeline, resolve
from syrinx_operator.resource.spec import PipelineSpec, default_pipeline


def resolved(**spec: Any) -> ResolvedPipeline:
    """Returns the default pipeline with these fields of its spec."""
    return resolve(structs.replace(default_pipeline(), spec=PipelineSpec(**spec)))
