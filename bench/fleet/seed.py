"""Creates pipelines as the operator does, but without HTTP and in one process, which takes a fraction of the time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from support.kube import KubeCluster
from support.kube.api import Write
from support.kube.errors import ApiError as Refusal
from syrinx_operator.cluster.config import options
from syrinx_operator.cluster.objects.kinds import Kind
from syrinx_operator.cluster.objects.names import FIELD_MANAGER
from syrinx_operator.cluster.objects.state import Manifest
from syrinx_operator.cluster.reconcile.reconciler import Reconciler
from syrinx_operator.cluster.watch.api import Api, ApiError, WatchEvent
from syrinx_operator.cluster.watch.cache import Cache
from syrinx_operator.cluster.watch.lease import Leases
from syrinx_operator.cluster.watch.stage_api import StageApi
from syrinx_operator.cluster.watch.telemetry import Telemetry
from syrinx_operator.cluster.watch.workqueue import NamespacedName, Outcome

ENVIRONMENT = {"SYRINX_STAGE_ACCESS": "direct", "SYRINX_STAGES_IMAGE": "syrinx/stages:1"}
"""Of the operator, also when it runs as a process."""


class DirectApi(Api):
    """The operator's client, on the emulator's storage. Its watches are silent."""

    def __init__(self, cluster: KubeCluster, telemetry: Telemetry) -> None:
        super().__init__(telemetry)
        self._cluster = cluster

    async def json(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "",
        accept: str = "",
        seconds: float = 0.0,
    ) -> Manifest:
        """Does what the request asks for. Raises ApiError."""
        api, write = self._cluster.api, Write(FIELD_MANAGER, force=method == "PATCH")
        found: Manifest
        try:
            target = self._cluster.server._target(path)
            kind, namespace, name = target.kind, target.namespace, target.name
            match method:
                case "GET" if not name:
                    version = str(self._cluster.store.version)
                    found = {
                        "metadata": {"resourceVersion": version},
                        "items": self._cluster.store.all(kind, namespace),
                    }
                case "GET":
                    found = api.get(kind, namespace, name)
                case "POST":
                    found = api.create(kind, namespace, body, write)
                case "PUT":
                    found = api.replace(kind, namespace, name, body, write)
                case "DELETE":
                    found = api.delete(kind, namespace, name, body)
                case _:
                    found, _ = api.patch(kind, namespace, name, body, content_type, write, target.subresource)
        except Refusal as error:
            raise ApiError(error.code, error.reason, str(error)) from None
        return found

    @contextlib.asynccontextmanager
    async def watch(
        self, kind: Kind, namespace: str | None, selector: str, version: str, seconds: float
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """Yields no change."""
        yield _never()


async def _never() -> AsyncIterator[WatchEvent]:
    await asyncio.Event().wait()
    yield WatchEvent("BOOKMARK", {})


async def reconcile(cluster: KubeCluster, pipelines: Iterable[NamespacedName]) -> None:
    """Creates the objects of pipelines."""
    settings = options(ENVIRONMENT | {"POD_NAME": "seed", "SYRINX_RELIST_SECONDS": "3600"})
    telemetry = Telemetry()
    api = DirectApi(cluster, telemetry)
    cache = Cache(api, None, lambda *_: None, relist_seconds=settings.relist_seconds, max_backoff_seconds=60.0)
    lease = NamespacedName("default", settings.lease_name)
    leases = Leases(api, settings.identity, lease, 3600.0, cache.outdate)
    async with StageApi(api, settings.access, telemetry) as stages:
        reconciler = Reconciler(
            api=api, cache=cache, leases=leases, stages=stages, telemetry=telemetry, options=settings
        )
        cache.start()
        try:
            for key in pipelines:
                await cache.require_current(key.namespace)
                result = await reconciler.reconcile(key, 0)
                if result.outcome is not Outcome.SUCCEEDED:
                    raise RuntimeError(f"{key}: {result.message}")
        finally:
            await leases.release()
            await cache.close()
