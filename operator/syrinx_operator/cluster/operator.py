"""The operator process: creates and connects its parts, and maps changes in the cluster to reconciles."""

import asyncio
import contextlib
import itertools
import logging
import re
from collections.abc import Iterator
from typing import Any

import click
import kopf
from prometheus_client import generate_latest

from syrinx_operator.cluster.config import ConfigError, Options, config_line
from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.clock import Now, utc_now
from syrinx_operator.cluster.objects.kinds import CHILDREN, PIPELINE, Kind
from syrinx_operator.cluster.objects.state import Manifest
from syrinx_operator.cluster.reconcile.reconciler import Reconciler
from syrinx_operator.cluster.runners.canary_runner import command_of
from syrinx_operator.cluster.watch.api import Api, Configure, load_configuration
from syrinx_operator.cluster.watch.backoff import backoff
from syrinx_operator.cluster.watch.cache import Cache
from syrinx_operator.cluster.watch.lease import Leases
from syrinx_operator.cluster.watch.stage_api import StageApi
from syrinx_operator.cluster.watch.telemetry import Health, HealthServer, Telemetry
from syrinx_operator.cluster.watch.workqueue import NamespacedName, WorkQueue
from syrinx_operator.tuner.runner import Tuner

log = logging.getLogger(__name__)


class Operator:
    """Reconciles pipelines. `start` and `stop` are kopf handlers."""

    def __init__(
        self,
        options: Options,
        namespaces: tuple[str, ...] | None,
        *,
        configuration: Configure = load_configuration,
        now: Now = utc_now,
        tuner: Tuner | None = None,
    ) -> None:
        """`namespaces` is None for all. `configuration` returns the API server's address and credentials.

        `now` returns the time of day. `tuner` decides for all pipelines; None computes in a process of its own.
        """
        self._options = options
        self._namespaces = namespaces
        self._configuration = configuration
        self._now = now
        self._tuner = tuner
        self._telemetry = Telemetry(now)
        self._cleanup = contextlib.AsyncExitStack()
        self._lease_keeper: asyncio.Task[None] | None = None
        self._cache: Cache | None = None
        self._queue: WorkQueue | None = None

    async def start(self, settings: kopf.OperatorSettings, **_: Any) -> None:
        """Configures kopf and starts all parts, whether or not the API server answers.

        Raises OSError if the port is in use, and ConfigException if no API server is configured.
        """
        configure(settings, self._options.max_backoff_seconds)
        log.info("configuration: %s", config_line(self._options))
        options, telemetry, enter = self._options, self._telemetry, self._cleanup.enter_async_context
        await enter(HealthServer(options.port, health=self.health, readiness=self.readiness, metrics=self.metrics))
        api = await enter(Api(telemetry, self._configuration))
        stages = await enter(StageApi(api, options.access, telemetry))
        cache = Cache(
            api,
            self._namespaces,
            self._changed,
            relist_seconds=options.relist_seconds,
            max_backoff_seconds=options.max_backoff_seconds,
        )
        lease = NamespacedName(options.pipelines.operator_namespace, options.lease_name)
        leases = Leases(api, options.identity, lease, options.lease_seconds, cache.outdate, now=self._now)
        self._cleanup.push_async_callback(leases.release)
        self._lease_keeper = asyncio.create_task(leases.keep(), name="leases")
        self._cleanup.callback(self._lease_keeper.cancel)
        reconciler = Reconciler(
            api=api,
            cache=cache,
            leases=leases,
            stages=stages,
            telemetry=telemetry,
            options=options,
            now=self._now,
            tuner=self._tuner,
        )
        self._queue = WorkQueue(
            reconciler.reconcile,
            resync_seconds=options.resync_seconds,
            max_backoff_seconds=options.max_backoff_seconds,
            telemetry=telemetry,
            forget=reconciler.forget,
        )
        self._cleanup.push_async_callback(self._queue.close)
        self._cache = cache
        self._cleanup.push_async_callback(cache.close)
        cache.start()

    async def stop(self, **_: Any) -> None:
        """Stops watching, cancels running reconciles and releases the Leases."""
        await self._cleanup.aclose()

    def _changed(self, kind: Kind, change: str, live: Manifest) -> None:
        """Requests the reconcile that a change in the cluster asks for."""
        assert self._queue is not None
        metadata = live["metadata"]
        if kind == PIPELINE:
            key = NamespacedName(metadata["namespace"], metadata["name"])
            if change == "MODIFIED" and "deletionTimestamp" not in metadata:
                # Our own status updates are changes too; only a new generation or a command is an edit.
                self._queue.add_version(key, (metadata["uid"], metadata.get("generation"), command_of(live)))
            else:
                self._queue.add(key)
        elif kind in CHILDREN:
            labels = metadata.get("labels") or {}
            pipeline = labels.get(names.PIPELINE_LABEL)
            # The tuner's state changes with each evaluation; only its loss needs one.
            is_own_write = change == "MODIFIED" and labels.get(names.COMPONENT_LABEL) == names.TUNING
            if pipeline and not is_own_write:
                self._queue.add_known(NamespacedName(metadata["namespace"], pipeline))

    def health(self) -> Health:
        """Returns whether the process can go on; else it should be restarted."""
        problems = []
        if self._lease_keeper is not None and self._lease_keeper.done():
            problems.append("the Lease is no longer renewed")
        if self._cache is not None and self._cache.has_ended():
            problems.append("a watch has ended")
        if self._queue is not None and (stuck := self._queue.stuck()):
            problems.append(f"stuck: {', '.join(map(str, stuck))}")
        return Health(not problems, "; ".join(problems) or "ok")

    def readiness(self) -> Health:
        """Returns whether some namespace is served. The text names what is not watched."""
        if self._cache is None:
            return Health(False, "starting")
        is_ready = self._cache.is_serving()
        return Health(is_ready, "\n".join(["ready" if is_ready else "not ready", *self._cache.problems()]))

    def metrics(self) -> bytes:
        """Returns all metrics in the text format of Prometheus."""
        if self._queue is not None and self._cache is not None:
            self._set_gauges(self._queue, self._cache)
        return generate_latest(self._telemetry.registry)

    def _set_gauges(self, queue: WorkQueue, cache: Cache) -> None:
        self._telemetry.oldest_reconcile_age.set(queue.oldest_age())
        self._telemetry.pipelines.clear()
        for (condition, value), count in queue.condition_counts().items():
            self._telemetry.pipelines.labels(condition, value).set(count)
        for namespace, kind, is_up in cache.watches():
            self._telemetry.watch_up.labels(namespace, kind).set(is_up)


class _Backoffs:
    """kopf's delays between attempts: endless."""

    def __init__(self, max_seconds: float) -> None:
        self._max_seconds = max_seconds

    def __iter__(self) -> Iterator[float]:
        return (backoff(failures, 0.0, self._max_seconds) for failures in itertools.count(1))


def configure(settings: kopf.OperatorSettings, max_backoff_seconds: float) -> None:
    """Configures kopf to run the process and nothing else: it watches and writes nothing.

    Its only requests are those of its discovery at the start.
    """
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.networking.request_timeout = 30.0
    settings.networking.connect_timeout = 10.0
    settings.networking.error_backoffs = _Backoffs(max_backoff_seconds)
    settings.networking.trust_env = True
    settings.process.ultimate_exiting_timeout = 25.0
    for noisy in ("httpx", "kopf.objects", "kopf.activities"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def scope() -> tuple[str, ...] | None:
    """Returns the namespaces of `kopf run --namespace`; None for `--all-namespaces`. Raises ConfigError.

    There are none outside of `kopf run`.
    """
    context = click.get_current_context(silent=True)
    if context is None:
        return ()
    given = context.params
    namespaces = tuple(dict.fromkeys(given["namespaces"]))
    if given["clusterwide"] or not namespaces:
        return None
    if patterns := [each for each in namespaces if not re.fullmatch("[a-z0-9]([-a-z0-9]*[a-z0-9])?", each)]:
        raise ConfigError(f"--namespace: {', '.join(patterns)} is no name of a namespace; patterns are not accepted")
    return namespaces
