"""The process of a colocated talker and codec: two configurations and two admin ports."""

from __future__ import annotations

import os
import sys
from collections.abc import Coroutine
from typing import Any, NoReturn

from syrinx_stages.colocated.service import build
from syrinx_stages.contract.settings import StageConfig
from syrinx_stages.runtime.errors import StartError
from syrinx_stages.runtime.process import (
    ProcessMetrics,
    log_config,
    print_addresses,
    run_process,
    run_service,
    start_admin_server,
    stop_on_signals,
)
from syrinx_stages.runtime.server import HttpServer
from syrinx_stages.runtime.start import connect_redis, load_start_config


def run() -> NoReturn:
    """Runs both stages until SIGTERM or SIGINT: `python -m syrinx_stages.colocated TALKER.json CODEC.json`."""

    def serve() -> Coroutine[Any, Any, int]:
        if len(sys.argv) != 3:
            raise StartError("usage: python -m syrinx_stages.colocated TALKER.json CODEC.json")
        configs = {
            stage: load_start_config(stage, [path], os.environ)
            for stage, path in zip(("talker", "codec"), sys.argv[1:], strict=True)
        }
        return _serve(configs)

    run_process("colocated", serve)


async def _serve(configs: dict[str, StageConfig]) -> int:
    talker, codec = configs["talker"], configs["codec"]
    connectors = {stage: connect_redis(config, os.environ) for stage, config in configs.items()}
    metrics = ProcessMetrics(connectors)
    servers: dict[str, HttpServer] = {}
    try:
        service = build(talker, connectors["talker"], codec, connectors["codec"], metrics)
        for stage, config in configs.items():
            log_config(stage, config)
        stop = stop_on_signals()
        for stage, target in (("talker", service.talker), ("codec", service.codec)):
            servers[stage] = start_admin_server(target, configs[stage], metrics)
        for stage, admin in servers.items():
            print_addresses(stage, configs[stage], admin)
        try:
            return await run_service(service, stop, talker.drain_seconds)
        finally:
            await service.close()
    finally:
        for server in servers.values():
            await server.close()
        for connector in connectors.values():
            await connector.close()
