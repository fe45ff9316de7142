"""The process of a stage, from its configuration to its exit status."""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NoReturn

import msgspec
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from syrinx_stages.connector.base import Connector
from syrinx_stages.contract import metrics as m
from syrinx_stages.contract.resolved_config import resolved_config_line
from syrinx_stages.contract.settings import StageConfig
from syrinx_stages.model.config import CheckpointError
from syrinx_stages.runtime.admin import AdminTarget, Service, Stage, create_admin
from syrinx_stages.runtime.errors import SettingsError, StartError
from syrinx_stages.runtime.metrics import Metrics
from syrinx_stages.runtime.server import HttpServer
from syrinx_stages.runtime.start import connect_redis, load_start_config

log = logging.getLogger(__name__)

SWITCH_SECONDS = 0.0005
"""How long the engine's thread may hold the GIL. Python's default of 5 ms would add to the TTFA."""

Build = Callable[[StageConfig, Connector, Metrics], tuple[Stage, FastAPI | None]]
"""Builds a stage's service, and its public application if it has one. Raises `StartError`."""


def run(stage: str, build: str) -> NoReturn:
    """Runs one stage until SIGTERM or SIGINT: `python -m syrinx_stages.STAGE CONFIG.json`.

    build: `MODULE:FUNCTION` of a `Build`. It is imported after the configuration was read, because it may import torch.
    """

    def serve() -> Coroutine[Any, Any, int]:
        config = load_start_config(stage, sys.argv[1:], os.environ)
        module, _, function = build.partition(":")
        return _serve(stage, config, getattr(importlib.import_module(module), function))

    run_process(stage, serve)


def run_process(name: str, serve: Callable[[], Coroutine[Any, Any, int]]) -> NoReturn:
    """Runs `serve` and exits with its status, or with 1 and an error message. `name` appears in messages."""
    status = _status(name, serve)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # Do not wait for a thread that still loads a model.
    os._exit(status)


def _status(name: str, serve: Callable[[], Coroutine[Any, Any, int]]) -> int:
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=os.environ.get("LOG_LEVEL", "INFO")
    )
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        return asyncio.run(serve())
    except (StartError, SettingsError, CheckpointError) as error:
        print(f"syrinx {name}: {error}", file=sys.stderr)
        return 1
    except Exception:
        log.exception("the %s failed", name)
        return 1


class ProcessMetrics(Metrics):
    """The metrics of a process: the families of its stages, and the error counts of their connectors."""

    def __init__(self, connectors: Mapping[str, Connector]) -> None:
        """`connectors` maps stage names to their connectors."""
        super().__init__(CollectorRegistry())
        for stage in connectors:
            for metric in m.BY_STAGE[stage]:
                self[metric]
        self._connectors = connectors
        self._counted = dict.fromkeys(connectors, 0)

    def refresh(self) -> None:
        """Copies the error counts of the connectors; call it before a scrape."""
        for stage, connector in self._connectors.items():
            errors = connector.errors
            self[m.REDIS_ERRORS].labels(stage).inc(errors - self._counted[stage])
            self._counted[stage] = errors


def start_admin_server(target: AdminTarget, config: StageConfig, metrics: ProcessMetrics) -> HttpServer:
    """Starts the admin server of a stage. Raises `StartError`."""
    return HttpServer(create_admin(target, metrics.registry, metrics.refresh), config.host, config.admin_port)


def print_addresses(stage: str, config: StageConfig, admin: HttpServer, public: HttpServer | None = None) -> None:
    """Prints a JSON line with the URLs of a stage to standard output."""
    line = {"stage": stage, "replica": config.replica, "url": (public or admin).url, "admin_url": admin.url}
    print(json.dumps(line), flush=True)


def log_config(stage: str, config: StageConfig) -> None:
    """Logs the resolved configuration and its hash, as one JSON object."""
    values = msgspec.to_builtins(config)
    replica = values.pop("replica")
    log.info("configuration: %s", resolved_config_line(stage, replica, values))


def stop_on_signals() -> asyncio.Event:
    """Returns an event that SIGTERM and SIGINT set from now on, so that the process can shut down cleanly."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def _serve(stage: str, config: StageConfig, build: Build) -> int:
    connector = connect_redis(config, os.environ)
    servers: list[HttpServer] = []
    try:
        metrics = ProcessMetrics({stage: connector})
        service, public = build(config, connector, metrics)
        log_config(stage, config)
        stop = stop_on_signals()
        servers.append(start_admin_server(service, config, metrics))
        if public is not None:
            servers.append(HttpServer(public, config.host, config.port))
        print_addresses(stage, config, *servers)
        try:
            return await run_service(service, stop, config.drain_seconds)
        finally:
            await service.close()
    finally:
        for server in servers:
            await server.close()
        await connector.close()


async def run_service(service: Service, stop: asyncio.Event, drain_seconds: float) -> int:
    """Starts a service, waits for a signal or a failure, and drains it.

    Returns the exit status: 0 after a signal, 1 if the service failed (the process is restarted).
    """
    stopped = asyncio.create_task(stop.wait())
    failed = asyncio.create_task(service.failed.wait())
    start = asyncio.create_task(service.start())
    try:
        await asyncio.wait([start, stopped], return_when=asyncio.FIRST_COMPLETED)
        if not start.done():
            return 0
        await start
        # Everything loaded now is permanent. A garbage collection that scanned it would stall all streams for 0.1 s.
        gc.collect()
        gc.freeze()
        await asyncio.wait([stopped, failed], return_when=asyncio.FIRST_COMPLETED)
        await service.drain(drain_seconds)
        return 1 if failed.done() else 0
    finally:
        for task in (start, stopped, failed):
            task.cancel()
