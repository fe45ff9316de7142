"""The managed Redis with one server: its password Secret with ACL and its pod template."""

import hashlib
from collections.abc import Sequence
from typing import Any

from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.state import Manifest, Owner
from syrinx_operator.cluster.plan.objects import non_defaults, omit_empty, quantity, secret, secret_ref
from syrinx_operator.cluster.plan.records import RenderContext
from syrinx_operator.cluster.plan.workload import pods
from syrinx_operator.resource.fields.connector import ConnectorSpec
from syrinx_operator.resource.resolve import RedisForm, ResolvedPipeline

DATA = "syrinx-data"
"""The volume with the append-only file."""
USER = 999
"""The user `redis` of the official Redis and Valkey images."""
_DATA_COMMANDS = (
    "-@all +@read +@write +@connection +multi +discard +eval +evalsha +time -@dangerous +info +wait"
    " +client|id +client|setname +client|unblock"
)
"""ACL rules of the stages' user: data commands, no administration. INFO shows how much memory is left.

Whole categories, because the Secret is created once and later versions may use more commands. Redis 6.2 accepts all of
these rules; it does not list subcommands under categories.
"""
# The client is called redis-cli in Redis images and valkey-cli in Valkey images.
_PING = f'exec "$(command -v redis-cli || command -v valkey-cli)" -p {names.REDIS_PORT} ping'

_WAIT = 'until timeout 5 sh -c "$0" >/dev/null 2>&1; do sleep 0.5; done'
"""A shell script that waits until the command in its argument succeeds."""
_WAIT_SECONDS = 3600
"""How long a server may load its data or wait for the others before it is restarted, only to do so again."""


def password_secret(owner: Owner, password: str) -> Manifest:
    """Returns the Secret that Redis and the stages share. Deleting it creates a new password and restarts the pods."""
    data = {names.PASSWORD_KEY: password, names.ACL_KEY: stage_user(owner.name, password)}
    return secret(owner, RedisForm.SINGLE, data)


def stage_user(pipeline: str, password: str) -> str:
    """Returns a line of an ACL file: a user with data commands on this pipeline's keys."""
    return f"user default on {password_hash(password)} resetchannels ~{{{pipeline}:* {_DATA_COMMANDS}\n"


def password_hash(password: str) -> str:
    """Returns the ACL rule that accepts a password."""
    return f"#{hashlib.sha256(password.encode()).hexdigest()}"


def arguments(connector: ConnectorSpec) -> list[str]:
    """Returns the arguments of redis-server, which replace a configuration file."""
    limit = connector.resources.limits.get("memory")
    return [
        *("--port", str(names.REDIS_PORT)),
        *("--protected-mode", "no"),
        *("--aclfile", f"{names.REDIS_DIRECTORY}/{names.ACL_KEY}"),
        *("--dir", "/data"),
        *("--save", ""),
        *("--appendonly", "no" if connector.storage is None else "yes"),
        *("--maxmemory-policy", "noeviction"),
        # The rest is for buffers, fragmentation and the copy made while the append-only file is rewritten.
        *(("--maxmemory", str(int(quantity(limit)) * 3 // 4)) if limit is not None else ()),
    ]


def redis_inputs(pipeline: ResolvedPipeline, context: RenderContext) -> dict[str, Any]:
    """Returns the inputs of Redis's pod template. A new model must not restart Redis, so it is not included."""
    connector = pipeline.spec.connector
    return {
        "image": context.redis_image,
        "password": context.password_uid,
        "resources": non_defaults(connector.resources),
        "durable": connector.storage is not None,
        # Omitted for the default, so that an upgrade of the operator does not restart Redis.
        **({} if connector.replicas == 1 else {"replicas": connector.replicas}),
        **omit_empty(podTemplate=connector.pod_template),
        **pods.pull_inputs(pipeline.spec),
    }


def containers(pipeline: ResolvedPipeline, context: RenderContext, mounts: Sequence[Manifest]) -> list[Manifest]:
    """Returns the container of the only server."""
    password = {"name": "REDISCLI_AUTH", "valueFrom": secret_ref(pods.managed_password(pipeline))}
    # Arguments only: the image's entry point runs redis-server or valkey-server.
    process = {"args": arguments(pipeline.spec.connector), "env": [password]}
    # Alive while it answers at all (LOADING too), ready once it answers PONG.
    return [server(pipeline, context, process, mounts) | probes(_PING, f"{_PING} | grep -q PONG")]


def server(
    pipeline: ResolvedPipeline, context: RenderContext, process: Manifest, mounts: Sequence[Manifest]
) -> Manifest:
    """Returns the container of a server, without probes."""
    resources, ports = pipeline.spec.connector.resources, [pods.port(names.REDIS_PORT_NAME, names.REDIS_PORT)]
    image = context.redis_image
    return pods.container(pipeline.spec, "redis", image, resources, process, ports=ports, mounts=mounts)


def probes(alive: str, ready: str) -> Manifest:
    """Returns the probes of a container by two shell commands. It has started once it is ready."""
    return {
        "startupProbe": pods.waiting_probe(["sh", "-c", _WAIT, ready], _WAIT_SECONDS),
        "livenessProbe": pods.probe(run(alive), period=10, failures=6),
        "readinessProbe": pods.probe(run(ready), period=5, failures=2),
    }


def run(command: str) -> Manifest:
    """Returns the action of a probe or hook that runs a shell command."""
    return {"exec": {"command": ["sh", "-c", command]}}
