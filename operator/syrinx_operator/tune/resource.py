"""A TTSPipeline as the API server has it. Needs the operator's packages, and the right to get the resource."""

from __future__ import annotations

from typing import Any

from kubernetes.aio.config import ConfigException

from syrinx_operator.cluster.api import Api, ApiError
from syrinx_operator.cluster.kinds import PIPELINE
from syrinx_operator.cluster.resource import InvalidSpec, parse
from syrinx_operator.cluster.telemetry import Telemetry
from syrinx_operator.spec import TTSPipeline
from syrinx_operator.tune.source import TuneError


async def read(namespace: str, name: str) -> tuple[TTSPipeline, dict[str, Any]]:
    """The resource and its status. Raises `TuneError`."""
    try:
        async with Api(Telemetry()) as api:
            live = await api.get(PIPELINE, namespace, name)
        return parse(live), live.get("status") or {}
    except ConfigException as error:
        raise TuneError(f"no cluster: {error}; KUBECONFIG names the file that leads to it") from None
    except ApiError as error:
        if error.not_found:
            raise TuneError(f"there is no TTSPipeline {name} in namespace {namespace}") from None
        raise TuneError(f"the cluster does not tell: {error}") from None
    except InvalidSpec as error:
        raise TuneError(f"{name} is not valid: {error}") from None
