"""The operator's configuration from environment variables."""

from __future__ import annotations

import math
import secrets
import socket
from collections.abc import Mapping
from enum import StrEnum
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from syrinx_operator import __version__
from syrinx_operator.cluster import prometheus
from syrinx_operator.cluster.state import OperatorConfig
from syrinx_stages.contract.resolved_config import resolved_config_line


class ConfigError(Exception):
    """An environment variable is missing or invalid; the message names it."""


class StageAccess(StrEnum):
    """How the operator connects to the stages' admin ports."""

    DIRECT = "direct"
    """To the pods' addresses."""
    PROXY = "proxy"
    """Through the API server's pod proxy, from outside the cluster."""


class Options(Struct, frozen=True, kw_only=True):
    """The configuration of this operator process."""

    pipelines: OperatorConfig
    prometheus: prometheus.Access
    access: StageAccess
    identity: str
    """Holder identity in Leases. A pod's name, so that a restarted container still holds its Leases."""
    resync_seconds: float = 15.0
    """Time between two reconciles of a pipeline without changes."""
    lease_seconds: float = 15.0
    """Duration of a Lease: how long other operators wait for a silent one."""
    port: int = 8080
    """Port of /metrics, /healthz and /readyz."""


def options(environment: Mapping[str, str]) -> Options:
    """Returns the options in an environment. Raises ConfigError."""
    in_cluster = bool(environment.get("KUBERNETES_SERVICE_HOST"))
    default = StageAccess.DIRECT if in_cluster else StageAccess.PROXY
    return Options(
        pipelines=OperatorConfig(
            stages_image=_required(
                environment, "SYRINX_STAGES_IMAGE", "the stages image for pipelines without spec.image"
            ),
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


def _required(environment: Mapping[str, str], name: str, meaning: str) -> str:
    value = environment.get(name)
    if not value:
        raise ConfigError(f"{name} is not set: it names {meaning}")
    return value


def config_line(options: Options) -> str:
    """Returns the log line with the resolved configuration and its hash, without secrets.

    The identity is not hashed, so that replicas of one installation log equal hashes.
    """
    config = msgspec.to_builtins(options)
    del config["identity"]
    # The token itself is never part of the options, but a URL may contain a password.
    config["prometheus"]["url"] = _without_credentials(options.prometheus.url)
    return resolved_config_line("operator", options.identity, {"version": __version__, **config})


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()


def _prometheus(environment: Mapping[str, str]) -> prometheus.Access:
    try:
        return prometheus.access(environment)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _access(text: str) -> StageAccess:
    try:
        return StageAccess(text)
    except ValueError:
        raise ConfigError(f"SYRINX_STAGE_ACCESS: {text!r} is not accepted; expected direct or proxy") from None


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > 65_535:
        raise ConfigError(f"SYRINX_PORT: {text!r} is not accepted; expected a port from 0 to 65535")
    return int(text)


def _number(environment: Mapping[str, str], name: str, default: float, minimum: float, maximum: float) -> float:
    text = environment.get(name)
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not minimum <= number <= maximum:
        raise ConfigError(f"{name}: {text!r} is not accepted; expected a number from {minimum:g} to {maximum:g}")
    return number
