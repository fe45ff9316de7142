"""Reads the tuning status of a TTSPipeline from the API server. Needs the operator's packages."""

from __future__ import annotations

from typing import Any

import msgspec
from kubernetes.aio.config import ConfigException

from syrinx_operator.cluster.api import Api, ApiError
from syrinx_operator.cluster.kinds import PIPELINE
from syrinx_operator.cluster.state import InvalidSpec, parse_pipeline
from syrinx_operator.cluster.telemetry import Telemetry
from syrinx_operator.commands.tune.source import TuneError
from syrinx_operator.commands.tune.view import View
from syrinx_operator.resource.knobs import setting_of
from syrinx_operator.resource.spec import TTSPipeline
from syrinx_operator.resource.status import SloStatus
from syrinx_operator.resource.tuning_status import State


class Cluster:
    """A pipeline on the Kubernetes cluster that KUBECONFIG names."""

    def __init__(self, namespace: str, name: str) -> None:
        self._namespace = namespace
        self._name = name

    async def view(self) -> View:
        """Returns the tuning state from the resource's status. Raises `TuneError`."""
        pipeline, status = await self._read()
        if pipeline.spec.tuning.mode == "Off":
            raise TuneError(f"{self._name} is not tuned: its spec.tuning.mode is Off; Recommend and Auto tune")
        if not status.get("tuning"):
            raise TuneError(f"the status of {self._name} has no tuning state: is the operator running?")
        try:
            state = msgspec.convert(status["tuning"], State)
            slo = msgspec.convert(status.get("slo") or [], tuple[SloStatus, ...])
        except msgspec.ValidationError as error:
            raise TuneError(
                f"the status of {self._name} was written by another version of the operator: {error}"
            ) from None
        return View(
            name=self._name,
            location=f"namespace {self._namespace}",
            state=state,
            requested=setting_of(pipeline.spec),
            objectives=pipeline.spec.slo.ttfa,
            slo=slo,
        )

    async def load(self) -> str:
        """Returns an empty string: the gateways of a cluster are not reachable from here."""
        return ""

    async def _read(self) -> tuple[TTSPipeline, dict[str, Any]]:
        """Returns the resource and its status. Raises `TuneError`."""
        try:
            async with Api(Telemetry()) as api:
                live = await api.get(PIPELINE, self._namespace, self._name)
            return parse_pipeline(live), live.get("status") or {}
        except ConfigException as error:
            raise TuneError(f"no cluster configuration: {error}; set KUBECONFIG to a kubeconfig file") from None
        except ApiError as error:
            if error.not_found:
                raise TuneError(f"there is no TTSPipeline {self._name} in namespace {self._namespace}") from None
            raise TuneError(f"the API server refused the request: {error}") from None
        except InvalidSpec as error:
            raise TuneError(f"{self._name} is not valid: {error}") from None
