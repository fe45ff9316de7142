"""The operator as a whole: what lives as long as its process, put together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Any, Final

import kopf

from syrinx_operator.cluster import names
from syrinx_operator.cluster.api import Api, ApiError, load_configuration
from syrinx_operator.cluster.apply import Executor
from syrinx_operator.cluster.config import Options
from syrinx_operator.cluster.decider import Decider
from syrinx_operator.cluster.health import HealthServer
from syrinx_operator.cluster.kinds import PIPELINE, POD, WATCHED
from syrinx_operator.cluster.lease import Leases
from syrinx_operator.cluster.loop import Key, Loop
from syrinx_operator.cluster.measure import Meter
from syrinx_operator.cluster.reconcile import Reconciler
from syrinx_operator.cluster.stage_api import StageApi
from syrinx_operator.cluster.telemetry import Telemetry
from syrinx_operator.tuner.runner import Tuner

log = logging.getLogger(__name__)

CRD_SECONDS: Final = 5.0
"""Between two looks for the resource's definition, while the cluster does not have it."""
MANAGED_SELECTOR: Final = f"app.kubernetes.io/managed-by={names.FIELD_MANAGER}"


class Operator:
    """Wakes pipelines for what kopf sees, and does the rest. `start`, then events, then `stop`."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._telemetry = Telemetry()
        self._cleanup = contextlib.AsyncExitStack()
        self._keeper: asyncio.Task[None] | None = None
        self._loop: Loop | None = None

    async def start(self) -> None:
        """Returns once the cluster serves the resource.

        Raises `OSError` if its port is taken, `ConfigException` if nothing says where the API server is.
        """
        server = HealthServer(
            self._options.port,
            self._telemetry,
            healthy=self._unhealthy,
            ready=lambda: None if self._loop else "waits for the API server to serve TTSPipelines",
            before_scrape=self._gather,
        )
        await self._cleanup.enter_async_context(server)
        api = await self._cleanup.enter_async_context(Api(self._telemetry))
        await _until_served(api)
        stages = await self._cleanup.enter_async_context(StageApi(api, self._options.access, self._telemetry))
        meter = await self._cleanup.enter_async_context(Meter(self._options.prometheus))
        leases = Leases(api, self._options.identity, self._options.lease_seconds)
        self._cleanup.push_async_callback(leases.release)
        self._keeper = asyncio.create_task(leases.keep(), name="leases")
        self._cleanup.push_async_callback(_cancel, self._keeper)
        reconciler = Reconciler(
            api=api,
            leases=leases,
            executor=Executor(api, self._telemetry, leases.fence),
            stages=stages,
            decider=Decider(meter, Tuner(), self._telemetry.tuning, stages.scrape),
            options=self._options,
        )
        self._loop = Loop(
            reconciler.reconcile,
            period=self._options.resync_seconds,
            telemetry=self._telemetry,
            forget=reconciler.forget,
        )
        self._cleanup.push_async_callback(self._loop.close)
        log.info("operator %s is at work", self._options.identity)

    async def stop(self) -> None:
        """Ends what is under way and gives the Leases back."""
        await self._cleanup.aclose()

    def pipeline_event(self, event: Mapping[str, Any]) -> None:
        """A pipeline was listed, made, changed or deleted."""
        assert self._loop is not None
        metadata = event["object"]["metadata"]
        key = Key(metadata["namespace"], metadata["name"])
        if event["type"] == "MODIFIED" and "deletionTimestamp" not in metadata:
            # Its status changes with every look: only its spec is news.
            self._loop.edited(key, (metadata["uid"], metadata.get("generation")))
        else:
            self._loop.wake(key)

    def child_event(self, event: Mapping[str, Any]) -> None:
        """An object of a pipeline was made, changed or deleted."""
        assert self._loop is not None
        metadata = event["object"]["metadata"]
        pipeline = metadata.get("labels", {}).get(names.PIPELINE_LABEL)
        if pipeline:
            self._loop.wake_known(Key(metadata["namespace"], pipeline))

    def _unhealthy(self) -> str | None:
        if self._keeper is not None and self._keeper.done():
            return "Leases are not renewed any more"
        stuck = self._loop.stuck() if self._loop else []
        return f"stuck: {', '.join(map(str, stuck))}" if stuck else None

    def _gather(self) -> None:
        if self._loop is None:
            return
        self._telemetry.last_tick_age.set(self._loop.oldest_age())
        self._telemetry.pipelines.clear()
        for (condition, value), count in self._loop.conditions().items():
            self._telemetry.pipelines.labels(condition, value).set(count)


def configure(settings: kopf.OperatorSettings) -> None:
    """kopf as a watcher and no more: it writes nothing, and needs no rights beyond the watched kinds."""
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.networking.request_timeout = 30.0
    settings.networking.connect_timeout = 10.0
    settings.networking.trust_env = True
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.inactivity_timeout = 90.0
    settings.watching.reconnect_backoff = 1.0
    settings.process.ultimate_exiting_timeout = 25.0
    for kind in (POD, *WATCHED):
        group, _, version = kind.api_version.rpartition("/")
        settings.watching.label_selectors[group, version, kind.plural] = MANAGED_SELECTOR
    for noisy in ("httpx", "kopf.objects", "kopf.activities"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


async def connection() -> kopf.ConnectionInfo:
    """kopf's way to the API server: the same as ours."""
    found = await load_configuration()
    scheme, _, token = (found.api_key.get("BearerToken") or "").partition(" ")
    return kopf.ConnectionInfo(
        server=found.host,
        ca_path=found.ssl_ca_cert,
        insecure=not found.verify_ssl,
        username=found.username or None,
        password=found.password or None,
        scheme=scheme or None,
        token=token.strip() or None,
        certificate_path=found.cert_file,
        private_key_path=found.key_file,
        proxy_url=found.proxy,
        trust_env=True,
    )


async def _until_served(api: Api) -> None:
    while True:
        try:
            if await api.serves(PIPELINE):
                return
            log.warning("the cluster has no TTSPipelines (%s) yet: install their CRD", PIPELINE.api_version)
        except ApiError as error:
            log.warning("cannot start yet: %s", error)
        await asyncio.sleep(CRD_SECONDS)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
