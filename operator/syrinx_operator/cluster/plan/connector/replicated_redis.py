"""The managed Redis with replicas: a primary, two replicas, and a sentinel beside each. Pure.

Sentinels choose the primary. The scripts decide how a server starts, and make another one the primary before it stops.
"""

from collections.abc import Sequence
from importlib import resources
from typing import Any

from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.state import Manifest, Observed, Owner, Replica
from syrinx_operator.cluster.plan.connector import redis
from syrinx_operator.cluster.plan.objects import omit_empty, secret, secret_ref
from syrinx_operator.cluster.plan.records import RenderContext
from syrinx_operator.cluster.plan.workload import pods
from syrinx_operator.resource.fields.connector import ConnectorSpec
from syrinx_operator.resource.fields.pods import Resources, SecretKey, Storage
from syrinx_operator.resource.resolve import RedisForm, ResolvedPipeline

_SYSTEM_COMMANDS = (
    "-@all +ping +info +role +psync +replconf +multi +exec +subscribe +publish +slaveof +replicaof +config|rewrite"
    " +client|setname +client|kill +script|kill"
)
"""ACL rules of the user of servers and sentinels: what replication and Sentinel need."""
_SENTINEL_QUESTIONS = "-@all +ping +sentinel|master +sentinel|get-master-addr-by-name +sentinel|replicas"
"""What everybody may ask a sentinel."""
_SENTINEL_REQUESTS = {"cpu": "20m", "memory": "16Mi"}
_SENTINEL_LIMITS = {"cpu": "200m", "memory": "64Mi"}
"""Those of the same resources as the server's, for a quota that requires limits on all containers."""
_CLIENT = '"$(command -v redis-cli || command -v valkey-cli)" --user syrinx --no-auth-warning'
_PING = f"exec {_CLIENT} -p {names.REDIS_PORT} ping"
_IN_SYNC = (
    f"{_CLIENT} -p {names.REDIS_PORT} ping | grep -q PONG && "
    f"{_CLIENT} -p {names.REDIS_PORT} info replication | grep -Eq '^(role:master|master_link_status:up)'"
)
_SENTINEL_PING = f"{_CLIENT} -p {names.SENTINEL_PORT} ping | grep -q PONG"
_CAN_FAIL_OVER = (
    f"{_CLIENT} -p {names.SENTINEL_PORT} sentinel master {names.PRIMARY} | tr '\\n' ' ' | "
    "grep -q ' num-slaves [1-9] num-other-sentinels [1-9] '"
)
"""The sentinel knows a replica and another sentinel."""


def password_secret(owner: Owner, password: str, system_password: str) -> Manifest:
    """Returns the Secret of servers, sentinels and stages. Deleting it restarts all of them with new passwords."""
    system = redis.password_hash(system_password)
    commands = f"user syrinx on {system} resetchannels &__sentinel__:hello {_SYSTEM_COMMANDS}\n"
    data = {
        names.PASSWORD_KEY: password,
        names.SYSTEM_PASSWORD_KEY: system_password,
        names.ACL_KEY: redis.stage_user(owner.name, password) + commands,
        names.SENTINEL_ACL_KEY: f"user default on nopass resetchannels {_SENTINEL_QUESTIONS}\n"
        f"user syrinx on {system} allchannels +@all\n",
    }
    return secret(owner, RedisForm.REPLICATED, data)


def claims(owner: Owner, cell: str, storage: Storage | None) -> list[Manifest]:
    """Returns the PersistentVolumeClaims of all servers of a cell, under the names that the StatefulSet gives them.

    The operator creates them instead, so that they can grow and are deleted with the pipeline.
    """
    return [
        {**claim, "metadata": {**claim["metadata"], "name": f"{redis.DATA}-{claim['metadata']['name']}-{ordinal}"}}
        for claim in pods.claims(owner, cell, storage)
        for ordinal in range(names.REDIS_SERVERS)
    ]


def claim_templates(owner: Owner, cell: str, storage: Storage | None, observed: Observed) -> list[Manifest]:
    """Returns the volumeClaimTemplates of a cell's StatefulSet: those that it has, because their size is immutable."""
    workload = observed.objects.get(names.workload_key(owner.name, cell))
    live: list[Manifest] = workload["spec"].get("volumeClaimTemplates", []) if workload else []
    if live and storage is not None:
        return live
    return [{"metadata": {"name": redis.DATA}, "spec": claim["spec"]} for claim in pods.claims(owner, cell, storage)]


def with_old_password(observed: Observed) -> tuple[Replica, ...]:
    """Returns the pods to delete because their password differs from the Secret's.

    They are replaced at once: servers with different passwords do not replicate, so one by one would never be ready.
    """
    return tuple(pod for pod in observed.live(RedisForm.REPLICATED) if pod.password_uid != observed.password_uid)


def containers(pipeline: ResolvedPipeline, context: RenderContext, mounts: Sequence[Manifest]) -> list[Manifest]:
    """Returns the containers of a pod: a server and a sentinel."""
    return [_server(pipeline, context, mounts), _sentinel(pipeline, context, mounts)]


def _server(pipeline: ResolvedPipeline, context: RenderContext, mounts: Sequence[Manifest]) -> Manifest:
    process = _script("redis.sh", server_arguments(pipeline.spec.connector)) | {"env": _environment(pipeline)}
    return {
        **redis.server(pipeline, context, process, mounts),
        # Alive while it answers at all (LOADING too).
        **redis.probes(_PING, _IN_SYNC),
        "lifecycle": {"preStop": {"exec": {"command": _script("stop.sh", [])["command"]}}},
    }


def _sentinel(pipeline: ResolvedPipeline, context: RenderContext, mounts: Sequence[Manifest]) -> Manifest:
    arguments = [
        "/data/sentinel.conf",
        *("--port", str(names.SENTINEL_PORT)),
        *("--protected-mode", "no"),
        *("--aclfile", f"{names.REDIS_DIRECTORY}/{names.SENTINEL_ACL_KEY}"),
        *("--dir", "/data"),
    ]
    server = pipeline.spec.connector.resources
    resources = Resources(
        requests={name: amount for name, amount in _SENTINEL_REQUESTS.items() if name in server.requests},
        limits={name: amount for name, amount in _SENTINEL_LIMITS.items() if name in server.limits},
    )
    container = pods.container(
        pipeline.spec,
        "sentinel",
        context.redis_image,
        resources,
        _script("sentinel.sh", arguments) | {"env": _environment(pipeline)},
        ports=[pods.port(names.SENTINEL_PORT_NAME, names.SENTINEL_PORT)],
        mounts=mounts,
    )
    return {**container, **redis.probes(_SENTINEL_PING, _CAN_FAIL_OVER)}


def server_arguments(connector: ConnectorSpec) -> list[str]:
    """Returns the arguments of the server, besides those of its start script.

    A primary without a replica accepts writes (`min-replicas-to-write` 0): the stages ask the sentinels when no replica
    acknowledges, and write again what a fail-over has lost.
    """
    return [
        *redis.arguments(connector),
        *("--repl-diskless-sync", "yes"),
        *("--repl-diskless-sync-delay", "0"),
        # What a replica may have missed without copying everything.
        *("--repl-backlog-size", "16mb"),
    ]


def _script(name: str, arguments: list[str]) -> dict[str, Any]:
    """Returns the command that runs a script of this package."""
    text = resources.files(__package__).joinpath("scripts", name).read_text()
    return {"command": ["sh", "-c", text, name], **omit_empty(args=arguments)}


def place(pipeline: str, cell: int) -> dict[str, str]:
    """Returns the variables by which the servers of a cell find each other."""
    own = names.workload(pipeline, names.redis_cell(RedisForm.REPLICATED, cell))
    # Kubernetes replaces the name.
    return {"SELF": f"$(POD_NAME).{own}", "HOSTS": " ".join(names.redis_hosts(pipeline, cell))}


def _environment(pipeline: ResolvedPipeline) -> list[Manifest]:
    secret = names.workload(pipeline.name, RedisForm.REPLICATED)
    password = SecretKey(name=secret, key=names.SYSTEM_PASSWORD_KEY)
    return [
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        *({"name": name, "value": value} for name, value in place(pipeline.name, 0).items()),
        {"name": "REDISCLI_AUTH", "valueFrom": secret_ref(password)},
    ]
