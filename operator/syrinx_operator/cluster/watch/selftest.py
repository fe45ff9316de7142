"""`python -m syrinx_operator.cluster.watch.selftest NAMESPACE` checks that the cluster validates TTSPipelines.

`helm test` runs it. All requests are dry runs and create nothing.
"""

import asyncio
import sys
from typing import Any, Final

from syrinx_operator.cluster.objects.kinds import PIPELINE
from syrinx_operator.cluster.watch.api import Api, ApiError
from syrinx_operator.cluster.watch.telemetry import Telemetry

INVALID_SPECS: Final[dict[str, dict[str, Any]]] = {
    # Violates the schema, a CEL rule, and strict field validation.
    "spec.talker.replicas": {"talker": {"replicas": 0}},
    "spec.codec.maxNumSeqs": {"codec": {"maxNumSeqs": 64, "maxResident": 8}},
    "spec.talkr": {"talkr": {}},
}
"""Specs that the API server must reject, by the field that its message must name."""


class SelftestFailed(SystemExit):
    """The cluster does not validate TTSPipelines; the message, with which the process exits, says where."""


async def selftest(api: Api, namespace: str) -> None:
    """Submits one valid pipeline and several invalid ones as dry runs. Raises SelftestFailed."""
    rejection = await _rejection(api, namespace, {})
    if rejection is not None:
        raise SelftestFailed(f"a valid pipeline with the bundled voice is rejected: {rejection}")
    for field, spec in INVALID_SPECS.items():
        rejection = await _rejection(api, namespace, spec)
        if rejection is None:
            raise SelftestFailed(f"an invalid {field} is accepted: install the chart syrinx-crds of this version")
        if field.rpartition(".")[2] not in rejection:
            raise SelftestFailed(f"an invalid {field} is rejected without naming the field: {rejection}")


async def _rejection(api: Api, namespace: str, spec: dict[str, Any]) -> str | None:
    metadata = {"name": "syrinx-selftest"}
    pipeline = {"apiVersion": PIPELINE.api_version, "kind": PIPELINE.kind, "metadata": metadata, "spec": spec}
    query = {"dryRun": "All", "fieldValidation": "Strict"}
    try:
        await api.json("POST", PIPELINE.path(namespace), query=query, body=pipeline)
    except ApiError as error:
        if error.status in (400, 422):
            return str(error)
        raise SelftestFailed(f"the API server did not validate a pipeline: {error}") from None
    return None


async def _main(namespace: str) -> None:
    async with Api(Telemetry()) as api:
        await selftest(api, namespace)
    print(f"{namespace}: a valid pipeline is accepted; {len(INVALID_SPECS)} invalid ones are rejected by field name")


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))
