"""The managed Redis: its password, what its users may do, and its pod."""

from __future__ import annotations

import base64
import hashlib
from decimal import Decimal
from typing import Any

from syrinx_operator.cluster import names
from syrinx_operator.cluster.plan import environment, pods
from syrinx_operator.cluster.plan.objects import claim_spec, given, manifest, present
from syrinx_operator.cluster.plan.release import FrozenTemplate, Running
from syrinx_operator.cluster.plan.security import container_security
from syrinx_operator.cluster.state import Component, Manifest, Owner
from syrinx_operator.resource.pods import Quantity
from syrinx_operator.resource.spec import ConnectorSpec, TTSPipeline

USER = 999
"""Redis's own in the official images of Redis and Valkey."""
_DATA, _ACL, _TMP = "syrinx-data", "syrinx-acl", "syrinx-tmp"
_BINARY = {f"{unit}i": 1024**power for power, unit in enumerate("KMGTP", 1)}
_DECIMAL = {unit: 1000**power for power, unit in enumerate("kMGTP", 1)}
_UNITS: dict[str, Decimal] = {unit: Decimal(size) for unit, size in ({"": 1} | _BINARY | _DECIMAL).items()}
_UNITS["m"] = Decimal("0.001")
_DATA_COMMANDS = "-@all +@read +@write +@connection +eval +evalsha +time -@dangerous +client|id +client|unblock"
"""Of a pipeline's only user: what works on data, and nothing that administers the server.

Whole categories, because the Secret is made once: a later version may use more of them. Every word of it is known to
Redis 6.2, in which subcommands are not listed under categories.
"""
# The programs' names in images of Redis and of Valkey.
_PING = f'exec "$(command -v redis-cli || command -v valkey-cli)" -p {names.REDIS_PORT} ping'


def password_secret(owner: Owner, password: str) -> Manifest:
    """The Secret that Redis and the stages share. It is made once; deleting it makes a new password, and new pods."""
    data = {names.PASSWORD_KEY: password, names.ACL_KEY: acl(owner.name, password)}
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    name = names.password_key(owner.name).name
    return manifest(owner, "v1", "Secret", name, Component.REDIS, type="Opaque", immutable=True, data=encoded)


def acl(pipeline: str, password: str) -> str:
    """Redis's users: one, with the data commands, on this pipeline's keys."""
    hashed = hashlib.sha256(password.encode()).hexdigest()
    return f"user default on #{hashed} resetchannels ~{{{pipeline}:* {_DATA_COMMANDS}\n"


def arguments(connector: ConnectorSpec) -> list[str]:
    """How redis-server is started: without a configuration file, so that it lies in the pod template alone."""
    durable = connector.storage is not None
    limit = connector.resources.limits.get("memory")
    return [
        *("--port", str(names.REDIS_PORT)),
        *("--protected-mode", "no"),
        *("--aclfile", f"{names.REDIS_DIRECTORY}/{names.ACL_KEY}"),
        *("--dir", "/data"),
        *("--save", ""),
        *("--appendonly", "yes" if durable else "no"),
        *("--maxmemory-policy", "noeviction"),
        # The rest is for buffers, fragmentation and the copy that is made while the log is rewritten.
        *(("--maxmemory", str(in_units(limit) * 3 // 4)) if limit is not None else ()),
    ]


def in_units(quantity: Quantity) -> int:
    """A Kubernetes quantity as a whole number, rounded down."""
    text = str(quantity)
    number = text.rstrip("kKMGTPim")
    return int(Decimal(number) * _UNITS[text[len(number) :]])


def redis_inputs(pipeline: TTSPipeline, running: Running) -> dict[str, Any]:
    """What Redis's pod template is made from. The model is not among it: a new one restarts no Redis."""
    connector = pipeline.spec.connector
    return {
        "image": running.redis_image,
        "password": running.password_uid,
        "resources": given(connector.resources),
        "durable": connector.storage is not None,
        **pods.pull_inputs(pipeline.spec),
    }


def redis_template(pipeline: TTSPipeline, running: Running) -> Manifest:
    """The pod template of the managed Redis."""
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
        "containers": [_container(pipeline, running)],
        "volumes": volumes,
    }
    annotations = present(**{names.PASSWORD_ANNOTATION: running.password_uid})
    return {
        "metadata": {"labels": names.labels(pipeline.name, Component.REDIS), "annotations": annotations},
        "spec": pod,
    }


def redis_workload(owner: Owner, template: FrozenTemplate) -> Manifest:
    """The StatefulSet of the managed Redis."""
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
    """The volume that streams outlive Redis's pod on. Not a volumeClaimTemplate, which could never be added later."""
    if connector.storage is None:
        return []
    name, spec = names.workload(owner.name, Component.REDIS), claim_spec(connector.storage)
    return [manifest(owner, "v1", "PersistentVolumeClaim", name, Component.REDIS, spec=spec)]


def _container(pipeline: TTSPipeline, running: Running) -> Manifest:
    connector = pipeline.spec.connector
    password = {
        "name": "REDISCLI_AUTH",
        "valueFrom": environment.secret_value(environment.password_key(pipeline.name)),
    }
    return {
        "name": Component.REDIS.value,
        **pods.image(pipeline.spec, running.redis_image),
        # Arguments alone: the image's entry point knows what its server is called.
        "args": arguments(connector),
        "env": [password],
        "ports": [{"name": names.REDIS_PORT_NAME, "containerPort": names.REDIS_PORT, "protocol": "TCP"}],
        **present(resources=pods.compute(connector.resources)),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": _DATA, "mountPath": "/data"},
            {"name": _ACL, "mountPath": names.REDIS_DIRECTORY, "readOnly": True},
            {"name": _TMP, "mountPath": "/tmp"},
        ],
        # Alive while it answers at all, as when it reads its log; ready when it answers PONG.
        "livenessProbe": _probe(_PING, period=10, failures=6),
        "readinessProbe": _probe(f"{_PING} | grep -q PONG", period=5, failures=2),
    }


def _probe(command: str, *, period: int, failures: int) -> Manifest:
    action = {"command": ["sh", "-c", command]}
    return {"exec": action, "periodSeconds": period, "timeoutSeconds": 5, "failureThreshold": failures}
