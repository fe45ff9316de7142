"""The operator's configuration from environment variables."""

import secrets
import socket
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct

from syrinx_operator import __version__
from syrinx_operator.cluster.objects.state import OperatorConfig
from syrinx_operator.cluster.watch import prometheus_access
from syrinx_operator.cluster.watch.stage_api import StageAccess
from syrinx_stages.contract.settings import resolved_config_line


class ConfigError(Exception):
    """An environment variable is missing or invalid; the message names it."""


class Options(Struct, frozen=True, kw_only=True):
    """The configuration of this operator process."""

    pipelines: OperatorConfig
    prometheus: prometheus_access.Access
    access: StageAccess
    identity: str
    """Holder identity in the Lease. A pod's name, so that a restarted container still holds it."""
    lease_name: str = "syrinx-operator"
    """The Lease of this installation, in its namespace. Of the operators that share it, one works."""
    resync_seconds: float = 15.0
    """Time between two reconciles of a pipeline without changes."""
    lease_seconds: float = 15.0
    """Duration of that Lease: how long other operators wait for a silent one."""
    relist_seconds: float = 300.0
    """Time between two LISTs of each kind, which find what a watch missed, and between two readings of a Secret."""
    max_backoff_seconds: float = 60.0
    """Maximum time between two attempts while requests to the API server fail."""
    port: int = 8080


def _seconds(name: str, least: float = 1) -> tuple[str, Any, str]:
    return name, Annotated[float, Meta(ge=least, le=3600)], f"a number from {least:g} to 3600"


_VARIABLES: Mapping[str, tuple[str, Any, str]] = {
    "access": ("SYRINX_STAGE_ACCESS", StageAccess, "direct or proxy"),
    "resync_seconds": _seconds("SYRINX_RESYNC_SECONDS", 0.1),
    "lease_name": (
        "SYRINX_LEASE",
        Annotated[str, Meta(pattern=r"^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$")],
        "a name of lowercase letters, digits, - and .",
    ),
    "lease_seconds": _seconds("SYRINX_LEASE_SECONDS"),
    "relist_seconds": _seconds("SYRINX_RELIST_SECONDS"),
    "max_backoff_seconds": _seconds("SYRINX_MAX_BACKOFF_SECONDS"),
    "port": ("SYRINX_PORT", Annotated[int, Meta(ge=0, le=65_535)], "a port from 0 to 65535"),
}
"""Variable, type and description of options with a default."""


def options(environment: Mapping[str, str]) -> Options:
    """Returns the options in an environment. Raises ConfigError."""
    if not (stages_image := environment.get("SYRINX_STAGES_IMAGE")):
        raise ConfigError("SYRINX_STAGES_IMAGE is not set: it names the stages image for pipelines without spec.image")
    in_cluster = bool(environment.get("KUBERNETES_SERVICE_HOST"))
    found: dict[str, Any] = {"access": StageAccess.DIRECT if in_cluster else StageAccess.PROXY}
    for field, (name, kind, expected) in _VARIABLES.items():
        if text := environment.get(name):
            try:
                found[field] = msgspec.convert(text, kind, strict=False)
            except msgspec.ValidationError:
                raise ConfigError(f"{name}: {text!r} is not accepted; expected {expected}") from None
    try:
        access = prometheus_access.access(environment)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return Options(
        pipelines=OperatorConfig(
            stages_image=stages_image,
            redis_image=environment.get("SYRINX_REDIS_IMAGE") or "redis:7.2-alpine",
            operator_namespace=environment.get("SYRINX_OPERATOR_NAMESPACE") or "default",
            proxied=found["access"] is StageAccess.PROXY,
        ),
        prometheus=access,
        identity=environment.get("POD_NAME") or f"{socket.gethostname()}-{secrets.token_hex(4)}",
        **found,
    )


def config_line(options: Options) -> str:
    """Returns the log line with the resolved configuration and its hash, without secrets."""
    config = msgspec.to_builtins(options)
    # Not hashed, so that replicas of one installation log equal hashes.
    del config["identity"]
    # The token itself is never part of the options, but a URL may contain a password.
    url = urlsplit(options.prometheus.url)
    config["prometheus"]["url"] = url._replace(netloc=url.netloc.rpartition("@")[2], query="").geturl()
    return resolved_config_line("operator", options.identity, {"version": __version__, **config})
