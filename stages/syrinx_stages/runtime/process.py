"""The process of a stage, from its configuration to its exit status."""

import asyncio
import contextlib
import gc
import importlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector
from starlette.types import ASGIApp

from syrinx_stages.contract import logs
from syrinx_stages.contract import metrics as m
from syrinx_stages.contract.api import NARI_STREAM_PATH, SPEECH_STREAM_PATH
from syrinx_stages.contract.settings import TOKEN_VARIABLE, TRACK_VARIABLE, StageConfig, resolved_config_line
from syrinx_stages.contract.stages import Stage
from syrinx_stages.model.config import CheckpointError
from syrinx_stages.runtime.errors import SettingsError, StartError
from syrinx_stages.runtime.http.admin import Service, create_admin
from syrinx_stages.runtime.http.server import MAX_ADMIN_CONNECTIONS, HttpServer, max_public_connections
from syrinx_stages.runtime.http.settings_api import create_settings_api
from syrinx_stages.runtime.http.tls import Certificate
from syrinx_stages.runtime.start import connect_cells, connect_redis, load_start_config
from syrinx_stages.runtime.telemetry.exposition import Exposition
from syrinx_stages.runtime.telemetry.metrics import Metrics, series_labels
from syrinx_stages.runtime.telemetry.tracing import open_tracer

log = logging.getLogger(__name__)

SWITCH_SECONDS = 0.0005
"""How long the engine's thread may hold the GIL. Python's default of 5 ms would add to the TTFA."""

Build = Callable[..., tuple[Service, ASGIApp | None]]
"""Builds a stage's service, and its public application if it has one, from its configuration, its connector or
connectors, and the metrics. Raises `StartError`."""


def run(stage: Stage, build: str, *, all_cells: bool = False) -> NoReturn:
    """Runs a stage until SIGTERM or SIGINT: `python -m syrinx_stages.STAGE CONFIG.json`.

    build: `MODULE:FUNCTION` of a `Build`. It is imported after the configuration was read, because it may import torch.
    all_cells: Whether it is built with a list of connectors, one for each cell, instead of one to its own cell.
    """
    try:
        logs.configure(os.environ)
    except ValueError as error:
        sys.exit(f"syrinx {stage}: {error}")
    sys.setswitchinterval(SWITCH_SECONDS)
    status = 1
    try:
        status = asyncio.run(_serve(stage, _load(stage), build, all_cells))
    except (StartError, SettingsError, CheckpointError) as error:
        log.critical("syrinx %s: %s", stage, error)
    except Exception:
        log.exception("the %s failed", stage)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # Do not wait for a thread that still loads a model.
    os._exit(status)


def _load(stage: Stage) -> StageConfig:
    if len(sys.argv) != 2:
        raise StartError(f"usage: python -m syrinx_stages.{stage} CONFIG.json")
    return load_start_config(stage, sys.argv[1], os.environ)


def log_config(stage: str, config: StageConfig) -> None:
    """Logs the resolved configuration and its hash as one JSON object, without what `syrinx up` chooses itself."""
    values = msgspec.to_builtins(config)
    replica = values.pop("replica")
    for name in ("api_host", "port", "shares_port", "admin_port", "settings_port", "settings_file"):
        del values[name]
    log.debug("configuration: %s", resolved_config_line(stage, replica, values))


async def _serve(stage: Stage, config: StageConfig, build: str, all_cells: bool) -> int:
    tracer = open_tracer(stage, config.pipeline, config.replica, os.environ)
    module, _, function = build.partition(":")
    build_service: Build = getattr(importlib.import_module(module), function)
    metrics = Metrics(CollectorRegistry(), tracer)
    for metric in m.BY_STAGE[stage]:
        metrics[metric]
    on_error = metrics[m.REDIS_ERRORS].labels(stage).inc
    connect = connect_cells if all_cells else connect_redis
    connected: Any = connect(config, os.environ, on_error)
    async with contextlib.AsyncExitStack() as cleanup:
        if tracer is not None:
            cleanup.push_async_callback(tracer.close)
        for connector in connected if all_cells else [connected]:
            cleanup.push_async_callback(connector.close)
        service, public = build_service(config, connected, metrics)
        log_config(stage, config)
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)

        def listen(app: ASGIApp, host: str, port: int, connections: int, **options: Any) -> HttpServer:
            server = HttpServer(app, host, port, connections, **options)
            cleanup.push_async_callback(server.close)
            return server

        labels = series_labels(config.pipeline, os.environ.get(TRACK_VARIABLE, ""))
        exposition = Exposition(metrics, labels, [ProcessCollector(registry=None)])
        admin = create_admin(service.ready, exposition, service.warnings)
        admin_url = listen(admin, config.host, config.admin_port, MAX_ADMIN_CONNECTIONS).url
        announced = {"stage": stage, "replica": config.replica, "url": admin_url, "admin_url": admin_url}
        if token := os.environ.get(TOKEN_VARIABLE):
            settings = create_settings_api(stage, service, token)
            server = listen(settings, config.host, config.settings_port, MAX_ADMIN_CONNECTIONS)
            announced["settings_url"] = f"{server.url}/settings/{stage}"
        else:
            log.info("settings can neither be read nor changed: %s is not set", TOKEN_VARIABLE)
        public_servers = []
        if public is not None:
            options: dict[str, Any] = {
                "certificate": _certificate(config, metrics),
                "trusted_proxies": config.trusted_proxies,
                "shares_port": config.shares_port,
                "websocket_paths": (SPEECH_STREAM_PATH, NARI_STREAM_PATH),
                "keep_alive_seconds": config.keep_alive_seconds,
            }
            public_servers.append(listen(public, config.public_host, config.port, max_public_connections(), **options))
            announced["url"] = public_servers[-1].url
        # One write, because both processes of a pod may share their output.
        sys.stdout.write(f"{json.dumps(announced)}\n")
        sys.stdout.flush()
        cleanup.push_async_callback(service.close)
        return await run_service(service, stop, config.drain_seconds, public_servers)


def _certificate(config: StageConfig, metrics: Metrics) -> Certificate | None:
    """Returns the certificate of the public API, if it has one. Raises `StartError`."""
    if config.tls is None:
        return None
    return Certificate(config.tls.certificate, config.tls.key, metrics[m.FILE_VALID].labels("tls").set)


async def run_service(
    service: Service, stop: asyncio.Event, drain_seconds: float, public_servers: Sequence[HttpServer] = ()
) -> int:
    """Starts a service, opens its public servers, waits for a signal or a failure, and drains them and the service.

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
        for server in public_servers:
            server.open()
        # Everything loaded now is permanent. A garbage collection that scanned it would stall all streams for 0.1 s.
        gc.collect()
        gc.freeze()
        await asyncio.wait([stopped, failed], return_when=asyncio.FIRST_COMPLETED)
        servers = (server.drain(drain_seconds) for server in public_servers)
        await asyncio.gather(service.drain(drain_seconds), *servers)
        return 1 if failed.done() else 0
    finally:
        for task in (start, stopped, failed):
            task.cancel()
        await asyncio.gather(start, stopped, failed, return_exceptions=True)
