"""A pipeline and its observed state in the cluster: the inputs of planning, rollout and status. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from syrinx_operator.observed.evidence import Evidence
from syrinx_operator.resource.checks.check import field_name, field_problems
from syrinx_operator.resource.checks.documents import Path
from syrinx_operator.resource.checks.rules import cluster_violations, violations
from syrinx_operator.resource.resolve import RedisForm
from syrinx_operator.resource.spec import TTSPipeline
from syrinx_operator.resource.versions import without_unknown
from syrinx_stages.contract import logs
from syrinx_stages.contract.settings import ReportedSettings
from syrinx_stages.contract.stages import Stage

Manifest = dict[str, Any]
"""A Kubernetes object as JSON."""
MAX_LISTED: Final = 10
"""Maximum number of unknown fields that a message names."""


Component = Stage | RedisForm
"""A part of a pipeline."""
STAGES = tuple(Stage)
REDIS = tuple(RedisForm)


def component_of(name: str) -> Component:
    """Returns the component with this name. Raises ValueError for another name."""
    return Stage(name) if name in STAGES else RedisForm(name)


class ObjectKey(Struct, frozen=True, order=True):
    """Identifies an object in the pipeline's namespace."""

    kind: str
    name: str


class Settings(Struct, frozen=True):
    """The body of `PUT /settings/STAGE`: a stage's live settings and their generation."""

    generation: int
    settings: dict[str, Any]


class Replica(Struct, frozen=True, kw_only=True):
    """One component in one pod."""

    name: str
    uid: str = ""
    """UID of its pod."""
    component: Component
    canary: bool = False
    """Whether it belongs to a canary."""
    cell: int = 0
    """The cell of a Redis."""
    colocated: bool = False
    """Whether it runs in a pod of another stage's workload."""
    template: str
    """Hash of the pod template (label `syrinx.dev/template`)."""
    model_generation: str = ""
    """Model generation in its start configuration; empty for Redis or if unknown."""
    password_uid: str = ""
    """UID of the managed Redis's Secret that it was created with; empty if it has none."""
    ready: bool = False
    started: bool = False
    """Whether it has been ready since its container started."""
    initializing: bool = False
    """Whether its init containers, which download the checkpoint, have not finished."""
    created: str = ""
    """RFC 3339 time of its creation."""
    changed: str = ""
    """RFC 3339 time at which it was created, or asked to end, or last became ready or unready."""
    unready_since: str = ""
    """RFC 3339 time since which it could be ready but is not; empty if ready."""
    terminating: bool = False
    stuck: bool = False
    """Whether it is terminating and should have ended long ago."""
    node: str = ""
    """Name of its node; empty until assigned."""
    node_lost: bool = False
    """Whether the cluster has lost contact with its node."""
    address: str = ""
    """Pod IP; empty until assigned."""
    restarts: int = 0
    last_exit: str = ""
    """How the container that has restarted most often ended: exit code and last line of its log; empty if none has."""
    problem: str = ""
    """Why it does not run, as the cluster reports it (`ImagePullBackOff: …`, `Unschedulable: …`); empty if it runs."""
    unready: str = ""
    """Why it is not ready, in its own words; empty if it is, or was not asked, or did not answer."""
    waits_for: str = ""
    """What its start waits for (`volumes or network`); empty if unknown."""
    reported: ReportedSettings | None = None
    """None if the replica was not asked or did not answer."""

    def has_confirmed(self, generation: int) -> bool:
        """Returns whether it reports settings of this or a newer generation."""
        return self.reported is not None and self.reported.generation >= generation


class Observed(Struct, frozen=True, kw_only=True):
    """The pipeline's objects in the cluster, as read in this reconcile."""

    objects: Mapping[ObjectKey, Manifest]
    """The pipeline's objects that have its label."""
    replicas: tuple[Replica, ...] = ()
    """Without those of a canary."""
    canary: tuple[Replica, ...] = ()
    """The replicas of a canary."""
    download_problems: Mapping[str, str] = {}
    """Why the newest pod of a Job does not run or has failed, by the Job's name."""
    autoscaled: frozenset[ObjectKey] = frozenset()
    """Workloads that a HorizontalPodAutoscaler (also one created by KEDA) targets."""
    password_uid: str | None = None
    """UID of the password Secret of the managed Redis in its current form, which all cells share; None without one."""
    token_uid: str | None = None
    """UID of the Secret with the token of the settings ports; None if it does not exist."""
    served_kinds: frozenset[str] = frozenset()
    """Optional kinds that this cluster serves, such as `PodMonitor`."""
    status_generations: Mapping[Stage, int] = {}
    """Settings generation in the pipeline's status, by stage."""

    @staticmethod
    def settings_generations(status: Mapping[str, Any]) -> dict[Stage, int]:
        """Returns the settings generation of each stage in a status."""
        found = {stage: (status.get(stage.value) or {}).get("settingsGeneration") for stage in STAGES}
        return {stage: generation for stage, generation in found.items() if isinstance(generation, int)}

    def with_replicas(self, found: Sequence[Replica]) -> Observed:
        """Returns the state with these replicas, those of a canary among them."""
        own, canary = (tuple(each for each in found if each.canary is flag) for flag in (False, True))
        return msgspec.structs.replace(self, replicas=own, canary=canary)

    def replicas_of(self, component: Component) -> tuple[Replica, ...]:
        """Returns a component's replicas, sorted by name."""
        return tuple(sorted((r for r in self.replicas if r.component is component), key=lambda r: r.name))

    def live(self, component: Component) -> list[Replica]:
        """Returns a component's replicas that are not terminating, sorted by name."""
        return [replica for replica in self.replicas_of(component) if not replica.terminating]


class OperatorConfig(Struct, frozen=True, kw_only=True):
    """Installation-wide defaults for all pipelines."""

    stages_image: str
    """Default stage image; recorded per pipeline when the pipeline is created."""
    redis_image: str
    operator_namespace: str
    """Namespace of the operator's own pods, which may connect to the stages' admin and settings ports."""
    proxied: bool = False
    """Whether the operator reaches the stages through the API server, whose address only users know."""


class Owner(Struct, frozen=True):
    """The TTSPipeline object that owns all other objects."""

    name: str
    namespace: str
    uid: str
    generation: int

    @property
    def log_fields(self) -> dict[str, str]:
        """The `extra` of log records that concern the pipeline."""
        return logs.of_pipeline(self.namespace, self.name)


class Metrics(Struct, frozen=True, kw_only=True):
    """What the stages' counters show of the measurement window."""

    source: str
    """`prometheus` or `gateways`."""
    evidence: Evidence
    reason: str = "Stale"
    """Why there are no counters if `evidence` has a problem: `Missing`, `Stale` or `Error`."""


class Problem(Struct, frozen=True):
    """What prevented applying the plan, or how the state differs from it; the message says how to fix it."""

    reason: str
    """A CamelCase reason such as ApplyFailed."""
    message: str


class Blocked(Exception):
    """No plan can be made; its argument is the Problem."""


class InvalidSpec(Exception):
    """The resource violates its schema or its rules; the message names each field."""


def key_of(manifest: Manifest) -> ObjectKey:
    """Returns the key of an object."""
    return ObjectKey(manifest["kind"], manifest["metadata"]["name"])


def is_owned(manifest: Manifest, owner: Owner) -> bool:
    """Returns whether this pipeline controls an object, not a former pipeline of the same name."""
    return any(
        reference.get("uid") == owner.uid and reference.get("controller")
        for reference in manifest["metadata"].get("ownerReferences") or ()
    )


def owner_of(live: Manifest) -> Owner:
    """Returns the identity of a live TTSPipeline."""
    metadata = live["metadata"]
    return Owner(metadata["name"], metadata["namespace"], metadata["uid"], metadata.get("generation", 0))


def parse_pipeline(live: Manifest) -> TTSPipeline:
    """Returns a live TTSPipeline as the typed resource, without fields that this operator does not know.

    The CRD in the cluster may be older or newer than this operator, so everything is validated again. Raises
    InvalidSpec.
    """
    document, unknown = _known_document(live)
    ignored = f"; this operator does not know and ignores {_listed(unknown)}" if unknown else ""
    if found := [f"{field_name(path)}: {message}" for path, message in field_problems(document)]:
        raise InvalidSpec(f"{'; '.join(found)}{ignored}; the CRD accepts it, so a newer operator may know it")
    pipeline = msgspec.convert(document, TTSPipeline)
    if broken := [*violations(pipeline), *cluster_violations(pipeline)]:
        found = [f"{field_name(each.path)}: {each.message}" for each in broken]
        raise InvalidSpec(f"{'; '.join(found)}{ignored}")
    return pipeline


def unknown_fields(live: Manifest) -> str:
    """Returns the fields of a live TTSPipeline that this operator does not know, as text; empty if it knows all."""
    return _listed(_known_document(live)[1])


def _known_document(live: Manifest) -> tuple[Manifest, list[Path]]:
    document = {
        "apiVersion": live["apiVersion"],
        "kind": live["kind"],
        "metadata": {"name": live["metadata"]["name"]},
        "spec": live.get("spec") or {},
    }
    return without_unknown(document, TTSPipeline)


def _listed(paths: Sequence[Path]) -> str:
    more = len(paths) - MAX_LISTED
    names = ", ".join(field_name(path) for path in paths[:MAX_LISTED])
    return f"{names} and {more} more" if more > 0 else names
