"""`python -m syrinx_stages.gateway CONFIG.json`: one gateway replica."""

from __future__ import annotations

import sys

from fastapi import FastAPI

from syrinx_stages.connector.base import Connector
from syrinx_stages.contract.settings import StageConfig
from syrinx_stages.gateway.api import create_app
from syrinx_stages.gateway.service import GatewayService
from syrinx_stages.runtime.metrics import Metrics
from syrinx_stages.runtime.process import run


def build(config: StageConfig, connector: Connector, metrics: Metrics) -> tuple[GatewayService, FastAPI]:
    """The service and its public application."""
    service = GatewayService(config, connector, metrics)
    return service, create_app(service)


if __name__ == "__main__":
    sys.exit(run("gateway", build))
