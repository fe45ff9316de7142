"""A stage's process: from its configuration to its exit status."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Counter

from syrinx_stages.connector.base import Connector
from syrinx_stages.contract import metrics as m
from syrinx_stages.contract.settings import StageConfig
from syrinx_stages.model.config import CheckpointError
from syrinx_stages.runtime.admin import Stage, create_admin
from syrinx_stages.runtime.errors import SettingsError, StartError
from syrinx_stages.runtime.metrics import Metrics
from syrinx_stages.runtime.server import HttpServer
from syrinx_stages.runtime.start import connect_redis, start_config

log = logging.getLogger(__name__)

SWITCH_SECONDS = 0.0005
"""How long the engine's thread may hold the interpreter from the event loop; Python's 5 ms is a TTFA of its own."""

Build = Callable[[StageConfig, Connector, Metrics], tuple[Stage, FastAPI | None]]
"""Makes the stage's service, and the public application if it has one. Raises `StartError`."""


def run(stage: str, module: str) -> NoReturn:
    """Runs one stage until SIGTERM or SIGINT: `python -m syrinx_stages.STAGE CONFIG.json`; `module` has its `build`."""
    status = _status(stage, module)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # A thread that still loads a model is not waited for.
    os._exit(status)


def _status(stage: str, module: str) -> int:
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=os.environ.get("LOG_LEVEL", "INFO")
    )
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        config = start_config(stage, sys.argv[1:], os.environ)
        build: Build = importlib.import_module(module).build
        return asyncio.run(_serve(stage, config, build))
    except (StartError, SettingsError, CheckpointError) as error:
        print(f"syrinx {stage}: {error}", file=sys.stderr)
        return 1
    except Exception:
        log.exception("the %s failed", stage)
        return 1


class _RedisErrors:
    """Brings the connector's own count of errors into a metric."""

    def __init__(self, connector: Connector, counter: Counter) -> None:
        self._connector = connector
        self._counter = counter
        self._counted = 0.0

    def count(self) -> None:
        errors = self._connector.statistics()["errors"]
        self._counter.inc(errors - self._counted)
        self._counted = errors


async def _serve(stage: str, config: StageConfig, build: Build) -> int:
    registry = CollectorRegistry()
    connector = connect_redis(config, os.environ)
    stop = asyncio.Event()
    servers: list[HttpServer] = []
    try:
        metrics = Metrics(registry)
        for metric in m.BY_STAGE[stage]:
            metrics[metric]
        service, public = build(config, connector, metrics)
        # From here on there is something to put in order.
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        errors = _RedisErrors(connector, metrics[m.REDIS_ERRORS].labels(stage))
        admin = HttpServer(create_admin(service, registry, errors.count), config.host, config.admin_port)
        servers.append(admin)
        line = {"stage": stage, "replica": config.replica, "url": admin.url, "admin_url": admin.url}
        if public is not None:
            servers.append(HttpServer(public, config.host, config.port))
            line["url"] = servers[-1].url
        print(json.dumps(line), flush=True)
        try:
            return await _live(service, stop, config.drain_seconds)
        finally:
            await service.close()
    finally:
        for server in servers:
            await server.close()
        await connector.close()


async def _live(service: Stage, stop: asyncio.Event, drain_seconds: float) -> int:
    """From loading to drained. Returns 0 after a signal, 1 if the service failed (the process is started anew)."""
    stopped = asyncio.create_task(stop.wait())
    failed = asyncio.create_task(service.failed.wait())
    start = asyncio.create_task(service.start())
    try:
        await asyncio.wait([start, stopped], return_when=asyncio.FIRST_COMPLETED)
        if not start.done():
            return 0
        await start
        await asyncio.wait([stopped, failed], return_when=asyncio.FIRST_COMPLETED)
        await service.drain(drain_seconds)
        return 1 if failed.done() else 0
    finally:
        for task in (start, stopped, failed):
            task.cancel()
