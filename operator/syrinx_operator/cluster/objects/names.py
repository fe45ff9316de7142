"""Names, labels, ports and paths of a pipeline's objects. They never change during a pipeline's lifetime."""

from typing import Any, Final, NamedTuple

from syrinx_operator.cluster.objects.state import REDIS, Component, ObjectKey, Owner, Replica
from syrinx_operator.resource.fields.pods import ADMIN_PORT, CODEC_ADMIN_PORT, CODEC_SETTINGS_PORT
from syrinx_operator.resource.resolve import RedisForm, ResolvedPipeline
from syrinx_operator.resource.spec import API_VERSION, KIND
from syrinx_stages.contract.settings import SETTINGS_PORT
from syrinx_stages.contract.stages import Stage

FIELD_MANAGER: Final = "syrinx-operator"

LEASE: Final = "ttspipelines.syrinx.dev"
"""The Lease in each namespace by which an installation of the operator keeps others from writing."""

TUNING: Final = "tuning"
"""Component label of the ConfigMap with the tuner's state."""
TUNING_KEY: Final = "tuning.json"

PIPELINE_LABEL: Final = "syrinx.dev/pipeline"
COMPONENT_LABEL: Final = "syrinx.dev/component"
TEMPLATE_LABEL: Final = "syrinx.dev/template"
"""On pods: hash of their template."""
PASSWORD_ANNOTATION: Final = "syrinx.dev/password-secret"
"""On pods: UID of the managed Redis's Secret, so that a new password restarts them."""
TOKEN_ANNOTATION: Final = "syrinx.dev/token-secret"
"""On stage pods: UID of the Secret with the token of their settings ports, so that a new token restarts them."""
ROLLOUT_ANNOTATION: Final = "syrinx.dev/rollout"
"""On a pipeline: a command about its canary, which the operator removes once it has followed it."""
CANARY_PREFIX: Final = "canary-"
"""Precedes the component's name in the labels of a canary's pods and workloads."""
APPLIED_ANNOTATION: Final = "syrinx.dev/applied"
"""On every applied object: hash of its manifest."""

HTTP_PORT_NAME: Final = "http"
REDIS_PORT_NAME: Final = "redis"
REDIS_PORT: Final = 6379
SENTINEL_PORT_NAME: Final = "sentinel"
SENTINEL_PORT: Final = 26379
REDIS_SERVERS: Final = 3
"""Number of servers of a replicated Redis: the sentinels of two are a majority if one is lost."""
PRIMARY: Final = "primary"
"""The name of the primary at the sentinels."""

START_DIRECTORY: Final = "/etc/syrinx/start"
SETTINGS_KEY: Final = "settings.json"


class Place(NamedTuple):
    """What a process has of its own in a pod of a stage."""

    annotation: str
    """On the pod: the process's start configuration, mounted as a file."""
    start_file: str
    settings_volume: str
    settings_directory: str
    admin_name: str
    """Name of the port of health and metrics."""
    admin_port: int
    settings_name: str
    settings_port: int

    @property
    def settings_file(self) -> str:
        """The live settings with which the process starts."""
        return f"{self.settings_directory}/{SETTINGS_KEY}"


OWN: Final = Place(
    annotation="syrinx.dev/config",
    start_file=f"{START_DIRECTORY}/config.json",
    settings_volume="syrinx-settings",
    settings_directory="/etc/syrinx/settings",
    admin_name="admin",
    admin_port=ADMIN_PORT,
    settings_name="settings",
    settings_port=SETTINGS_PORT,
)
"""The place of the pod's own stage."""
COLOCATED: Final = Place(
    annotation="syrinx.dev/codec-config",
    start_file=f"{START_DIRECTORY}/codec.json",
    settings_volume="syrinx-codec-settings",
    settings_directory="/etc/syrinx/codec-settings",
    admin_name="codec-admin",
    admin_port=CODEC_ADMIN_PORT,
    settings_name="codec-settings",
    settings_port=CODEC_SETTINGS_PORT,
)
"""The place of a codec in a talker's pod."""


def place(replica: Replica) -> Place:
    """Returns the place of a replica in its pod."""
    return COLOCATED if replica.colocated else OWN


REDIS_DIRECTORY: Final = "/etc/syrinx/redis"
"""Holds CA certificates in a stage, and the ACL file in the managed Redis."""
CA_FILE: Final = f"{REDIS_DIRECTORY}/ca.pem"
API_KEYS_DIRECTORY: Final = "/etc/syrinx/api-keys"
API_KEYS_FILE: Final = f"{API_KEYS_DIRECTORY}/keys"
TLS_DIRECTORY: Final = "/etc/syrinx/tls"
"""Holds the files of a Secret of type kubernetes.io/tls."""
MODELS_DIRECTORY: Final = "/models"

TOKEN_KEY: Final = "token"
PASSWORD_KEY: Final = "password"
"""The stages' password."""
SYSTEM_PASSWORD_KEY: Final = "system-password"
"""The password with which servers and sentinels of a replicated Redis connect to each other."""
ACL_KEY: Final = "users.acl"
SENTINEL_ACL_KEY: Final = "sentinel-users.acl"


def workload(pipeline: str, component: str) -> str:
    """Returns the name of the workload and Service of a component or cell, and of most other objects of it."""
    return f"{pipeline}-{component}"


def redis_cell(form: Component, cell: int) -> str:
    """Returns the value of the component label of a cell's managed Redis. That of the first cell is the component."""
    return form.value if cell == 0 else f"{form}-c{cell}"


def redis_cells(pipeline: ResolvedPipeline) -> list[str]:
    """Returns the value of the component label of the managed Redis of each cell; none with another Redis."""
    form, cells = pipeline.redis, range(pipeline.spec.connector.cells)
    return [] if form is None else [redis_cell(form, cell) for cell in cells]


def cell_in(label: str) -> tuple[str, int]:
    """Returns the form of a managed Redis and its cell by the value of the component label; 0 for other components."""
    form, _, cell = label.rpartition("-c")
    return (form, int(cell)) if form in REDIS and cell.isdecimal() else (label, 0)


def workload_key(pipeline: str, component: str) -> ObjectKey:
    """Returns the key of the workload of a component or cell."""
    kind = "Deployment" if component == Stage.GATEWAY else "StatefulSet"
    return ObjectKey(kind, workload(pipeline, component))


def canary(component: Component) -> str:
    """Returns the value of the component label of a canary's pods and workloads."""
    return f"{CANARY_PREFIX}{component}"


def canary_key(pipeline: str, component: Component) -> ObjectKey:
    """Returns the key of a workload of a canary."""
    # No other pipeline's workload ends with `-canary`, also not that of a pipeline `NAME-canary`.
    return ObjectKey("Deployment", f"{workload(pipeline, component)}-canary")


def redis_hosts(pipeline: str, cell: int = 0) -> list[str]:
    """Returns the host names of the servers of a cell's replicated Redis, each of which has a sentinel."""
    workload_name = workload(pipeline, redis_cell(RedisForm.REPLICATED, cell))
    return [f"{workload_name}-{ordinal}.{workload_name}" for ordinal in range(REDIS_SERVERS)]


def token_secret(pipeline: str) -> str:
    """Returns the name of the Secret with the token of the stages' settings ports."""
    return f"{pipeline}-stages"


def tuning_record(pipeline: str) -> str:
    """Returns the name of the ConfigMap with the tuner's state."""
    return f"{pipeline}-{TUNING}"


def selector(pipeline: str, component: str) -> dict[str, str]:
    """Returns the labels that select a component's pods. They never change: a workload's selector is immutable."""
    return {PIPELINE_LABEL: pipeline, COMPONENT_LABEL: str(component)}


def labels(pipeline: str, component: str) -> dict[str, str]:
    """Returns the labels of an object or pod; `component` is a component or another purpose (`release`)."""
    return {
        "app.kubernetes.io/name": "syrinx",
        "app.kubernetes.io/instance": pipeline,
        "app.kubernetes.io/component": str(component),
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        "app.kubernetes.io/part-of": "syrinx",
        PIPELINE_LABEL: pipeline,
        COMPONENT_LABEL: str(component),
    }


def owner_reference(owner: Owner) -> dict[str, Any]:
    """Returns the owner reference that makes an object go away with its pipeline."""
    return {"apiVersion": API_VERSION, "kind": KIND, "name": owner.name, "uid": owner.uid, "controller": True}
