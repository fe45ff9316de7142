"""The operator's options, from environment variables."""

from __future__ import annotations

import math
import secrets
import socket
from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from syrinx_operator import __version__
from syrinx_operator.cluster import prometheus
from syrinx_operator.cluster.state import OperatorConfig


class ConfigError(Exception):
    """An environment variable holds what is not accepted; the message names it."""


class Access(StrEnum):
    """How the operator reaches the stages' admin ports."""

    DIRECT = "direct"
    """At the pods' own addresses."""
    PROXY = "proxy"
    """Through the API server's pod proxy, from outside the cluster."""


class Options(Struct, frozen=True, kw_only=True):
    """How this operator runs."""

    pipelines: OperatorConfig
    prometheus: prometheus.Access
    access: Access
    identity: str
    """Names this process in Leases. A pod's name, so that a restarted container finds its Leases again."""
    resync_seconds: float = 15.0
    """Between two looks at a pipeline about which nothing was heard."""
    lease_seconds: float = 15.0
    """How long a silent operator keeps others from its pipelines."""
    port: int = 8080
    """Of /metrics, /healthz and /readyz."""


def options(environment: Mapping[str, str]) -> Options:
    """The options that an environment asks for. Raises `ConfigError`."""
    in_cluster = bool(environment.get("KUBERNETES_SERVICE_HOST"))
    default = Access.DIRECT if in_cluster else Access.PROXY
    return Options(
        pipelines=OperatorConfig(
            stages_image=environment.get("SYRINX_STAGES_IMAGE") or f"syrinx/stages:{__version__}",
            redis_image=environment.get("SYRINX_REDIS_IMAGE") or "redis:7.2-alpine",
            operator_namespace=environment.get("SYRINX_OPERATOR_NAMESPACE") or "default",
        ),
        prometheus=_prometheus(environment),
        access=_access(environment.get("SYRINX_STAGE_ACCESS") or default),
        identity=environment.get("POD_NAME") or f"{socket.gethostname()}-{secrets.token_hex(4)}",
        resync_seconds=_number(environment, "SYRINX_RESYNC_SECONDS", 15.0, 0.1, 3600.0),
        lease_seconds=_number(environment, "SYRINX_LEASE_SECONDS", 15.0, 1.0, 3600.0),
        port=_port(environment.get("SYRINX_PORT") or "8080"),
    )


def _prometheus(environment: Mapping[str, str]) -> prometheus.Access:
    try:
        return prometheus.access(environment)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _access(text: str) -> Access:
    try:
        return Access(text)
    except ValueError:
        raise ConfigError(f"SYRINX_STAGE_ACCESS: {text!r} is not accepted; expected direct or proxy") from None


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > 65_535:
        raise ConfigError(f"SYRINX_PORT: {text!r} is not accepted; expected a port from 0 to 65535")
    return int(text)


def _number(environment: Mapping[str, str], name: str, default: float, least: float, most: float) -> float:
    text = environment.get(name)
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise ConfigError(f"{name}: {text!r} is not accepted; expected a number from {least:g} to {most:g}")
    return number
