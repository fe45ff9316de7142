"""The live TTSPipeline object as the typed resource. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from syrinx_operator.cluster.state import Manifest, Owner
from syrinx_operator.resource.check import field_name, problems_of
from syrinx_operator.resource.rules import cluster_violations
from syrinx_operator.resource.spec import TTSPipeline


class InvalidSpec(Exception):
    """The resource breaks its schema or its rules."""

    def __init__(self, messages: list[str]) -> None:
        super().__init__("; ".join(messages))
        self.messages = messages
        """One per field, each naming it."""


def owner_of(live: Manifest) -> Owner:
    """Who owns the pipeline's objects."""
    metadata = live["metadata"]
    return Owner(metadata["name"], metadata["namespace"], metadata["uid"], metadata.get("generation", 0))


def parse(live: Manifest) -> TTSPipeline:
    """The resource without what the API server adds. Raises `InvalidSpec`.

    The schema at the API server may be older or newer than this operator: what it let through is checked again.
    """
    document: dict[str, Any] = {
        "apiVersion": live["apiVersion"],
        "kind": live["kind"],
        "metadata": {"name": live["metadata"]["name"]},
        "spec": live.get("spec") or {},
    }
    found = [f"{field_name(path)}: {message}" for path, message in problems_of(document)]
    if found:
        raise InvalidSpec(found)
    pipeline = msgspec.convert(document, TTSPipeline)
    broken = [f"{field_name(violation.path)}: {violation.message}" for violation in cluster_violations(pipeline)]
    if broken:
        raise InvalidSpec(broken)
    return pipeline
