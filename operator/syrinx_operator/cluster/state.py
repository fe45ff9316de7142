"""What the reconciler knows of a pipeline in the cluster: the values that plan, rollout and status are functions of."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

Manifest = dict[str, Any]
"""A Kubernetes object, as JSON."""


class Component(StrEnum):
    """What a pipeline is made of; each is one workload. The first three are stages."""

    GATEWAY = "gateway"
    TALKER = "talker"
    CODEC = "codec"
    REDIS = "redis"


STAGES = (Component.GATEWAY, Component.TALKER, Component.CODEC)


class ObjectKey(Struct, frozen=True, order=True):
    """Names an object of the pipeline's namespace."""

    kind: str
    name: str


class Reported(Struct, frozen=True):
    """What a stage replica answers to `GET /settings`."""

    generation: int
    """Of its base."""
    settings: dict[str, Any]
    """In force now."""
    base: dict[str, Any] | None = None
    """What it returns to when a limited setting ends; None from one that knows of none."""
    seconds: float | None = None
    """How long a limited setting goes on; None without one."""

    @property
    def lasting(self) -> dict[str, Any]:
        """What is in force for good."""
        return self.settings if self.base is None else self.base

    @property
    def can_try(self) -> bool:
        """Whether it takes settings for a limited time, as trials need."""
        return self.base is not None


class Replica(Struct, frozen=True, kw_only=True):
    """One stage of one pod."""

    name: str
    component: Component
    guest: bool = False
    """It is in the pod of another stage's workload, beside that stage."""
    template: str
    """Hash of the pod template it was made from (label `syrinx.dev/template`)."""
    model_generation: str = ""
    """Model generation that it serves, from its start configuration; empty for Redis, or if it is not known."""
    ready: bool = False
    unready_since: str = ""
    """Since when it is not ready (RFC 3339): as its Ready condition says, else since it was made; empty if ready."""
    terminating: bool = False
    address: str = ""
    """Pod IP; empty until it has one."""
    restarts: int = 0
    problem: str = ""
    """Why it does not run, in the cluster's words (`ImagePullBackOff: …`, `Unschedulable: …`); empty if it does."""
    reported: Reported | None = None
    """None if it was not asked or did not answer."""


class Observed(Struct, frozen=True, kw_only=True):
    """The pipeline's part of the cluster, as read in this tick."""

    objects: Mapping[ObjectKey, Manifest]
    """Every object that carries the pipeline's label, and every object in the way: whose name the plan needs."""
    replicas: tuple[Replica, ...] = ()
    autoscaled: frozenset[ObjectKey] = frozenset()
    """Workloads that a HorizontalPodAutoscaler (KEDA makes one too) targets."""
    password_uid: str | None = None
    """UID of the managed Redis's password Secret; None while there is none."""
    served_kinds: frozenset[str] = frozenset()
    """Optional kinds that this cluster serves (`PodMonitor`)."""
    status_generations: Mapping[Component, int] = {}
    """The settings generation that the pipeline's status names, by stage."""

    def of(self, component: Component) -> tuple[Replica, ...]:
        """The replicas of one component, by name."""
        return tuple(sorted((r for r in self.replicas if r.component is component), key=lambda r: r.name))


class OperatorConfig(Struct, frozen=True, kw_only=True):
    """What the operator's installation decides for all pipelines."""

    stages_image: str
    """For pipelines that name none; kept per pipeline from then on."""
    redis_image: str
    operator_namespace: str
    """Where the operator's own pods are: they may reach the stages' admin ports."""


class Owner(Struct, frozen=True):
    """The pipeline object that everything belongs to."""

    name: str
    namespace: str
    uid: str
    generation: int


class Objective(Struct, frozen=True, kw_only=True):
    """How one task type did within the last minutes."""

    task_type: str
    requests: int
    within: int | None = None
    """Requests heard within the objective; None without an objective."""
    ttfa_p95_ms: float | None = None
    """None without requests."""


class Measured(Struct, frozen=True, kw_only=True):
    """What the metrics say of the last minutes."""

    source: str
    """`prometheus` or `gateways`."""
    task_types: tuple[Objective, ...] = ()
    live_streams: int = 0
    """Streams ended or under way, of which `underruns` had to wait."""
    underruns: int = 0
    problem: str = ""
    """Why there are no metrics (with `reason`); empty if there are."""
    reason: str = ""
    """`Missing`, `Stale` or `Error`; empty if there are metrics."""
