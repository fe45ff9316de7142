"""The process of a talker and a codec: two configurations, two admin ports, one life."""

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
        talker, codec = sys.argv[1:]
        return _serve(
            load_start_config("talker", [talker], os.environ), load_start_config("codec", [codec], os.environ)
        )

    run_process("colocated", serve)


async def _serve(talker: StageConfig, codec: StageConfig) -> int:
    configs = {"talker": talker, "codec": codec}
    connectors = {stage: connect_redis(config, os.environ) for stage, config in configs.items()}
    metrics = ProcessMetrics(connectors)
    servers: dict[str, HttpServer] = {}
    try:
        service = build(talker, connectors["talker"], codec, connectors["codec"], metrics)
        stop = stop_on_signals()
        for stage, half in (("talker", service.talker), ("codec", service.codec)):
            servers[stage] = start_admin_server(half, configs[stage], metrics)
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
