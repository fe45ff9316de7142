"""`python -m syrinx_operator.cluster.selftest NAMESPACE`: whether this cluster holds pipelines to their schema.

What `helm test` runs. Every request is a dry run: nothing is made.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Final

from syrinx_operator.cluster.api import Api, ApiError
from syrinx_operator.cluster.kinds import PIPELINE
from syrinx_operator.cluster.telemetry import Telemetry

NAME: Final = "syrinx-selftest"
REFUSED: Final[dict[str, dict[str, Any]]] = {
    # By the schema, by a rule between fields, and by its not being there.
    "spec.talker.replicas": {"talker": {"replicas": 0}},
    "spec.codec.maxNumSeqs": {"codec": {"maxNumSeqs": 64, "maxResident": 8}},
    "spec.talkr": {"talkr": {}},
}
"""Specs that the API server must refuse, by the field that it must name."""


class SelftestFailed(Exception):
    """The cluster does not hold pipelines to their schema; the message says where."""


async def selftest(api: Api, namespace: str) -> None:
    """Asks for one pipeline that is right and some that are not. Raises `SelftestFailed`."""
    refusal = await _refusal(api, namespace, {})
    if refusal is not None:
        raise SelftestFailed(f"a pipeline with the bundled voice is refused: {refusal}")
    for field, spec in REFUSED.items():
        refusal = await _refusal(api, namespace, spec)
        if refusal is None:
            raise SelftestFailed(f"a wrong {field} is accepted: install the chart syrinx-crds of this version")
        if field.rpartition(".")[2] not in refusal:
            raise SelftestFailed(f"a wrong {field} is refused without naming it: {refusal}")


async def _refusal(api: Api, namespace: str, spec: dict[str, Any]) -> str | None:
    """What the API server has against a pipeline; None if it would take it."""
    pipeline = {"apiVersion": PIPELINE.api_version, "kind": PIPELINE.kind, "metadata": {"name": NAME}, "spec": spec}
    query = {"dryRun": "All", "fieldValidation": "Strict"}
    try:
        await api.json("POST", PIPELINE.path(namespace), query=query, body=pipeline)
    except ApiError as error:
        if error.status in (400, 422):
            return str(error)
        raise SelftestFailed(f"the API server does not say whether it would take a pipeline: {error}") from None
    return None


async def _main(namespace: str) -> str | None:
    async with Api(Telemetry()) as api:
        try:
            await selftest(api, namespace)
        except SelftestFailed as error:
            return str(error)
    print(f"a pipeline is accepted in {namespace}; {len(REFUSED)} wrong ones are refused, by the field's name")
    return None


if __name__ == "__main__":
    sys.exit(asyncio.run(_main(sys.argv[1])))
