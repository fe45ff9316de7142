"""The emulated cluster of the tests in a process of its own: `python -m fleet.cluster KUBECONFIG`.

It reads commands from standard input, one a line, and answers each with a line of JSON.
"""

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from fleet.seed import reconcile
from support.kube import KubeCluster
from support.kube.controllers import is_ready
from support.stage_metrics import Gateway, Worker
from syrinx_operator.cluster.watch.workqueue import NamespacedName
from syrinx_operator.resource.spec import API_VERSION, KIND

CRD = Path(__file__).parents[2] / "crds" / "ttspipelines.syrinx.dev.yaml"

PACE_SECONDS = 1.0
POD_SECONDS = 120.0
REST_SECONDS = 5.0
"""Seconds without a change after which the controllers are done."""
PODS = 4
"""Pods of a pipeline: gateway, talker, codec, Redis."""


class Fleet:
    """The pipelines of a cluster. Each method is a command."""

    def __init__(self, cluster: KubeCluster) -> None:
        self._cluster = cluster

    async def create(self, count: str, namespaces: str) -> None:
        """Creates pipelines with the default spec, spread over namespaces, and waits for their pods."""
        self._cluster.manager.paused = True
        keys = [NamespacedName(f"team-{number % int(namespaces)}", f"voice-{number}") for number in range(int(count))]
        for namespace in {key.namespace for key in keys}:
            self._cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        for key in keys:
            pipeline = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": key.name}, "spec": {}}
            self._cluster.apply(pipeline, namespace=key.namespace)
        await reconcile(self._cluster, keys)
        self._cluster.manager.paused = False
        self._cluster.manager.wake()
        await self._cluster.wait(lambda: self._ready_pods() >= PODS * len(keys), POD_SECONDS, "all pods are ready")
        while await self._changes():
            pass
        # They have nothing to do while the pipelines are idle.
        self._cluster.manager.paused = True

    async def _changes(self) -> bool:
        version = self._cluster.store.version
        await asyncio.sleep(REST_SECONDS)
        return bool(self._cluster.store.version != version)

    def _ready_pods(self) -> int:
        return sum(map(is_ready, self._cluster.store.all(self._cluster.api.kinds.named("pod"))))

    async def ready(self) -> int:
        """Returns the number of pipelines that are Ready and no longer Progressing."""
        wanted = {("Ready", "True"), ("Progressing", "False")}
        kind = self._cluster.api.kinds.named("ttspipeline")
        pipelines = (each.get("status", {}) for each in self._cluster.store.all(kind))
        found = ({(each["type"], each["status"]) for each in status.get("conditions", ())} for status in pipelines)
        return sum(wanted <= conditions for conditions in found)

    async def requests(self) -> dict[str, int]:
        """Returns the number of requests so far, by verb and kind."""
        return Counter(
            f"{'WATCH' if each.query.get('watch') else each.method} {_kind(each.path)}"
            for each in self._cluster.requests
        )


def _kind(path: str) -> str:
    """Returns the plural in a path of the API."""
    steps = path.strip("/").split("/")
    steps = steps[2:] if steps[0] == "api" else steps[3:]
    steps = steps[2:] if steps[:1] == ["namespaces"] and len(steps) > 2 else steps
    return "/".join(steps[:1] + steps[2:])


async def main(kubeconfig: Path) -> None:
    """Runs the cluster until standard input ends."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    stages: dict[str, Any] = {"gateway": Gateway()} | {name: Worker(name, name) for name in ("talker", "codec")}
    stages["gateway"].serve(*[0.2] * 100)
    texts = {name: stage.text for name, stage in stages.items()}
    async with KubeCluster(crd=CRD, pod_monitors=True) as cluster:
        cluster.kubelet.admins.metrics = lambda pod: next((texts[name] for name in texts if f"-{name}-" in pod), "")
        cluster.manager.pace = PACE_SECONDS
        cluster.kubeconfig(kubeconfig)
        fleet = Fleet(cluster)
        print(json.dumps(cluster.url), flush=True)
        while line := (await reader.readline()).decode().split():
            print(json.dumps(await getattr(fleet, line[0])(*line[1:])), flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
