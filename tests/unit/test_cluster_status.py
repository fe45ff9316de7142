"""What the operator says of a pipeline: conditions, reports, and the events of their turns."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from syrinx_operator.cluster import status
from syrinx_operator.cluster.conditions import Problem
from syrinx_operator.cluster.events import status_events
from syrinx_operator.cluster.observe import key_of
from syrinx_operator.cluster.plan import plan
from syrinx_operator.cluster.state import (
    Component,
    MetricsSummary,
    ObjectKey,
    Observed,
    OperatorConfig,
    Owner,
    Replica,
    ReportedSettings,
    TaskTypeStats,
)
from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.resource.spec import (
    CaptureShape,
    CodecSpec,
    ConnectorSpec,
    GatewaySpec,
    MonitoringSpec,
    PipelineSpec,
    PodMonitorSpec,
    SloSpec,
    TalkerSpec,
    TtfaObjective,
    TuningSpec,
    default_pipeline,
)
from syrinx_operator.resource.status import Condition, PipelineStatus, read
from syrinx_operator.resource.tuning_status import Counts, Period, State, Stratum, Trial

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
LONG_AGO = "2026-11-21T10:00:00Z"
JUST_NOW = "2026-11-21T11:59:50Z"
OWNER = Owner("demo", "voices", "u-1", generation=4)
CONFIG = OperatorConfig(stages_image="syrinx/stages:1", redis_image="redis:7", operator_namespace="syrinx")
GATEWAY, TALKER, CODEC, REDIS = Component.GATEWAY, Component.TALKER, Component.CODEC, Component.REDIS


class Cluster:
    """A pipeline with its plan, and pods that a test changes one by one."""

    def __init__(self, **spec):
        self.pipeline = msgspec.structs.replace(default_pipeline(), spec=PipelineSpec(**spec))
        self.plan = plan(self.pipeline, OWNER, Observed(objects={}, password_uid="p-1"), CONFIG)
        self.pods = {
            self.name(component, n): self.replica(component, n)
            for component in self.plan.templates
            for n in range(self.plan.replicas[component])
        }
        self.metrics = MetricsSummary(source="gateways")
        self.tuning = State(mode="Recommend", phase="Watching", message="the objectives are met")
        self.problems = []
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
            "reported": ReportedSettings(wanted.generation, wanted.settings) if wanted else None,
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

    def counted(self, manifest):
        """An object as its controller leaves it: a workload says how many pods it has."""
        labels = manifest["metadata"]["labels"]
        made = sum(pod.component == labels["app.kubernetes.io/component"] for pod in self.pods.values())
        return {"status": {"replicas": made}, **manifest} if "template" in manifest.get("spec", {}) else manifest

    def look(self):
        """The status of this moment, which is then the previous one."""
        observed = Observed(
            objects={key: self.counted(manifest) for key, manifest in self.objects.items()},
            replicas=tuple(self.pods.values()),
            password_uid="p-1",
            served_kinds=self.served_kinds,
        )
        self.previous = status.status(
            self.pipeline,
            self.owner,
            observed,
            self.plan,
            self.metrics,
            self.tuning,
            self.previous,
            self.problems,
            self.now,
        )
        return self.previous

    def events(self):
        before = self.previous
        return [(event.type, event.reason) for event in status_events(before, self.look())]


def conditions(report):
    return {each["type"]: each for each in report["conditions"]}


def said(report, kind):
    found = conditions(report)[kind]
    return found["status"], found["reason"]


def message(report, kind):
    return conditions(report)[kind]["message"]


# All is well -------------------------------------------------------------------------------------------------


def test_a_pipeline_that_serves():
    report = Cluster().look()
    assert {kind: each["status"] for kind, each in conditions(report).items()} == {
        "Ready": "True",
        "GatewayReady": "True",
        "TalkerReady": "True",
        "CodecReady": "True",
        "ConnectorReady": "True",
        "MetricsAvailable": "True",
        "TuningReady": "True",
        "Progressing": "False",
        "Degraded": "False",
    }
    assert report["observedGeneration"] == 4
    assert report["endpoint"] == "http://demo-gateway.voices.svc:8000"
    assert (report["model"], report["image"]) == ("syrinx-us", "syrinx/stages:1")
    assert report["redis"] == {"ready": True}


def test_a_stage_is_reported_with_what_it_is_to_hold_and_what_it_holds():
    cluster = Cluster(
        codec=CodecSpec(replicas=2, capture_pairs=(CaptureShape(rows=2, frames=4),)), talker=TalkerSpec(replicas=11)
    )
    cluster.set(CODEC, 1, ready=False, problem="CrashLoopBackOff: exit code 1", restarts=3)
    report = cluster.look()
    assert report["codec"] == {
        "replicas": 2,
        "readyReplicas": 1,
        "updatedReplicas": 2,
        "summary": "1/2",
        "selector": "syrinx.dev/pipeline=demo,syrinx.dev/component=codec",
        "settingsGeneration": 1,
        "settings": {"maxNumSeqs": 8, "chunkRamp": [2, 2, 4, 8, 12], "capturePairs": [{"rows": 2, "frames": 4}]},
        "confirmed": [
            {"replica": "demo-codec-0", "generation": 1},
            {"replica": "demo-codec-1", "restarts": 3, "problem": "CrashLoopBackOff: exit code 1"},
        ],
    }
    assert report["talker"]["confirmedGeneration"] == 1
    assert [each["replica"] for each in report["talker"]["confirmed"]][-2:] == ["demo-talker-9", "demo-talker-10"]


def test_settings_that_cannot_be_written_are_not_counted_on():
    cluster = Cluster()
    assert cluster.look()["codec"]["settingsGeneration"] == 1
    del cluster.objects[ObjectKey("ConfigMap", "demo-codec")]
    for _ in range(3):
        known = {CODEC: cluster.previous["codec"]["settingsGeneration"]}
        observed = Observed(objects=cluster.objects, password_uid="p-1", status_generations=known)
        cluster.plan = plan(cluster.pipeline, OWNER, observed, CONFIG)
        cluster.problems = [Problem("NameConflict", "ConfigMap demo-codec exists and does not belong to this pipeline")]
        assert cluster.plan.settings[CODEC].generation == 2
        assert cluster.look()["codec"]["settingsGeneration"] == 1


def test_equal_inputs_give_an_equal_status_at_any_time():
    cluster = Cluster()
    first = cluster.look()
    cluster.previous = json.loads(json.dumps(first))
    cluster.now += timedelta(hours=3)
    assert cluster.look() == first == json.loads(json.dumps(first))


def test_every_status_is_what_its_types_say():
    broken = Cluster(talker=TalkerSpec(replicas=3)).set(TALKER, 2, ready=False, problem="x" * 5000)
    broken.problems = [Problem("ApplyFailed", "y" * 5000)]
    for report in (Cluster().look(), broken.look(), status.invalid({}, OWNER, ["z" * 5000], NOW)):
        msgspec.convert(report, PipelineStatus)


def test_a_status_that_cannot_be_read_counts_as_none():
    cluster = Cluster()
    cluster.previous = {"conditions": [{"type": "Ready", "status": "Perhaps"}], "phase": "old"}
    assert said(cluster.look(), "Ready") == ("True", "Serving")


# Why it is not ready -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "reason", "advice"),
    [
        ('ImagePullBackOff: Back-off pulling image "x"', "ImagePullBackOff", "imagePullSecrets"),
        ("ErrImagePull: not found", "ImagePullBackOff", "imagePullSecrets"),
        ("Unschedulable: 0/3 nodes are available", "Unschedulable", "node selector"),
        ("CrashLoopBackOff: exit code 1 (Error)", "CrashLoopBackOff", "kubectl logs demo-talker-0 --previous"),
        ('CreateContainerConfigError: secret "t" not found', "CreateContainerConfigError", "does not exist"),
        ("SomethingNew: whatever", "SomethingNew", "kubectl describe pod demo-talker-0"),
        ("no word first", "NotRunning", "kubectl describe pod demo-talker-0"),
    ],
)
def test_a_replica_that_does_not_run_is_named_in_the_clusters_words_with_what_helps(problem, reason, advice):
    report = Cluster().set(TALKER, 0, ready=False, problem=problem).look()
    assert said(report, "TalkerReady") == said(report, "Ready") == ("False", reason)
    assert problem in message(report, "TalkerReady") and advice in message(report, "TalkerReady")
    assert message(report, "TalkerReady") in message(report, "Ready")


def test_what_starts_is_not_in_trouble_until_it_takes_too_long():
    cluster = Cluster().set(TALKER, 0, ready=False)
    assert said(cluster.look(), "TalkerReady") == ("False", "Starting")
    assert said(cluster.look(), "Degraded") == ("False", "AsExpected")
    cluster.now += timedelta(seconds=cluster.pipeline.spec.talker.startup_seconds + 31)
    assert said(cluster.look(), "TalkerReady") == ("False", "NotReady")
    assert said(cluster.look(), "Degraded") == ("True", "NotReady")
    assert "over 10.5 minutes" in message(cluster.look(), "Degraded")


def test_a_node_may_be_on_its_way():
    cluster = Cluster().set(TALKER, 0, ready=False, problem="Unschedulable: 0/3 nodes")
    assert said(cluster.look(), "Degraded")[0] == "False"
    cluster.now += timedelta(minutes=11)
    assert said(cluster.look(), "Degraded") == ("True", "Unschedulable")


def test_a_gateway_may_wait_for_its_stages_as_long_as_they_take():
    cluster = Cluster().set(TALKER, 0, ready=False).set(GATEWAY, 0, ready=False, unready_since=LONG_AGO)
    assert said(cluster.look(), "GatewayReady") == ("False", "Starting")
    cluster.set(TALKER, 0, ready=True)
    assert said(cluster.look(), "GatewayReady") == ("False", "Starting")
    cluster.now += timedelta(minutes=6)
    assert said(cluster.look(), "GatewayReady") == ("False", "NotReady")
    assert said(cluster.look(), "Degraded") == ("True", "NotReady")


def test_redis_is_named_before_those_that_wait_for_it():
    cluster = Cluster().set(REDIS, 0, ready=False, problem="Unschedulable: no volume")
    for stage in (TALKER, CODEC, GATEWAY):
        cluster.set(stage, 0, ready=False)
    report = cluster.look()
    assert said(report, "Ready") == said(report, "ConnectorReady") == ("False", "Unschedulable")
    assert report["redis"]["ready"] is False


def test_of_a_redis_of_the_users_is_said_what_the_stages_know():
    cluster = Cluster(connector=ConnectorSpec(url="rediss://cache:6380/0"))
    assert said(cluster.look(), "ConnectorReady") == ("True", "Reachable")
    assert "redis" not in cluster.look()
    cluster.set(TALKER, 0, ready=False, problem="CrashLoopBackOff: exit code 1").set(CODEC, 0, ready=False)
    report = cluster.look()
    assert said(report, "ConnectorReady") == ("Unknown", "NotVerified")
    assert said(report, "Ready") == ("False", "CrashLoopBackOff")
    assert "rediss://cache:6380/0" in message(report, "Ready")


def test_a_stage_without_pods():
    assert said(Cluster().drop(CODEC, 0).look(), "CodecReady") == ("False", "Starting")


def test_pods_that_nobody_makes_are_told_after_a_minute():
    cluster = Cluster(talker=TalkerSpec(replicas=2)).drop(TALKER, 1)
    assert said(cluster.look(), "Degraded") == ("False", "AsExpected")
    cluster.now += timedelta(seconds=61)
    assert said(cluster.look(), "Degraded") == ("True", "PodsMissing")
    assert "StatefulSet demo-talker has 1 of 2 pods" in message(cluster.look(), "Degraded")
    assert "kubectl describe statefulset demo-talker" in message(cluster.look(), "Degraded")
    cluster.set(TALKER, 1)
    assert said(cluster.look(), "Degraded") == ("False", "AsExpected")


def test_a_deployment_says_itself_why_it_makes_no_pods():
    cluster = Cluster().set(GATEWAY, 0, template="old")
    quota = {"type": "ReplicaFailure", "status": "True", "message": 'pods "x" is forbidden: exceeded quota: q'}
    cluster.objects[ObjectKey("Deployment", "demo-gateway")]["status"] = {"replicas": 1, "conditions": [quota]}
    cluster.look()
    cluster.now += timedelta(seconds=61)
    assert said(cluster.look(), "Degraded") == ("True", "PodsMissing")
    assert "exceeded quota: q" in message(cluster.look(), "Degraded")


def test_a_stage_that_an_autoscaler_took_away():
    cluster = Cluster().drop(TALKER, 0)
    cluster.plan = msgspec.structs.replace(cluster.plan, replicas={**cluster.plan.replicas, TALKER: 0})
    assert said(cluster.look(), "TalkerReady") == ("False", "ScaledToZero")
    assert cluster.look()["talker"]["summary"] == "0/0"


def test_a_replica_that_ends_does_not_count():
    cluster = Cluster().set(TALKER, 0, terminating=True)
    assert said(cluster.look(), "TalkerReady") == ("False", "Starting")
    assert cluster.look()["talker"]["replicas"] == 0


def test_a_crash_loop_stays_one_between_two_crashes():
    cluster = Cluster().set(TALKER, 0, ready=False, restarts=2, problem="CrashLoopBackOff: exit code 1 (Error)")
    cluster.look()
    cluster.set(TALKER, 0, restarts=3, problem="")
    assert said(cluster.look(), "TalkerReady") == ("False", "CrashLoopBackOff")
    assert said(cluster.look(), "Degraded") == ("True", "CrashLoopBackOff")
    cluster.set(TALKER, 0, problem="Terminated: exit code 1 (Error)")
    assert cluster.events() == []
    cluster.set(TALKER, 0, ready=True, problem="")
    assert said(cluster.look(), "Degraded") == ("False", "AsExpected")


def test_one_crash_is_no_loop():
    cluster = Cluster().set(TALKER, 0, ready=False, problem="Terminated: exit code 1 (Error)")
    assert said(cluster.look(), "TalkerReady") == ("False", "Starting")


# Roll-outs ---------------------------------------------------------------------------------------------------


def rolling_to_another_model():
    """Two of each; the upper talker and codec already have the new template and model generation."""
    cluster = Cluster(
        talker=TalkerSpec(replicas=2), codec=CodecSpec(replicas=2), gateway=GatewaySpec(replicas=2), image="new:2"
    )
    for stage in (TALKER, CODEC, GATEWAY):
        for n in (0, 1):
            if stage is GATEWAY or n == 0:
                cluster.set(stage, n, template="old", model_generation="older")
    return cluster


def test_the_service_answers_while_the_old_generation_is_complete():
    cluster = rolling_to_another_model()
    report = cluster.look()
    assert said(report, "Ready") == ("True", "Serving")
    assert said(report, "Progressing") == ("True", "RollingOut")
    assert message(report, "Ready") == f"serving model generation older until {cluster.plan.generation} is ready"
    assert "model generation older" in message(report, "TalkerReady")
    assert "talker: 1 of 2 replicas are updated" in message(report, "Progressing")
    assert report["talker"]["summary"] == "2/2" and report["talker"]["updatedReplicas"] == 1


def test_stages_of_two_generations_do_not_make_a_service():
    cluster = rolling_to_another_model().set(CODEC, 0, ready=False)
    report = cluster.look()
    assert said(report, "Ready") == ("False", "RollingOut")
    assert said(report, "TalkerReady") == said(report, "CodecReady") == ("True", "Serving")
    assert said(report, "GatewayReady") == ("False", "RollingOut")


def test_a_bad_new_replica_degrades_and_the_rest_goes_on_serving():
    cluster = rolling_to_another_model().set(TALKER, 1, ready=False, problem="ImagePullBackOff: no such image")
    report = cluster.look()
    assert said(report, "Ready") == ("True", "Serving")
    assert said(report, "Degraded") == ("True", "ImagePullBackOff")
    assert "the rollout of talker is blocked" in message(report, "Degraded")


def test_what_is_missing_is_told_in_order():
    cluster = Cluster(talker=TalkerSpec(replicas=2)).drop(TALKER, 1).set(CODEC, 0, ready=False)
    assert said(cluster.look(), "Progressing") == ("True", "Scaling")
    assert message(cluster.look(), "Progressing") == "talker: 1 of 2 pods; codec: demo-codec-0 not ready"
    cluster.set(TALKER, 1, reported=ReportedSettings(0, {})).set(CODEC, 0, ready=True, reported=ReportedSettings(9, {}))
    assert said(cluster.look(), "Progressing") == ("True", "ConfirmingSettings")
    assert message(cluster.look(), "Progressing") == "talker: demo-talker-1 has not confirmed settings generation 1"


# Problems ----------------------------------------------------------------------------------------------------


def test_an_edit_that_is_not_applied_is_not_observed_but_told():
    cluster = Cluster()
    cluster.look()
    cluster.owner = Owner("demo", "voices", "u-1", generation=5)
    cluster.problems = [Problem("ApplyFailed", "StatefulSet demo-talker: quota exceeded")]
    report = cluster.look()
    assert report["observedGeneration"] == 4
    assert {each["observedGeneration"] for each in report["conditions"]} == {5}
    assert said(report, "Degraded") == ("True", "ApplyFailed")
    assert said(report, "Progressing") == ("True", "NotApplied")
    assert said(report, "Ready") == ("True", "Serving")
    cluster.problems = []
    assert cluster.look()["observedGeneration"] == 5


def test_a_resource_that_never_was_valid():
    report = status.invalid({}, OWNER, ["spec.model: give either one"], NOW)
    assert said(report, "Ready") == ("False", "Invalid")
    assert said(report, "Degraded") == ("True", "Invalid")
    assert "spec.model: give either one" in message(report, "Degraded")
    assert "observedGeneration" not in report


def test_an_invalid_edit_leaves_what_was_said():
    before = Cluster().look()
    edited = Owner("demo", "voices", "u-1", generation=5)
    report = status.invalid(before, edited, ["spec.codec: no"], NOW)
    assert report["observedGeneration"] == 4
    assert report["talker"] == before["talker"]
    assert conditions(report)["Ready"] == conditions(before)["Ready"]
    assert conditions(report)["Degraded"]["observedGeneration"] == 5
    assert status.invalid(report, edited, ["spec.codec: no"], NOW + timedelta(hours=1)) == report


def test_a_pod_monitor_that_the_cluster_does_not_serve_is_told():
    cluster = Cluster(monitoring=MonitoringSpec(pod_monitor=PodMonitorSpec()))
    assert said(cluster.look(), "Degraded") == ("True", "KindNotServed")
    cluster.served_kinds = frozenset({"PodMonitor"})
    assert said(cluster.look(), "Degraded") == ("False", "AsExpected")


def test_a_time_moves_only_when_its_status_does():
    cluster = Cluster().set(TALKER, 0, ready=False)
    first = conditions(cluster.look())["TalkerReady"]["lastTransitionTime"]
    assert first == "2026-11-21T12:00:00Z"
    cluster.now += timedelta(minutes=1)
    cluster.set(TALKER, 0, problem="ImagePullBackOff: no")
    assert conditions(cluster.look())["TalkerReady"]["lastTransitionTime"] == first
    cluster.set(TALKER, 0, ready=True, problem="")
    assert conditions(cluster.look())["TalkerReady"]["lastTransitionTime"] == "2026-11-21T12:01:00Z"


# Metrics -----------------------------------------------------------------------------------------------------

OBJECTIVES = SloSpec(
    ttfa=(
        TtfaObjective(task_type="CustomVoice", ttfa_p95_ms=300, target=0.95),
        TtfaObjective(task_type="Base", ttfa_p95_ms=500),
    )
)


def test_objectives_are_met_missed_or_unknown():
    cluster = Cluster(slo=OBJECTIVES)
    cluster.metrics = MetricsSummary(
        source="gateways",
        task_types=(
            TaskTypeStats(task_type="CustomVoice", requests=300, within=284, ttfa_p95_ms=311.7),
            TaskTypeStats(task_type="VoiceDesign", requests=3, ttfa_p95_ms=120.0),
        ),
        live_streams=303,
        underruns=4,
    )
    report = cluster.look()
    assert report["slo"] == [
        {"taskType": "CustomVoice", "requests": 300, "within": 0.9466, "ttfaP95Ms": 312, "met": "False"},
        {"taskType": "VoiceDesign", "requests": 3, "ttfaP95Ms": 120, "met": "Unknown"},
        {"taskType": "Base", "requests": 0, "met": "Unknown"},
    ]
    assert (report["ttfaP95"], report["underrunRatio"]) == ("312ms", 0.0132)


@pytest.mark.parametrize(("within", "met"), [(95, "True"), (94, "False")])
def test_an_objective_is_met_at_its_target(within, met):
    cluster = Cluster(slo=OBJECTIVES)
    cluster.metrics = MetricsSummary(
        source="gateways",
        task_types=(TaskTypeStats(task_type="CustomVoice", requests=100, within=within, ttfa_p95_ms=300.0),),
    )
    assert cluster.look()["slo"][0]["met"] == met


def test_beyond_the_last_edge_is_told_as_beyond():
    cluster = Cluster()
    cluster.metrics = MetricsSummary(
        source="gateways", task_types=(TaskTypeStats(task_type="Base", requests=1, ttfa_p95_ms=10_000.0),)
    )
    assert cluster.look()["ttfaP95"] == ">10000ms"


@pytest.mark.parametrize(
    "measured",
    [None, MetricsSummary(source="prometheus", reason="Stale", problem="too old")],
    ids=["not measured yet", "stale"],
)
def test_without_metrics_no_number_is_told(measured):
    cluster = Cluster(slo=OBJECTIVES)
    cluster.metrics = measured
    report = cluster.look()
    assert report["slo"] == [{"taskType": "CustomVoice", "met": "Unknown"}, {"taskType": "Base", "met": "Unknown"}]
    assert "ttfaP95" not in report and "underrunRatio" not in report
    assert said(report, "MetricsAvailable") == (
        ("Unknown", "NotMeasured") if measured is None else ("False", "MetricsStale")
    )


def test_that_there_are_no_metrics_yet_is_no_news_but_that_they_are_gone_is():
    cluster = Cluster()
    found, cluster.metrics = (
        cluster.metrics,
        MetricsSummary(source="gateways", reason="Missing", problem="no gateway runs"),
    )
    assert "MetricsMissing" not in [reason for _, reason in cluster.events()]
    cluster.metrics = found
    assert ("Normal", "MetricsFound") in cluster.events()
    cluster.metrics = MetricsSummary(source="gateways", reason="Missing", problem="no gateway runs")
    assert ("Warning", "MetricsMissing") in cluster.events()


def test_without_traffic_there_is_no_share():
    report = Cluster(slo=OBJECTIVES).look()
    assert said(report, "MetricsAvailable") == ("True", "MetricsFound")
    assert "underrunRatio" not in report


def test_with_tuning_off_nothing_is_said_of_what_is_not_measured():
    off = Cluster(tuning=TuningSpec(mode="Off"), slo=OBJECTIVES)
    off.metrics = None
    off.tuning = State(mode="Off", phase="Off", message="nothing is tuned, as asked for")
    report = off.look()
    assert report["tuning"] == {"mode": "Off", "phase": "Off", "message": "nothing is tuned, as asked for"}
    assert not {"MetricsAvailable", "TuningReady"} & conditions(report).keys() and "slo" not in report


# Tuning ------------------------------------------------------------------------------------------------------

SETTING = Setting(talker_max_num_seqs=8, codec_max_num_seqs=4, chunk_ramp=(1, 2, 4))
TRIAL = Trial(
    id=3,
    knob=Knob.CODEC_ROWS,
    candidate=SETTING.with_value(Knob.CODEC_ROWS, 8),
    baseline=SETTING,
    design="Switchback",
    rationale="the decoder waits",
    start_time=NOW,
    period_seconds=30.0,
    period=Period(index=0, start_time=NOW, all_replicas=True),
    strata=(Stratum(task_type="all", baseline=Counts(requests=4, good=3)),),
)


@pytest.mark.parametrize(
    ("phase", "slo", "expected"),
    [
        ("Watching", None, ("True", "Watching")),
        ("Trial", None, ("True", "Trial")),
        ("Promoting", None, ("True", "Promoting")),
        ("Soaking", None, ("True", "Soaking")),
        ("Paused", None, ("False", "Paused")),
        ("NoData", "objectives", ("False", "NoData")),
        ("NoData", None, ("False", "NoObjective")),
    ],
)
def test_tuning_is_ready_while_it_does_its_work(phase, slo, expected):
    cluster = Cluster(slo=OBJECTIVES) if slo else Cluster()
    cluster.tuning = State(phase=phase, message="in words")
    report = cluster.look()
    assert said(report, "TuningReady") == expected
    assert message(report, "TuningReady") == "in words"
    assert report["tuning"]["phase"] == phase, "also as by default: kubectl shows it"


def test_what_the_tuner_remembers_comes_back_as_it_was():
    cluster = Cluster()
    cluster.tuning = State(phase="Trial", chosen=SETTING, requested=SETTING, trial_count=3, trial=TRIAL)
    assert read(cluster.look()).tuning == cluster.tuning


def test_what_tuning_decides_is_told_by_its_own_events_alone():
    cluster = Cluster()
    cluster.look()
    for phase in ("Trial", "Soaking", "Watching", "NoData", "Paused"):
        cluster.tuning = State(phase=phase, message=phase, trial=TRIAL if phase == "Trial" else None)
        assert cluster.events() == []


def test_of_a_status_of_another_version_all_but_what_tuning_remembers_is_kept():
    cluster = Cluster()
    written = cluster.look()
    written["tuning"] = {"mode": "Recommend", "phase": "Measuring", "message": "requests are counted"}
    found = read(written)
    assert found.tuning is None and found.conditions and found.observed_generation == 4


# Events ------------------------------------------------------------------------------------------------------


def test_from_nothing_to_serving():
    cluster = Cluster()
    pods, cluster.pods = cluster.pods, {}
    cluster.metrics = None
    assert cluster.events() == []
    cluster.pods = {name: msgspec.structs.replace(pod, ready=False, reported=None) for name, pod in pods.items()}
    assert cluster.events() == []
    cluster.pods = pods
    cluster.metrics = MetricsSummary(source="gateways")
    assert cluster.events() == [
        ("Normal", "Ready"),
        ("Normal", "GatewayReady"),
        ("Normal", "TalkerReady"),
        ("Normal", "CodecReady"),
        ("Normal", "ConnectorReady"),
        ("Normal", "MetricsFound"),
        ("Normal", "Complete"),
        ("Normal", "GatewaySettingsConfirmed"),
        ("Normal", "TalkerSettingsConfirmed"),
        ("Normal", "CodecSettingsConfirmed"),
    ]
    assert cluster.events() == []


def test_a_trouble_is_told_once_and_so_is_its_end():
    cluster = Cluster(talker=TalkerSpec(replicas=2))
    cluster.look()
    cluster.set(TALKER, 0, ready=False, problem="ImagePullBackOff: no").set(TALKER, 1, ready=False)
    assert cluster.events() == [("Warning", "NotReady"), ("Warning", "ImagePullBackOff")]
    cluster.set(TALKER, 0, problem="ErrImagePull: still no", restarts=1)
    assert cluster.events() == []
    cluster.set(TALKER, 0, ready=True, problem="").set(TALKER, 1, ready=True)
    cluster.set(TALKER, 0, reported=ReportedSettings(1, {})).set(TALKER, 1, reported=ReportedSettings(1, {}))
    assert cluster.events() == [
        ("Normal", "Ready"),
        ("Normal", "TalkerReady"),
        ("Normal", "Complete"),
        ("Normal", "Recovered"),
    ]


def test_a_replica_that_is_lost_while_others_serve_is_no_alarm():
    cluster = Cluster(talker=TalkerSpec(replicas=2))
    cluster.look()
    cluster.drop(TALKER, 1)
    assert cluster.events() == [("Normal", "Scaling")]
    cluster.set(TALKER, 1, ready=True)
    assert cluster.events() == [("Normal", "Complete")]


def test_an_edit_of_the_image_begins_and_ends_a_roll_out():
    cluster = Cluster(talker=TalkerSpec(replicas=2))
    cluster.look()
    edited = Cluster(talker=TalkerSpec(replicas=2), image="new:2")
    edited.previous, new = cluster.previous, edited.pods
    edited.pods = cluster.pods
    assert edited.events() == [("Normal", "ImageChanged"), ("Normal", "ModelChanged"), ("Normal", "RolloutStarted")]
    edited.pods = {**cluster.pods, "demo-talker-1": new["demo-talker-1"]}
    assert edited.events() == []
    edited.pods = new
    assert edited.events() == [("Normal", "Complete")]


def test_settings_are_told_once_per_generation_and_not_when_a_replica_comes_back():
    cluster = Cluster(talker=TalkerSpec(replicas=2))
    cluster.look()
    cluster.set(TALKER, 1, ready=True, reported=None)
    assert cluster.events() == []
    assert cluster.previous["talker"]["confirmedGeneration"] == 1
    cluster.set(TALKER, 1, reported=ReportedSettings(1, {}))
    assert cluster.events() == [("Normal", "Complete")]


def test_a_problem_and_its_end():
    cluster = Cluster()
    cluster.look()
    cluster.problems = [Problem("NameConflict", "Service demo-gateway is somebody else's")]
    assert cluster.events() == [("Warning", "NameConflict")]
    cluster.problems = [Problem("NameConflict", "Service demo-gateway is still somebody else's")]
    assert cluster.events() == []
    cluster.problems = []
    assert cluster.events() == [("Normal", "Complete"), ("Normal", "Recovered")]


def test_an_invalid_resource_is_told_once():
    first = status.invalid({}, OWNER, ["spec.model: no"], NOW)
    assert [(e.type, e.reason) for e in status_events({}, first)] == [("Warning", "Invalid")]
    again = status.invalid(first, OWNER, ["spec.model: no, really"], NOW)
    assert status_events(first, again) == []


def test_events_are_no_longer_than_kubernetes_takes():
    cluster = Cluster()
    cluster.problems = [Problem("ApplyFailed", "y" * 5000)]
    assert all(len(event.message) <= 1000 for event in status_events({}, cluster.look()))


def test_conditions_carry_what_kubernetes_asks_of_them():
    for each in Cluster().look()["conditions"]:
        condition = msgspec.convert(each, Condition)
        assert condition.message and condition.reason
