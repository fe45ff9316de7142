"""The managed Redis: its password Secret with ACL, pod template, StatefulSet and volume."""

from __future__ import annotations

import base64
import hashlib
from decimal import Decimal
from typing import Any

from syrinx_operator.cluster import names
from syrinx_operator.cluster.plan import pods
from syrinx_operator.cluster.plan.objects import claim_spec, manifest, non_defaults, omit_empty, secret_ref
from syrinx_operator.cluster.plan.release import FrozenTemplate, RenderContext
from syrinx_operator.cluster.state import Component, Manifest, Owner
from syrinx_operator.resource.pods import Quantity
from syrinx_operator.resource.spec import ConnectorSpec, TTSPipeline

USER = 999
"""The user `redis` of the official Redis and Valkey images."""
_DATA, _ACL, _TMP = "syrinx-data", "syrinx-acl", "syrinx-tmp"
_BINARY = {f"{unit}i": 1024**power for power, unit in enumerate("KMGTP", 1)}
_DECIMAL = {unit: 1000**power for power, unit in enumerate("kMGTP", 1)}
_UNITS: dict[str, Decimal] = {unit: Decimal(size) for unit, size in ({"": 1} | _BINARY | _DECIMAL).items()}
_UNITS["m"] = Decimal("0.001")
_DATA_COMMANDS = "-@all +@read +@write +@connection +eval +evalsha +time -@dangerous +client|id +client|unblock"
"""ACL rules of a pipeline's only user: data commands, no administration.

Whole categories, because the Secret is created once and later versions may use more commands. Redis 6.2 accepts all of
these rules; it does not list subcommands under categories.
"""
# The client is called redis-cli in Redis images and valkey-cli in Valkey images.
_PING = f'exec "$(command -v redis-cli || command -v valkey-cli)" -p {names.REDIS_PORT} ping'


def password_secret(owner: Owner, password: str) -> Manifest:
    """Returns the Secret that Redis and the stages share. Deleting it creates a new password and restarts the pods."""
    data = {names.PASSWORD_KEY: password, names.ACL_KEY: acl(owner.name, password)}
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    name = names.password_key(owner.name).name
    return manifest(owner, "v1", "Secret", name, Component.REDIS, type="Opaque", immutable=True, data=encoded)


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
        *(("--maxmemory", str(in_units(limit) * 3 // 4)) if limit is not None else ()),
    ]


def in_units(quantity: Quantity) -> int:
    """Returns a Kubernetes quantity as an integer, rounded down."""
    text = str(quantity)
    number = text.rstrip("kKMGTPim")
    return int(Decimal(number) * _UNITS[text[len(number) :]])


def redis_inputs(pipeline: TTSPipeline, context: RenderContext) -> dict[str, Any]:
    """Returns the inputs of Redis's pod template. A new model must not restart Redis, so it is not included."""
    connector = pipeline.spec.connector
    return {
        "image": context.redis_image,
        "password": context.password_uid,
        "resources": non_defaults(connector.resources),
        "durable": connector.storage is not None,
        **pods.pull_inputs(pipeline.spec),
    }


def redis_template(pipeline: TTSPipeline, context: RenderContext) -> Manifest:
    """Returns the pod template of the managed Redis."""
    claim = {"persistentVolumeClaim": {"claimName": names.workload(pipeline.name, Component.REDIS)}}
    items = [{"key": names.ACL_KEY, "path": names.ACL_KEY}]
    secret = {"secretName": names.password_key(pipeline.name).name, "items": items, "defaultMode": 0o440}
    volumes = [
        {"name": _DATA, **(claim if pipeline.spec.connector.storage is not None else {"emptyDir": {}})},
        {"name": _ACL, "secret": secret},
        {"name": _TMP, "emptyDir": {}},
    ]
    pod = {
        **pods.pod_base(pipeline, Component.REDIS, USER),
        "terminationGracePeriodSeconds": 30,
        "containers": [_container(pipeline, context)],
        "volumes": volumes,
    }
    annotations = omit_empty(**{names.PASSWORD_ANNOTATION: context.password_uid})
    return {
        "metadata": {"labels": names.labels(pipeline.name, Component.REDIS), "annotations": annotations},
        "spec": pod,
    }


def redis_workload(owner: Owner, template: FrozenTemplate) -> Manifest:
    """Returns the StatefulSet of the managed Redis."""
    name = names.workload(owner.name, Component.REDIS)
    spec = {
        "replicas": 1,
        "serviceName": name,
        "podManagementPolicy": "Parallel",
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": names.selector(owner.name, Component.REDIS)},
        "updateStrategy": {"type": "RollingUpdate"},
        "template": template.template,
    }
    return manifest(owner, "apps/v1", "StatefulSet", name, Component.REDIS, spec=spec)


def redis_claims(owner: Owner, connector: ConnectorSpec) -> list[Manifest]:
    """Returns Redis's volume claim. It is no volumeClaimTemplate, which could not be added later."""
    if connector.storage is None:
        return []
    name, spec = names.workload(owner.name, Component.REDIS), claim_spec(connector.storage)
    return [manifest(owner, "v1", "PersistentVolumeClaim", name, Component.REDIS, spec=spec)]


def _container(pipeline: TTSPipeline, context: RenderContext) -> Manifest:
    connector = pipeline.spec.connector
    password = {"name": "REDISCLI_AUTH", "valueFrom": secret_ref(pods.managed_password(pipeline.name))}
    return {
        "name": Component.REDIS.value,
        **pods.image_fields(pipeline.spec, context.redis_image),
        # Arguments only: the image's entry point runs redis-server or valkey-server.
        "args": arguments(connector),
        "env": [password],
        "ports": [{"name": names.REDIS_PORT_NAME, "containerPort": names.REDIS_PORT, "protocol": "TCP"}],
        **omit_empty(resources=pods.resource_requirements(connector.resources)),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": pods.container_security(),
        "volumeMounts": [
            {"name": _DATA, "mountPath": "/data"},
            {"name": _ACL, "mountPath": names.REDIS_DIRECTORY, "readOnly": True},
            {"name": _TMP, "mountPath": "/tmp"},
        ],
        # Alive while it answers at all (LOADING too), ready once it answers PONG.
        "livenessProbe": _probe(_PING, period=10, failures=6),
        "readinessProbe": _probe(f"{_PING} | grep -q PONG", period=5, failures=2),
    }


def _probe(command: str, *, period: int, failures: int) -> Manifest:
    action = {"command": ["sh", "-c", command]}
    return {"exec": action, "periodSeconds": period, "timeoutSeconds": 5, "failureThreshold": failures}
