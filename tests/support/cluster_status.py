"""A pipeline with pods that a test changes, and its status."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import msgspec

from support.resolved import resolved
from syrinx_operator.cluster.objects.state import Metrics, Observed, OperatorConfig, Owner, Replica, key_of
from syrinx_operator.cluster.plan import plan
from syrinx_operator.cluster.report.events import status_events
from syrinx_operator.cluster.report.obstacles import StatusInputs
from syrinx_operator.cluster.report.status import status
from syrinx_operator.observed.evidence import Evidence, StreamStats
from syrinx_operator.resource.knobs import Identity
from syrinx_operator.resource.resolve import RedisForm
from syrinx_operator.resource.state.status import read
from syrinx_operator.resource.state.tuning_status import State
from syrinx_stages.contract.settings import ReportedSettings
from syrinx_stages.contract.stages import Stage

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
LONG_AGO = "2026-11-21T10:00:00Z"
JUST_NOW = "2026-11-21T11:59:50Z"
OWNER = Owner("demo", "voices", "u-1", generation=4)
CONFIG = OperatorConfig(stages_image="syrinx/stages:1", redis_image="redis:7", operator_namespace="syrinx")
GATEWAY, TALKER, CODEC, REDIS = Stage.GATEWAY, Stage.TALKER, Stage.CODEC, RedisForm.SINGLE


def measured(problem="", reason="Stale", live_streams=0, underruns=0, **task_types):
    """Returns metrics with the requests, those within the objective, and the 95th percentile of each task type."""
    streams = {
        task_type: StreamStats(
            requests=requests,
            within_objective=within,
            underruns=underruns if n == 0 else 0,
            # The quantile is interpolated within its bucket.
            ttfa_histogram={p95 / 0.95 / 1000: requests, math.inf: requests},
        )
        for n, (task_type, (requests, within, p95)) in enumerate(task_types.items())
    }
    identity = Identity(model="m", image="i", device="d")
    evidence = Evidence(
        since=NOW, until=NOW, identity=identity, problem=problem, streams=streams, live_streams=live_streams
    )
    return Metrics(source="gateways", reason=reason, evidence=evidence)


class Cluster:
    """A pipeline with its plan, and pods that a test changes."""

    def __init__(self, **spec):
        self.pipeline = resolved(**spec)
        self.plan = plan(self.pipeline, OWNER, Observed(objects={}, password_uid="p-1", token_uid="t-1"), CONFIG)
        self.pods = {
            self.name(component, n): self.replica(component, n)
            for component in self.plan.templates
            for n in range(self.plan.replicas[component])
        }
        self.metrics = measured()
        self.tuning = State(mode="Recommend", phase="Watching", message="the objectives are met")
        self.problems = []
        self.unknown_fields = ""
        self.served_kinds = frozenset()
        self.previous = {}
        self.objects = {key_of(manifest): manifest for manifest in self.plan.manifests}
        self.owner = OWNER
        self.now = NOW

    def name(self, component, n):
        return f"demo-{component}-{'5f-' if component is GATEWAY else ''}{n}"

    def replica(self, component, n, **fields):
        wanted = self.plan.settings.get(component)
        defaults = {
            "template": self.plan.templates[component],
            "model_generation": "" if component is REDIS else self.plan.generation,
            "ready": True,
            "reported": ReportedSettings(wanted.generation, wanted.settings, wanted.settings) if wanted else None,
        }
        return Replica(name=self.name(component, n), component=component, **{**defaults, **fields})

    def set(self, component, n, **fields):
        if "ready" in fields and not fields["ready"]:
            fields = {"unready_since": JUST_NOW, "reported": None, **fields}
        name = self.name(component, n)
        self.pods[name] = msgspec.structs.replace(self.pods.get(name) or self.replica(component, n), **fields)
        return self

    def drop(self, component, n):
        del self.pods[self.name(component, n)]
        return self

    def with_status(self, manifest):
        """Returns an object with the status that its controller sets: the number of a workload's pods."""
        labels = manifest["metadata"]["labels"]
        count = sum(pod.component == labels["app.kubernetes.io/component"] for pod in self.pods.values())
        return {"status": {"replicas": count}, **manifest} if "template" in manifest.get("spec", {}) else manifest

    @property
    def observed(self):
        return Observed(
            objects={key: self.with_status(manifest) for key, manifest in self.objects.items()},
            replicas=tuple(self.pods.values()),
            password_uid="p-1",
            token_uid="t-1",
            served_kinds=self.served_kinds,
        )

    def update(self):
        """Returns the current status, which becomes the previous one."""
        self.previous = status(
            StatusInputs(
                pipeline=self.pipeline,
                owner=self.owner,
                before=read(self.previous),
                plan=self.plan,
                observed=self.observed,
                problems=self.problems,
                metrics=self.metrics,
                tuning=self.tuning,
                unknown_fields=self.unknown_fields,
                now=self.now,
            )
        )
        return self.previous

    def events(self):
        before = self.previous
        return [(event.kind, event.reason) for event in status_events(before, self.update())]


def conditions(report):
    return {each["type"]: each for each in report["conditions"]}


def condition(report, kind):
    found = conditions(report)[kind]
    return found["status"], found["reason"]


def message(report, kind):
    return conditions(report)[kind]["message"]
