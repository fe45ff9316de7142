"""The managed Redis: its password Secret with ACL, pod template and volume."""

import base64
import hashlib
from typing import Any

from syrinx_operator.cluster import names
from syrinx_operator.cluster.plan import pods
from syrinx_operator.cluster.plan.objects import manifest, non_defaults, omit_empty, quantity, secret_ref
from syrinx_operator.cluster.plan.pod_template import with_patch
from syrinx_operator.cluster.plan.records import RenderContext
from syrinx_operator.cluster.state import Component, Manifest, Owner
from syrinx_operator.resource.connector import ConnectorSpec
from syrinx_operator.resource.spec import TTSPipeline

USER = 999
"""The user `redis` of the official Redis and Valkey images."""
_DATA_COMMANDS = (
    "-@all +@read +@write +@connection +eval +evalsha +time -@dangerous +info +wait +client|id +client|unblock"
)
"""ACL rules of a pipeline's only user: data commands, no administration. INFO shows how much memory is left.

Whole categories, because the Secret is created once and later versions may use more commands. Redis 6.2 accepts all of
these rules; it does not list subcommands under categories.
"""
# The client is called redis-cli in Redis images and valkey-cli in Valkey images.
_PING = f'exec "$(command -v redis-cli || command -v valkey-cli)" -p {names.REDIS_PORT} ping'


def password_secret(owner: Owner, password: str) -> Manifest:
    """Returns the Secret that Redis and the stages share. Deleting it creates a new password and restarts the pods."""
    data = {names.PASSWORD_KEY: password, names.ACL_KEY: acl(owner.name, password)}
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    return manifest(owner, "v1", "Secret", Component.REDIS, type="Opaque", immutable=True, data=encoded)


def acl(pipeline: str, password: str) -> str:
    """Returns the ACL file: one user with data commands on this pipeline's keys."""
    password_hash = hashlib.sha256(password.encode()).hexdigest()
    return f"user default on #{password_hash} resetchannels ~{{{pipeline}:* {_DATA_COMMANDS}\n"


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


def redis_inputs(pipeline: TTSPipeline, context: RenderContext) -> dict[str, Any]:
    """Returns the inputs of Redis's pod template. A new model must not restart Redis, so it is not included."""
    connector = pipeline.spec.connector
    return {
        "image": context.redis_image,
        "password": context.password_uid,
        "resources": non_defaults(connector.resources),
        "durable": connector.storage is not None,
        **omit_empty(podTemplate=connector.pod_template),
        **pods.pull_inputs(pipeline.spec),
    }


def redis_template(pipeline: TTSPipeline, context: RenderContext) -> Manifest:
    """Returns the pod template of the managed Redis."""
    connector = pipeline.spec.connector
    claim = {"persistentVolumeClaim": {"claimName": names.workload(pipeline.name, Component.REDIS)}}
    items = [{"key": names.ACL_KEY, "path": names.ACL_KEY}]
    secret = {"secret": {"secretName": names.password_secret(pipeline.name), "items": items, "defaultMode": 0o440}}
    volumes = [
        pods.mounted("syrinx-data", {"emptyDir": {}} if connector.storage is None else claim, "/data", read_only=False),
        pods.mounted("syrinx-acl", secret, names.REDIS_DIRECTORY),
        pods.TMP,
    ]
    password = {"name": "REDISCLI_AUTH", "valueFrom": secret_ref(pods.managed_password(pipeline.name))}
    container = pods.container(
        pipeline.spec,
        Component.REDIS.value,
        context.redis_image,
        connector.resources,
        # Arguments only: the image's entry point runs redis-server or valkey-server.
        {"args": arguments(connector), "env": [password]},
        ports=[pods.port(names.REDIS_PORT_NAME, names.REDIS_PORT)],
        mounts=[mount for _, mount in volumes],
    )
    # Alive while it answers at all (LOADING too), ready once it answers PONG.
    probes = {
        "livenessProbe": pods.probe(_run(_PING), period=10, failures=6),
        "readinessProbe": pods.probe(_run(f"{_PING} | grep -q PONG"), period=5, failures=2),
    }
    pod = {
        **pods.pod_base(pipeline, Component.REDIS, USER),
        "terminationGracePeriodSeconds": 30,
        "containers": [{**container, **probes}],
        "volumes": [volume for volume, _ in volumes],
    }
    annotations = omit_empty(**{names.PASSWORD_ANNOTATION: context.password_uid})
    metadata = {"labels": names.labels(pipeline.name, Component.REDIS), "annotations": annotations}
    return with_patch({"metadata": metadata, "spec": pod}, connector.pod_template)


def _run(command: str) -> Manifest:
    return {"exec": {"command": ["sh", "-c", command]}}
