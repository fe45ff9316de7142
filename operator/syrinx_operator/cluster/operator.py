"""The operator process: creates and connects its parts, and maps watch events to reconciles."""

import asyncio
import contextlib
import logging
from typing import Any, Final

import kopf

from syrinx_operator.cluster import names
from syrinx_operator.cluster.api import Api, ApiError, load_configuration
from syrinx_operator.cluster.config import Options, config_line
from syrinx_operator.cluster.kinds import PIPELINE, POD, WATCHED
from syrinx_operator.cluster.lease import Leases
from syrinx_operator.cluster.objects import Objects
from syrinx_operator.cluster.reconcile import Reconciler
from syrinx_operator.cluster.stage_api import StageApi
from syrinx_operator.cluster.telemetry import HealthServer, Telemetry
from syrinx_operator.cluster.tuning import MetricsReader, TuningRunner
from syrinx_operator.cluster.workqueue import NamespacedName, WorkQueue
from syrinx_operator.tuner.runner import Tuner

log = logging.getLogger(__name__)

CRD_CHECK_SECONDS: Final = 5.0
MANAGED_SELECTOR: Final = f"app.kubernetes.io/managed-by={names.FIELD_MANAGER}"


class Operator:
    """Reconciles pipelines. Its public methods are kopf handlers: `start`, then the event methods, then `stop`."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._telemetry = Telemetry()
        self._cleanup = contextlib.AsyncExitStack()
        self._lease_keeper: asyncio.Task[None] | None = None
        self._queue: WorkQueue | None = None

    async def start(self, settings: kopf.OperatorSettings, **_: Any) -> None:
        """Configures kopf and starts all parts; returns once the cluster serves the CRD.

        Raises OSError if the port is in use, and ConfigException if no API server is configured.
        """
        configure(settings)
        log.info("configuration: %s", config_line(self._options))
        options, telemetry, enter = self._options, self._telemetry, self._cleanup.enter_async_context
        await enter(
            HealthServer(
                options.port,
                telemetry,
                healthy=self._unhealthy,
                ready=lambda: None if self._queue else "waiting for the API server to serve TTSPipelines",
                before_scrape=self._set_gauges,
            )
        )
        api = await enter(Api(telemetry))
        await _wait_for_crd(api)
        stages = await enter(StageApi(api, options.access, telemetry))
        leases = Leases(api, options.identity, options.lease_seconds)
        self._cleanup.push_async_callback(leases.release)
        self._lease_keeper = asyncio.create_task(leases.keep(), name="leases")
        self._cleanup.callback(self._lease_keeper.cancel)
        reconciler = Reconciler(
            api=api,
            leases=leases,
            objects=Objects(api, telemetry, leases.fence),
            stages=stages,
            tuning=TuningRunner(MetricsReader(options.prometheus), Tuner(), telemetry.tuning, stages.scrape),
            conditions=telemetry.conditions,
            options=options,
        )
        self._queue = WorkQueue(
            reconciler.reconcile, resync_seconds=options.resync_seconds, telemetry=telemetry, forget=reconciler.forget
        )
        self._cleanup.push_async_callback(self._queue.close)
        log.info("operator %s is ready", options.identity)

    async def stop(self, **_: Any) -> None:
        """Cancels running reconciles and releases the Leases."""
        await self._cleanup.aclose()

    async def pipeline_event(self, event: kopf.RawEvent, **_: Any) -> None:
        """Handles a watch event of a pipeline."""
        assert self._queue is not None
        metadata = event["object"]["metadata"]
        key = NamespacedName(metadata["namespace"], metadata["name"])
        if event["type"] == "MODIFIED" and "deletionTimestamp" not in metadata:
            # Our own status updates cause events too; only a new generation is an edit.
            self._queue.add_version(key, (metadata["uid"], metadata.get("generation")))
        else:
            self._queue.add(key)

    async def child_event(self, event: kopf.RawEvent, **_: Any) -> None:
        """Handles a watch event of an object that belongs to a pipeline."""
        assert self._queue is not None
        metadata = event["object"]["metadata"]
        pipeline = metadata.get("labels", {}).get(names.PIPELINE_LABEL)
        if pipeline:
            self._queue.add_known(NamespacedName(metadata["namespace"], pipeline))

    def _unhealthy(self) -> str | None:
        if self._lease_keeper is not None and self._lease_keeper.done():
            return "Leases are no longer renewed"
        stuck = self._queue.stuck() if self._queue else []
        return f"stuck: {', '.join(map(str, stuck))}" if stuck else None

    def _set_gauges(self) -> None:
        if self._queue is None:
            return
        self._telemetry.oldest_reconcile_age.set(self._queue.oldest_age())
        self._telemetry.pipelines.clear()
        for (condition, value), count in self._queue.condition_counts().items():
            self._telemetry.pipelines.labels(condition, value).set(count)


def configure(settings: kopf.OperatorSettings) -> None:
    """Configures kopf to only watch: it writes nothing and needs no rights beyond the watched kinds."""
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
        version = kind.api_version.rpartition("/")[2]
        settings.watching.label_selectors[kind.group, version, kind.plural] = MANAGED_SELECTOR
    for noisy in ("httpx", "kopf.objects", "kopf.activities"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


async def connection(**_: Any) -> kopf.ConnectionInfo:
    """Returns kopf's connection to the API server, with the same configuration as `Api`."""
    found = await load_configuration()
    scheme, token = (found.api_key.get("BearerToken") or "").partition(" ")[::2]
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


async def _wait_for_crd(api: Api) -> None:
    while True:
        try:
            if await api.serves(PIPELINE):
                return
            log.warning("the cluster does not serve TTSPipelines (%s): install the CRD", PIPELINE.api_version)
        except ApiError as error:
            log.warning("cannot start yet: %s", error)
        await asyncio.sleep(CRD_CHECK_SECONDS)
