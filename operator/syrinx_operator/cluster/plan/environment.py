"""The environment of a stage's containers."""

from __future__ import annotations

from collections.abc import Sequence

from syrinx_operator.cluster import names
from syrinx_operator.cluster.state import Component, Manifest
from syrinx_operator.resource.pods import EnvVar, SecretKey
from syrinx_operator.resource.spec import ConnectorSpec

BASE: list[Manifest] = [
    {"name": "HOME", "value": "/tmp"},
    # Results do not depend on the batch only where BLAS does not split by shape.
    {"name": "OMP_NUM_THREADS", "value": "1"},
    {"name": "MKL_NUM_THREADS", "value": "1"},
    {"name": "PYTHONUNBUFFERED", "value": "1"},
]


def stage_environment(pipeline: str, connector: ConnectorSpec, user: Sequence[EnvVar]) -> list[Manifest]:
    """Of a stage: where Redis is, who it is, and what the user adds."""
    name = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    return [*_redis(pipeline, connector), name, *BASE, *user_environment(user)]


def user_environment(variables: Sequence[EnvVar]) -> list[Manifest]:
    """What the user adds; the resource's rules refuse names that are Syrinx's."""
    return [_variable(variable) for variable in variables]


def secret_value(secret: SecretKey) -> Manifest:
    """A variable's value, out of a Secret."""
    return {"secretKeyRef": {"name": secret.name, "key": secret.key}}


def _redis(pipeline: str, connector: ConnectorSpec) -> list[Manifest]:
    if connector.url is None:
        service = names.workload(pipeline, Component.REDIS)
        url = f"redis://{service}:{names.REDIS_PORT}/0"
        password: SecretKey | None = password_key(pipeline)
    else:
        url, password = connector.url, connector.password_secret
    environment: list[Manifest] = [{"name": "REDIS_URL", "value": url}]
    if password is not None:
        environment.append({"name": "REDIS_PASSWORD", "valueFrom": secret_value(password)})
    if connector.ca_secret is not None:
        environment.append({"name": "REDIS_CA_FILE", "value": names.CA_FILE})
    return environment


def password_key(pipeline: str) -> SecretKey:
    """Where the managed Redis's password is."""
    return SecretKey(name=names.password_key(pipeline).name, key=names.PASSWORD_KEY)


def _variable(variable: EnvVar) -> Manifest:
    if variable.secret is not None:
        return {"name": variable.name, "valueFrom": secret_value(variable.secret)}
    if (source := variable.config_map) is not None:
        return {"name": variable.name, "valueFrom": {"configMapKeyRef": {"name": source.name, "key": source.key}}}
    return {"name": variable.name, "value": variable.value}
