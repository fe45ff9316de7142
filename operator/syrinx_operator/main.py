"""The operator: `kopf run --standalone -m syrinx_operator.main -n NAMESPACE`, or `-A` for all namespaces.

Handlers only say that something happened; what is to be done is read from the cluster anew (`cluster.reconcile`).
"""

from __future__ import annotations

import os
from typing import Any

import kopf

from syrinx_operator.cluster.config import ConfigError, options
from syrinx_operator.cluster.kinds import PIPELINE, POD, WATCHED
from syrinx_operator.cluster.operator import Operator, configure, connection

try:
    OPTIONS = options(os.environ)
except ConfigError as error:
    raise SystemExit(f"syrinx-operator: {error}") from None


@kopf.on.startup(errors=kopf.ErrorsMode.PERMANENT)
async def start(settings: kopf.OperatorSettings, memo: kopf.Memo, **_: Any) -> None:
    """Makes the operator that all events go to."""
    configure(settings)
    memo.operator = Operator(OPTIONS)
    await memo.operator.start()


@kopf.on.cleanup()
async def stop(memo: kopf.Memo, **_: Any) -> None:
    """Ends it."""
    await memo.operator.stop()


@kopf.on.login()
async def login(**_: Any) -> kopf.ConnectionInfo:
    """Says how to reach the API server."""
    return await connection()


@kopf.on.event(PIPELINE.api_version, PIPELINE.plural)
async def pipeline_event(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """Something happened to a pipeline."""
    memo.operator.pipeline_event(event)


async def child_event(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """Something happened to an object of a pipeline."""
    memo.operator.child_event(event)


for kind in (POD, *WATCHED):
    kopf.on.event(kind.api_version, kind.plural)(child_event)
