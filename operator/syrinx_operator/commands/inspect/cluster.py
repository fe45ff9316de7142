"""Reads and commands pipelines of a Kubernetes cluster, with the configuration of kubectl. Needs the operator extra."""

import contextlib
import os
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.kinds import BY_KIND, PIPELINE, POD

if TYPE_CHECKING:
    from syrinx_operator.cluster.watch.api import Api

Manifest = dict[str, Any]


class ClusterError(Exception):
    """The cluster cannot be read. The message says what to do."""


class Cluster:
    """The pipelines of one namespace. Errors of requests end `connect`."""

    def __init__(self, api: "Api", namespace: str) -> None:
        self._api = api
        self.namespace = namespace

    async def pipeline(self, name: str | None) -> Manifest:
        """Returns a pipeline, by default the only one. Raises ClusterError."""
        from syrinx_operator.cluster.watch.api import ApiError

        where = f"in namespace {self.namespace}"
        try:
            if name is not None:
                return await self._api.get(PIPELINE, self.namespace, name)
            found = (await self._api.list_objects(PIPELINE, self.namespace)).items
        except ApiError as error:
            if not error.not_found:
                raise
            which = "TTSPipeline" if name is None else f"TTSPipeline {name}"
            raise ClusterError(f"there is no {which} {where}") from None
        if not found:
            raise ClusterError(f"there is no TTSPipeline {where}; -n NAMESPACE selects another one")
        if len(found) > 1:
            several = ", ".join(each["metadata"]["name"] for each in found)
            raise ClusterError(f"name one of the pipelines {where}: {several}")
        return found[0]

    async def pods(self, pipeline: str) -> list[Manifest]:
        """Returns the pods of a pipeline."""
        return (await self._api.list_objects(POD, self.namespace, f"{names.PIPELINE_LABEL}={pipeline}")).items

    async def tuning_record(self, pipeline: str) -> str | None:
        """Returns the text in the ConfigMap of a pipeline's tuner state; None without one."""
        from syrinx_operator.cluster.plan.tuning_record import tuning_text
        from syrinx_operator.cluster.watch.api import if_found

        request = self._api.get(BY_KIND["ConfigMap"], self.namespace, names.tuning_record(pipeline))
        found = await if_found(request)
        return None if found is None else tuning_text(found)

    async def log(self, pod: str, container: str, *, previous: bool, lines: int) -> str:
        """Returns the end of a container's log; of the one before its last restart with `previous`."""
        query = {"container": container, "tailLines": str(lines)} | ({"previous": "true"} if previous else {})
        return await self._api.text(POD.path(self.namespace, pod, "log"), query)

    async def command(self, pipeline: str, action: str) -> None:
        """Gives a command about the canary of a pipeline."""
        body: Manifest = {"metadata": {"annotations": {names.ROLLOUT_ANNOTATION: action}}}
        await self._api.merge(PIPELINE, self.namespace, pipeline, body)


@contextlib.asynccontextmanager
async def connect(namespace: str | None) -> AsyncIterator[Cluster]:
    """Yields the pipelines of a namespace, by default that of kubectl's current context.

    Raises ClusterError, also for requests in its body.
    """
    try:
        from kubernetes.aio.config import ConfigException

        from syrinx_operator.cluster.watch.api import Api, ApiError
        from syrinx_operator.cluster.watch.telemetry import Telemetry
    except ImportError:
        raise ClusterError(
            "reading a cluster needs the operator extra: pip install -e '.[operator]' in the Syrinx checkout"
        ) from None
    try:
        async with Api(Telemetry()) as api:
            yield Cluster(api, namespace or current_namespace())
    except ConfigException as error:
        raise _unconfigured(error) from None
    except ApiError as error:
        raise ClusterError(f"the API server refused the request: {error}") from None


def current_namespace() -> str:
    """Returns the namespace of kubectl's current context. Raises ClusterError."""
    from kubernetes.aio.config import ConfigException, list_kube_config_contexts

    if os.environ.get("KUBERNETES_SERVICE_HOST") and not os.environ.get("KUBECONFIG"):
        return "default"
    try:
        _, current = list_kube_config_contexts()  # type: ignore[no-untyped-call]
    except ConfigException as error:
        raise _unconfigured(error) from None
    namespace: str = current["context"].get("namespace") or "default"
    return namespace


def _unconfigured(error: Exception) -> ClusterError:
    return ClusterError(f"no cluster configuration: {error}; set KUBECONFIG to a kubeconfig file")
