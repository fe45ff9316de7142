"""The pipeline under test: real stage processes, each behind a proxy of its own to Redis."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
from msgspec import structs

from soak.proxy import Proxy
from soak.servers import Servers
from syrinx_operator import __version__
from syrinx_operator.local.events import Observer
from syrinx_operator.local.pipeline import stage_environment
from syrinx_operator.local.supervisor import Child
from syrinx_operator.resource.resolve import resolve
from syrinx_operator.resource.spec import API_VERSION, KIND, TTSPipeline
from syrinx_operator.resource.stage_config import StageProcess, plan_local
from syrinx_stages.contract.keys import Keys
from syrinx_stages.contract.stages import Stage

NAME = "soak"
START_SECONDS = 120.0
PROBE_TIMEOUT = 1.0
REPLICAS = 2
"""Of each stage."""


class Pipeline:
    """The stage processes. They are restarted when they die, as Kubernetes would."""

    def __init__(self, servers: Servers, directory: Path) -> None:
        self._servers = servers
        self._directory = directory
        self._plan = _plan()
        config = self._plan[0].config
        self.keys = Keys(config.pipeline, config.generation)
        self.children: dict[str, Child] = {}
        self.proxies: dict[str, Proxy] = {}

    @contextlib.asynccontextmanager
    async def running(self, observe: Observer) -> AsyncIterator[None]:
        """Runs the processes. Raises `LocalError` if one cannot start."""
        servers = [server.port for server in self._servers.servers]
        sentinels = [server.port for server in self._servers.sentinels]
        async with contextlib.AsyncExitStack() as stack:
            for process in self._plan:
                proxy = await stack.enter_async_context(Proxy(servers, sentinels))
                own = {
                    "REDIS_URL": self._servers.url(proxy.ports.__getitem__),
                    "REDIS_PASSWORD": self._servers.password,
                }
                child = Child(
                    process,
                    directory=self._directory,
                    environment=stage_environment(os.environ) | own,
                    observe=observe,
                    start_timeout=START_SECONDS,
                )
                self.children[child.name], self.proxies[child.name] = child, proxy
            for child in self.children.values():
                child.start()
                stack.push_async_callback(child.stop, 0.0)
            await asyncio.gather(*(child.ready() for child in self.children.values()))
            yield

    @property
    def gateways(self) -> dict[str, str]:
        """The URL of each gateway by its name."""
        return {name: child.url or "" for name, child in self.children.items() if child.stage == Stage.GATEWAY}

    def peers(self, name: str) -> Sequence[str]:
        """Returns the names of the other replicas of a process."""
        stage = self.children[name].stage
        return [other for other, child in self.children.items() if child.stage == stage and other != name]

    async def is_ready(self, name: str) -> bool:
        """Returns whether a process answers that it is ready."""
        try:
            async with httpx.AsyncClient(timeout=PROBE_TIMEOUT, trust_env=False, verify=False) as http:
                answer = await http.get(f"{self.children[name].admin_url}/readyz")
        except httpx.HTTPError:
            return False
        return answer.status_code == httpx.codes.OK


def _plan() -> list[StageProcess]:
    """Returns the processes: the defaults of a pipeline, and further gateways."""
    spec: dict[str, Any] = {
        "gateway": {"port": 0},
        "talker": {"replicas": REPLICAS},
        "codec": {"replicas": REPLICAS},
    }
    resource = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": NAME}, "spec": spec}
    *workers, gateway = plan_local(resolve(msgspec.convert(resource, TTSPipeline)), __version__)
    names = [f"{Stage.GATEWAY}-{number}" for number in range(REPLICAS)]
    return workers + [structs.replace(gateway, config=structs.replace(gateway.config, replica=name)) for name in names]
