"""`KubeCluster`: a Kubernetes cluster in the test's process, with an HTTP API."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import yaml
from aiohttp import web

from support.kube import select
from support.kube.api import APPLY, MERGE, Api, Write
from support.kube.apply import copy
from support.kube.controllers import Manager
from support.kube.deployments import Deployments
from support.kube.errors import ApiError
from support.kube.faults import Faults
from support.kube.garbage import GarbageCollector
from support.kube.idle import IdleKubelet
from support.kube.kinds import POD_MONITOR_CRD, Kinds
from support.kube.networks import Addresses
from support.kube.real import RealKubelet
from support.kube.rights import Rights
from support.kube.server import Request, Server
from support.kube.services import ServiceProxy
from support.kube.stateful import StatefulSets
from support.kube.store import Object, Store
from support.kube.watch import Watches
from syrinx_stages.runtime.clock import monotonic

NAMESPACE = "default"


class KubeCluster:
    """A cluster that serves at `cluster.url` within `async with KubeCluster() as cluster:`.

    `pods` is `idle` (no processes: see `IdleKubelet`) or `real` (local processes: see `RealKubelet`). Methods that
    take a kind take any of its names; `namespace` is `default` unless told otherwise. What is done by these methods
    is done as `kubectl`, without HTTP, and is not subject to faults and rights.
    """

    def __init__(
        self,
        *,
        pods: Literal["idle", "real"] = "idle",
        rights: Rights | None = None,
        crd: Object | Path | None = None,
        pod_monitors: bool = False,
        families: Sequence[str] = ("IPv4",),
    ) -> None:
        self.store = Store()
        self.addresses = Addresses(families)
        self.api = Api(Kinds(), self.store, self.addresses)
        self.watches = Watches(self.store)
        self.faults = Faults()
        self.rights = rights
        self.server = Server(self.api, self.watches, self.faults, rights)
        self.kubelet: Any = (RealKubelet if pods == "real" else IdleKubelet)(self.api, self.addresses)
        self.proxy = ServiceProxy(self.api)
        controllers = [Deployments(self.api), StatefulSets(self.api), self.kubelet, GarbageCollector(self.api)]
        if pods == "real":
            self.server.read_log = self.kubelet.logs
            controllers.append(self.proxy)
        self.manager = Manager(self.api, controllers)
        self._cleanup = contextlib.AsyncExitStack()
        self._crds = [_read(crd) if isinstance(crd, Path) else crd] if crd else []
        self._crds += [POD_MONITOR_CRD] if pod_monitors else []

    async def __aenter__(self) -> Self:
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        for crd in self._crds:
            self.apply(crd)
        runner = web.ServerRunner(web.Server(self.server), shutdown_timeout=1.0)
        await runner.setup()
        self._cleanup.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._cleanup.push_async_callback(self._stop)
        self._running = asyncio.create_task(self.manager.run(), name="the cluster's controllers")
        self.manager.wake()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._cleanup.aclose()

    async def _stop(self) -> None:
        failed = self._running.done()
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        self.faults.clear()
        self.watches.drop()
        if self.server.proxied is not None:
            await self.server.proxied.close()
        await self.proxy.close()
        await self.kubelet.close()
        if failed:
            self._running.result()

    @property
    def requests(self) -> list[Request]:
        """All HTTP requests so far."""
        return self.server.seen

    @property
    def writes(self) -> list[Request]:
        """All writing HTTP requests so far."""
        return [request for request in self.requests if request.method in ("POST", "PUT", "PATCH", "DELETE")]

    def kubeconfig(self, path: Path, namespace: str = NAMESPACE) -> Path:
        """Writes a kubeconfig and returns its path."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "users": [{"name": "operator", "user": {"token": "operator"}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "operator", "namespace": namespace}}],
            "current-context": "test",
        }
        path.write_text(yaml.safe_dump(config))
        return path

    def apply(self, obj: Object, *, namespace: str = NAMESPACE) -> Object:
        """Server-side apply with force."""
        kind = self.api.kinds.of(obj)
        where = obj["metadata"].get("namespace", namespace) if kind.namespaced else None
        applied, _ = self.api.patch(kind, where, obj["metadata"]["name"], obj, APPLY, Write("kubectl", force=True))
        return copy(applied)

    def get(self, kind: str, name: str, namespace: str = NAMESPACE) -> Object:
        """Returns an object. Raises ApiError 404."""
        return copy(self.api.get(self.api.kinds.named(kind), namespace, name))

    def find(self, kind: str, name: str, namespace: str = NAMESPACE) -> Object | None:
        """Returns an object; None if it does not exist."""
        return copy(self.store.get(self.api.kinds.named(kind), namespace, name))

    def list(self, kind: str, labels: str = "", namespace: str | None = NAMESPACE) -> list[Object]:
        """Returns objects sorted by name; of all namespaces if `namespace` is None."""
        found = self.api.kinds.named(kind)
        test = select.by_query(labels)
        return [copy(obj) for obj in self.store.all(found, namespace if found.namespaced else None) if test(obj)]

    def patch(
        self,
        kind: str,
        name: str,
        patch: Object,
        *,
        manager: str = "kubectl",
        subresource: str = "",
        namespace: str = NAMESPACE,
    ) -> Object:
        """Applies a merge patch (RFC 7386)."""
        found = self.api.kinds.named(kind)
        changed, _ = self.api.patch(found, namespace, name, patch, MERGE, Write(manager), subresource)
        return copy(changed)

    def delete(self, kind: str, name: str, namespace: str = NAMESPACE, **options: Any) -> None:
        self.api.delete(self.api.kinds.named(kind), namespace, name, options)

    async def wait(self, holds: Callable[[], Any], seconds: float, what: str) -> Any:
        """Waits until `holds()` is true and returns its result; a missing object counts as false. Fails with `what`."""
        deadline = monotonic() + seconds
        while True:
            self._raise_failures()
            with contextlib.suppress(LookupError, ApiError):
                if found := holds():
                    return found
            if monotonic() > deadline:
                raise AssertionError(f"not within {seconds:g} s: {what}\n{self.describe()}")
            await asyncio.sleep(0.05)

    def _raise_failures(self) -> None:
        """Raises an error of the emulator itself, so that no test waits for a timeout instead."""
        if self._running.done():
            self._running.result()
        for failure in self.kubelet.failures:
            raise failure

    def service_url(self, name: str, namespace: str = NAMESPACE) -> str:
        """Returns the URL of a Service's first port; requires real pods."""
        spec = self.get("service", name, namespace)["spec"]
        return f"http://{spec['clusterIP']}:{spec['ports'][0]['port']}"

    def describe(self) -> str:
        """Returns a short description of all objects."""
        lines = []
        for obj in self.store.everything():
            kind, meta = self.api.kinds.of(obj), obj["metadata"]
            if kind.kind in ("Pod", "StatefulSet", "Deployment") or kind.crd is not None:
                lines.append(f"{kind.kind} {meta['name']}: {_brief(obj.get('status', {}))}")
        return "\n".join(lines)


@cache
def _read(path: Path) -> Object:
    found: Object = yaml.safe_load(path.read_text())
    return found


def _brief(status: Object) -> str:
    conditions = [
        f"{found['type']}={found['status']} {found.get('reason', '')} {found.get('message', '')}".strip()
        for found in status.get("conditions", ())
    ]
    counts = {key: value for key, value in status.items() if isinstance(value, int | str)}
    return f"{counts} {'; '.join(conditions)}"
