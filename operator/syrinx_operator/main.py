"""kopf handlers of the operator: `kopf run --standalone -m syrinx_operator.main -n NAMESPACE` (`-A`: all namespaces).

Handlers only enqueue a pipeline; `cluster.reconcile` reads its state from the cluster.
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
    """Starts the operator."""
    configure(settings)
    memo.operator = Operator(OPTIONS)
    await memo.operator.start()


@kopf.on.cleanup()
async def stop(memo: kopf.Memo, **_: Any) -> None:
    """Stops the operator."""
    await memo.operator.stop()


@kopf.on.login()
async def login(**_: Any) -> kopf.ConnectionInfo:
    """Returns address and credentials of the API server."""
    return await connection()


@kopf.on.event(PIPELINE.api_version, PIPELINE.plural)
async def pipeline_event(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """Handles a watch event of a pipeline."""
    memo.operator.pipeline_event(event)


async def child_event(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """Handles a watch event of an object that belongs to a pipeline."""
    memo.operator.child_event(event)


for kind in (POD, *WATCHED):
    kopf.on.event(kind.api_version, kind.plural)(child_event)
