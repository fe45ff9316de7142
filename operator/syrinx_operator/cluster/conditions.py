"""What is concluded about a pipeline: the tree of its conditions. Pure."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

ConditionType = Literal[
    "Ready",
    "GatewayReady",
    "TalkerReady",
    "CodecReady",
    "ConnectorReady",
    "MetricsAvailable",
    "Progressing",
    "Degraded",
]
ConditionStatus = Literal["True", "False", "Unknown"]
MAX_MESSAGE = 1024
"""Characters of a message; a longer one is cut."""


class Report(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What all parts of the status share: camelCase, and what is not known is left out."""


class Condition(Report, frozen=True, kw_only=True):
    """One conclusion, in the form that Kubernetes' own objects use."""

    type: Annotated[ConditionType, Meta(description="What it is about.")]
    status: Annotated[ConditionStatus, Meta(description="True, False, or Unknown where it cannot be told.")]
    reason: Annotated[
        str,
        Meta(
            pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
            max_length=128,
            description="Why, in one word for programs.",
        ),
    ]
    message: Annotated[str, Meta(max_length=MAX_MESSAGE, description="Why, and what helps, in words for people.")]
    last_transition_time: Annotated[
        str, Meta(description="When `status` changed last.", extra_json_schema={"format": "date-time"})
    ]
    observed_generation: Annotated[
        int, Meta(ge=0, description="metadata.generation of the resource that it was concluded for.")
    ]
