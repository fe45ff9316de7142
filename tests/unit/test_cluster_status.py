"""A pipeline's status: conditions, stage reports, and the Events of status changes."""

from __future__ import annotations

import json
from datetime import timedelta

import msgspec
import pytest

from support import tuning as tuned
from support.cluster_plan import check_golden
from support.cluster_status import (
    CODEC,
    CONFIG,
    GATEWAY,
    LONG_AGO,
    NOW,
    OWNER,
    REDIS,
    TALKER,
    Cluster,
    condition,
    conditions,
    measured,
    message,
)
from support.resolved import resolved
from syrinx_operator.cluster.objects.state import ObjectKey, Observed, Owner, Problem
from syrinx_operator.cluster.plan import plan
from syrinx_operator.cluster.report.status import failed
from syrinx_operator.cluster.runners.tuning import paused_metrics
from syrinx_operator.resource.fields.autoscaling import StageAutoscalingSpec
from syrinx_operator.resource.fields.connector import ConnectorSpec
from syrinx_operator.resource.fields.gateway import GatewaySpec, HttpRouteSpec, ParentRef, RouteSpec
from syrinx_operator.resource.fields.tuning import SloSpec, TtfaObjective
from syrinx_operator.resource.knobs import Knob
from syrinx_operator.resource.spec import CaptureShape, CodecSpec, MonitoringSpec, PodMonitorSpec, TalkerSpec
from syrinx_operator.resource.state.status import PipelineStatus, read
from syrinx_operator.resource.state.tuning_status import Curve, Guard, Soak, State, TrialRecord
from syrinx_stages.contract.settings import ReportedSettings
from syrinx_stages.contract.stages import WORKERS, Stage

OBJECTIVES = SloSpec(
    ttfa=(
        TtfaObjective(task_type="CustomVoice", ttfa_p95_ms=300, target=0.95),
        TtfaObjective(task_type="Base", ttfa_p95_ms=500),
    )
)


def invalid(previous, owner, message, now):
    return failed(previous, owner, Problem("Invalid", message), now)


# Ready -------------------------------------------------------------------------------------------------------


def test_golden():
    """A pipeline that serves although a codec crashes, while the tuner tries a setting."""
    codec = CodecSpec(replicas=2, capture_pairs=(CaptureShape(rows=2, frames=4),))
    cluster = Cluster(codec=codec, talker=TalkerSpec(replicas=11), slo=OBJECTIVES)
    cluster.set(CODEC, 1, ready=False, problem="CrashLoopBackOff: exit code 1", restarts=3)
    cluster.metrics = measured(CustomVoice=(300, 284, 311.7), VoiceDesign=(3, 3, 120.0), live_streams=303, underruns=4)
    record = TrialRecord(id=0, time=NOW, start_time=NOW, before="a", after="b", verdict="Promoted", reason="c")
    history = tuple(msgspec.structs.replace(record, id=n) for n in range(20))
    cluster.tuning = msgspec.structs.replace(tuned.in_trial(NOW), chosen=tuned.BASE, trial_count=3, history=history)
    report = cluster.update()
    check_golden("status.yaml", [json.loads(json.dumps(report))])
    assert read(report).tuning.chosen == tuned.BASE


def test_the_settings_generation_does_not_grow_while_the_config_map_cannot_be_written():
    cluster = Cluster()
    assert cluster.update()["codec"]["settingsGeneration"] == 1
    del cluster.objects[ObjectKey("ConfigMap", "demo-codec")]
    for _ in range(3):
        known = {CODEC: cluster.previous["codec"]["settingsGeneration"]}
        observed = Observed(objects=cluster.objects, password_uid="p-1", token_uid="t-1", status_generations=known)
        cluster.plan = plan(cluster.pipeline, OWNER, observed, CONFIG)
        cluster.problems = [Problem("NameConflict", "ConfigMap demo-codec exists and does not belong to this pipeline")]
        assert cluster.plan.settings[CODEC].generation == 2
        assert cluster.update()["codec"]["settingsGeneration"] == 1


def test_every_status_matches_its_schema():
    broken = Cluster(talker=TalkerSpec(replicas=3)).set(TALKER, 2, ready=False, problem="x" * 5000)
    broken.problems = [Problem("ApplyFailed", "y" * 5000)]
    for report in (Cluster().update(), broken.update(), invalid({}, OWNER, "z" * 5000, NOW)):
        msgspec.convert(report, PipelineStatus)


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
        ("no reason first", "NotRunning", "kubectl describe pod demo-talker-0"),
    ],
)
def test_an_unready_replica_is_reported_with_the_clusters_reason_and_advice(problem, reason, advice):
    report = Cluster().set(TALKER, 0, ready=False, problem=problem).update()
    assert condition(report, "TalkerReady") == condition(report, "Ready") == ("False", reason)
    assert problem in message(report, "TalkerReady") and advice in message(report, "TalkerReady")
    assert message(report, "TalkerReady") in message(report, "Ready")


def test_a_starting_replica_is_not_degraded_until_its_startup_limit():
    cluster = Cluster().set(TALKER, 0, ready=False)
    assert condition(cluster.update(), "TalkerReady") == ("False", "Starting")
    assert condition(cluster.update(), "Degraded") == ("False", "AsExpected")
    cluster.now += timedelta(seconds=cluster.pipeline.spec.talker.startup_seconds + 31)
    assert condition(cluster.update(), "TalkerReady") == ("False", "NotReady")
    assert condition(cluster.update(), "Degraded") == ("True", "NotReady")
    assert "over 10.5 minutes" in message(cluster.update(), "Degraded")


def test_a_replica_that_says_why_it_is_not_ready_is_quoted():
    reason = "Redis at redis:6379: the user may not run client|id; allow it with ACL SETUSER USER +client|id"
    cluster = Cluster().set(TALKER, 0, ready=False, unready=reason)
    assert condition(cluster.update(), "TalkerReady") == ("False", "Starting")
    assert message(cluster.update(), "TalkerReady") == f"demo-talker-0: {reason}"
    assert reason in message(cluster.update(), "Ready")
    cluster.now += timedelta(seconds=cluster.pipeline.spec.talker.startup_seconds + 31)
    assert condition(cluster.update(), "TalkerReady") == ("False", "NotReady")
    assert f"over 10.5 minutes: {reason}; see `kubectl logs" in message(cluster.update(), "Degraded")


def test_a_gateways_startup_limit_begins_when_its_stages_are_ready():
    cluster = Cluster().set(TALKER, 0, ready=False).set(GATEWAY, 0, ready=False, unready_since=LONG_AGO)
    assert condition(cluster.update(), "GatewayReady") == ("False", "Starting")
    cluster.set(TALKER, 0, ready=True)
    assert condition(cluster.update(), "GatewayReady") == ("False", "Starting")
    cluster.now += timedelta(minutes=6)
    assert condition(cluster.update(), "GatewayReady") == ("False", "NotReady")
    assert condition(cluster.update(), "Degraded") == ("True", "NotReady")


def test_redis_is_the_root_cause_of_unready_stages():
    cluster = Cluster().set(REDIS, 0, ready=False, problem="Unschedulable: no volume")
    for stage in (TALKER, CODEC, GATEWAY):
        cluster.set(stage, 0, ready=False)
    report = cluster.update()
    assert condition(report, "Ready") == condition(report, "ConnectorReady") == ("False", "Unschedulable")
    assert report["redis"]["ready"] is False


def test_the_condition_of_an_external_redis_is_inferred_from_the_stages():
    cluster = Cluster(connector=ConnectorSpec(url="rediss://cache:6380/0"))
    assert condition(cluster.update(), "ConnectorReady") == ("True", "Reachable")
    assert "redis" not in cluster.update()
    cluster.set(TALKER, 0, ready=False, problem="CrashLoopBackOff: exit code 1").set(CODEC, 0, ready=False)
    report = cluster.update()
    assert condition(report, "ConnectorReady") == ("Unknown", "NotVerified")
    assert condition(report, "Ready") == ("False", "CrashLoopBackOff")
    assert "rediss://cache:6380/0" in message(report, "Ready")


def test_missing_pods_are_reported_after_a_minute():
    cluster = Cluster(talker=TalkerSpec(replicas=2)).drop(TALKER, 1)
    assert condition(cluster.update(), "Degraded") == ("False", "AsExpected")
    cluster.now += timedelta(seconds=61)
    assert condition(cluster.update(), "Degraded") == ("True", "PodsMissing")
    assert "StatefulSet demo-talker has 1 of 2 pods" in message(cluster.update(), "Degraded")
    assert "kubectl describe statefulset demo-talker" in message(cluster.update(), "Degraded")
    cluster.set(TALKER, 1)
    assert condition(cluster.update(), "Degraded") == ("False", "AsExpected")


def test_missing_pods_of_a_deployment_have_its_replica_failure():
    cluster = Cluster().set(GATEWAY, 0, template="old")
    quota = {"type": "ReplicaFailure", "status": "True", "message": 'pods "x" is forbidden: exceeded quota: q'}
    cluster.objects[ObjectKey("Deployment", "demo-gateway")]["status"] = {"replicas": 1, "conditions": [quota]}
    cluster.update()
    cluster.now += timedelta(seconds=61)
    assert condition(cluster.update(), "Degraded") == ("True", "PodsMissing")
    assert "exceeded quota: q" in message(cluster.update(), "Degraded")


def test_a_stage_scaled_to_zero_by_an_autoscaler():
    cluster = Cluster().drop(TALKER, 0)
    cluster.plan = msgspec.structs.replace(cluster.plan, replicas={**cluster.plan.replicas, TALKER: 0})
    assert condition(cluster.update(), "TalkerReady") == ("False", "ScaledToZero")
    assert cluster.update()["talker"]["summary"] == "0/0"


def test_a_crash_loop_is_reported_between_two_crashes():
    cluster = Cluster().set(TALKER, 0, ready=False, restarts=2, problem="CrashLoopBackOff: exit code 1 (Error)")
    cluster.update()
    cluster.set(TALKER, 0, restarts=3, problem="")
    assert condition(cluster.update(), "TalkerReady") == ("False", "CrashLoopBackOff")
    assert condition(cluster.update(), "Degraded") == ("True", "CrashLoopBackOff")
    cluster.set(TALKER, 0, problem="Terminated: exit code 1 (Error)")
    assert cluster.events() == []
    cluster.set(TALKER, 0, ready=True, problem="")
    assert condition(cluster.update(), "Degraded") == ("False", "AsExpected")


# Rollouts ----------------------------------------------------------------------------------------------------


def rolling_to_another_model():
    """Two of each; the upper talker and codec already have the new template and model generation."""
    parts = {"talker": TalkerSpec(replicas=2), "codec": CodecSpec(replicas=2), "gateway": GatewaySpec(replicas=2)}
    cluster = Cluster(**parts, image="new:2")
    for stage, n in ((TALKER, 0), (CODEC, 0), (GATEWAY, 0), (GATEWAY, 1)):
        cluster.set(stage, n, template="old", model_generation="older")
    return cluster


def test_the_service_answers_while_the_old_generation_is_complete():
    cluster = rolling_to_another_model()
    report = cluster.update()
    assert condition(report, "Ready") == ("True", "Serving")
    assert condition(report, "Progressing") == ("True", "RollingOut")
    assert message(report, "Ready") == f"serving model generation older until {cluster.plan.generation} is ready"
    assert "model generation older" in message(report, "TalkerReady")
    assert "talker: 1 of 2 replicas are updated" in message(report, "Progressing")
    assert report["talker"]["summary"] == "2/2" and report["talker"]["updatedReplicas"] == 1


def test_stages_of_different_generations_are_not_ready():
    cluster = rolling_to_another_model().set(CODEC, 0, ready=False)
    report = cluster.update()
    assert condition(report, "Ready") == ("False", "RollingOut")
    assert condition(report, "TalkerReady") == condition(report, "CodecReady") == ("True", "Serving")
    assert condition(report, "GatewayReady") == ("False", "RollingOut")


def test_a_failing_new_replica_degrades_the_pipeline_which_keeps_serving():
    cluster = rolling_to_another_model().set(TALKER, 1, ready=False, problem="ImagePullBackOff: no such image")
    report = cluster.update()
    assert condition(report, "Ready") == ("True", "Serving")
    assert condition(report, "Degraded") == ("True", "ImagePullBackOff")
    assert "the rollout of talker is blocked" in message(report, "Degraded")


def test_a_pod_that_serves_meanwhile_is_not_the_end_of_a_roll_out():
    """The pod that it stands in for may take minutes to end, and has a successor then."""
    cluster = Cluster().set(CODEC, 1).set(CODEC, 0, template="old", terminating=True)
    assert condition(cluster.update(), "Progressing") == ("True", "RollingOut")
    assert message(cluster.update(), "Progressing") == "codec: demo-codec-1 serves while another pod is replaced"
    cluster.set(CODEC, 0, stuck=True)
    assert condition(cluster.update(), "Progressing") == ("False", "Complete"), "it serves until the node is back"
    cluster.drop(CODEC, 1).set(CODEC, 0, template=cluster.plan.templates[CODEC], terminating=False, stuck=False)
    assert condition(cluster.update(), "Progressing") == ("False", "Complete")


def test_progressing_lists_differences_in_order():
    cluster = Cluster(talker=TalkerSpec(replicas=2)).drop(TALKER, 1).set(CODEC, 0, ready=False)
    assert condition(cluster.update(), "Progressing") == ("True", "Scaling")
    assert message(cluster.update(), "Progressing") == "talker: 1 of 2 pods; codec: demo-codec-0 not ready"
    cluster.set(TALKER, 1, reported=ReportedSettings(0, {}, {})).set(
        CODEC, 0, ready=True, reported=ReportedSettings(9, {}, {})
    )
    assert condition(cluster.update(), "Progressing") == ("True", "ConfirmingSettings")
    assert message(cluster.update(), "Progressing") == "talker: demo-talker-1 has not confirmed settings generation 1"


# Problems ----------------------------------------------------------------------------------------------------


def test_observed_generation_stays_while_an_edit_is_not_applied():
    cluster = Cluster()
    cluster.update()
    cluster.owner = Owner("demo", "voices", "u-1", generation=5)
    cluster.problems = [Problem("ApplyFailed", "StatefulSet demo-talker: quota exceeded")]
    report = cluster.update()
    assert report["observedGeneration"] == 4
    assert {each["observedGeneration"] for each in report["conditions"]} == {5}
    assert condition(report, "Degraded") == ("True", "ApplyFailed")
    assert condition(report, "Progressing") == ("True", "NotApplied")
    assert condition(report, "Ready") == ("True", "Serving")
    cluster.problems = []
    assert cluster.update()["observedGeneration"] == 5


def test_a_new_invalid_resource():
    report = invalid({}, OWNER, "spec.model: give either one", NOW)
    assert condition(report, "Ready") == ("False", "Invalid")
    assert condition(report, "Degraded") == ("True", "Invalid")
    assert "spec.model: give either one" in message(report, "Degraded")
    assert "observedGeneration" not in report


def test_an_invalid_edit_keeps_the_other_conditions():
    before = Cluster().update()
    edited = Owner("demo", "voices", "u-1", generation=5)
    report = invalid(before, edited, "spec.codec: no", NOW)
    assert report["observedGeneration"] == 4
    assert report["talker"] == before["talker"]
    assert conditions(report)["Ready"] == conditions(before)["Ready"]
    assert conditions(report)["Degraded"]["observedGeneration"] == 5
    assert invalid(report, edited, "spec.codec: no", NOW + timedelta(hours=1)) == report


def test_an_unsupported_pod_monitor_is_reported():
    cluster = Cluster(monitoring=MonitoringSpec(pod_monitor=PodMonitorSpec()))
    assert condition(cluster.update(), "Degraded") == ("True", "KindNotServed")
    cluster.served_kinds = frozenset({"PodMonitor"})
    assert condition(cluster.update(), "Degraded") == ("False", "AsExpected")


def test_a_route_that_no_gateway_accepts_is_reported():
    route = RouteSpec(http_route=HttpRouteSpec(parent_refs=(ParentRef(name="public"),)))
    cluster = Cluster(gateway=GatewaySpec(route=route))
    assert condition(cluster.update(), "Degraded") == ("True", "KindNotServed")
    assert condition(cluster.update(), "Ready") == ("True", "Serving")
    cluster.served_kinds = frozenset({"HTTPRoute"})
    assert condition(cluster.update(), "Degraded") == ("False", "AsExpected")
    refused = {"type": "Accepted", "status": "False", "reason": "NotAllowedByListeners", "message": "no\nlistener"}
    status = {"parents": [{"parentRef": {"name": "public"}, "conditions": [refused]}]}
    metadata = {"labels": {"app.kubernetes.io/component": "gateway"}}
    cluster.objects[ObjectKey("HTTPRoute", "demo-gateway")] = {"metadata": metadata, "status": status}
    report = cluster.update()
    assert condition(report, "Degraded") == ("True", "RouteNotAccepted")
    assert "Gateway public reports Accepted False (NotAllowedByListeners): no listener" in message(report, "Degraded")


def test_the_transition_time_changes_only_with_the_status():
    cluster = Cluster().set(TALKER, 0, ready=False)
    first = conditions(cluster.update())["TalkerReady"]["lastTransitionTime"]
    assert first == "2026-11-21T12:00:00Z"
    cluster.now += timedelta(minutes=1)
    cluster.set(TALKER, 0, problem="ImagePullBackOff: no")
    assert conditions(cluster.update())["TalkerReady"]["lastTransitionTime"] == first
    cluster.set(TALKER, 0, ready=True, problem="")
    assert conditions(cluster.update())["TalkerReady"]["lastTransitionTime"] == "2026-11-21T12:01:00Z"


# Metrics -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("within", "met"), [(95, "True"), (94, "False")])
def test_an_objective_is_met_at_its_target(within, met):
    cluster = Cluster(slo=OBJECTIVES)
    cluster.metrics = measured(CustomVoice=(100, within, 300.0))
    assert cluster.update()["slo"][0]["met"] == met


def test_without_metrics_no_figures_are_reported():
    cluster = Cluster(slo=OBJECTIVES)
    cluster.metrics = measured("too old")
    report = cluster.update()
    assert report["slo"] == [{"taskType": "CustomVoice", "met": "Unknown"}, {"taskType": "Base", "met": "Unknown"}]
    assert "ttfaP95" not in report and "underrunRatio" not in report
    assert condition(report, "MetricsAvailable") == ("False", "MetricsStale")


def test_missing_metrics_cause_an_event_only_if_there_were_some():
    cluster = Cluster()
    found, cluster.metrics = cluster.metrics, measured("no gateway runs", "Missing")
    assert "MetricsMissing" not in [reason for _, reason in cluster.events()]
    cluster.metrics = found
    assert ("Normal", "MetricsFound") in cluster.events()
    cluster.metrics = measured("no gateway runs", "Missing")
    assert ("Warning", "MetricsMissing") in cluster.events()


# Autoscaling -------------------------------------------------------------------------------------------------

SCALED = {
    "talker": TalkerSpec(autoscaling=StageAutoscalingSpec(max_replicas=3)),
    "codec": CodecSpec(autoscaling=StageAutoscalingSpec(max_replicas=4)),
    "slo": OBJECTIVES,
}


def scaling(memory, **spec):
    """Returns the condition about replicas, and its message."""
    cluster = Cluster(**{**SCALED, **spec})
    cluster.tuning = State(mode="Recommend", phase="Watching", replicas=memory)
    report = cluster.update()
    return condition(report, "AutoscalingReady"), message(report, "AutoscalingReady")


def test_the_condition_about_replicas_says_what_limits_them():
    assert scaling(None)[0] == ("Unknown", "NoData")
    assert scaling(tuned.scaled(NOW, 3, 2)) == (("True", "Scaling"), "talker 3, codec 2")
    memory = tuned.scaled(NOW, 3, 2)
    more = msgspec.structs.replace(memory.stages[Stage.TALKER], wanted=5)
    limited = msgspec.structs.replace(memory, stages={**memory.stages, Stage.TALKER: more})
    status, text = scaling(limited)
    assert status == ("False", "MaxReplicas")
    assert text == "talker: 5 replicas are needed, and maxReplicas is 3"
    none = msgspec.structs.replace(memory.capacity, curves=dict.fromkeys(WORKERS, Curve()))
    assert scaling(msgspec.structs.replace(memory, capacity=none))[0] == ("False", "NoCapacity")


# Tuning ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "slo", "expected"),
    [
        ("Watching", None, ("True", "Watching")),
        ("Trial", None, ("True", "Trial")),
        ("Soaking", None, ("True", "Soaking")),
        ("Paused", None, ("False", "Paused")),
        ("NoData", "objectives", ("False", "NoData")),
        ("NoData", None, ("False", "NoObjective")),
    ],
)
def test_tuning_is_ready_in_its_active_phases(phase, slo, expected):
    cluster = Cluster(slo=OBJECTIVES) if slo else Cluster()
    cluster.tuning = State(phase=phase, message="a message")
    report = cluster.update()
    assert condition(report, "TuningReady") == expected
    assert message(report, "TuningReady").startswith("a message")
    assert report["tuning"]["phase"] == phase, "even if it is the default, because kubectl shows it"


def test_the_last_good_setting_is_what_a_regression_reverts_to():
    cluster, better = Cluster(), tuned.BASE.with_value(Knob.CODEC_ROWS, 8)
    soak = Soak(id=3, before=tuned.BASE, start_time=NOW, rate=12.5, guard=Guard(expected_bad=0.1))
    for chosen, watch, last_good in ((None, None, None), (better, None, better), (better, soak, tuned.BASE)):
        cluster.tuning = State(chosen=chosen, soak=watch)
        assert read(cluster.update()).tuning.last_good == last_good


def test_what_another_version_wrote_is_read_as_far_as_it_is_known():
    cluster = Cluster(slo=OBJECTIVES)
    written = cluster.update()
    known = written["conditions"][0]
    written["conditions"] = [{**known, "status": "Maybe"}, {**known, "type": "CanaryReady"}]
    written["tuning"] = {"mode": "Guess", "phase": "Measuring", "message": "requests are counted", "trial": {"id": 1}}
    written["slo"] = [{"taskType": "Song", "met": "True"}, {"taskType": "Base", "met": "True", "requests": 3}]
    written["talker"] |= {"surge": 1, "confirmed": [{"replica": "demo-talker-0", "restarts": "many"}]}
    found = read(written)
    assert [each.type for each in found.conditions] == ["CanaryReady"]
    assert (found.tuning.phase, found.tuning.trial) == ("Measuring", None)
    assert [each.task_type for each in found.slo] == ["Base"] and found.observed_generation == 4
    assert [(each.replica, each.restarts) for each in found.talker.confirmed] == [("demo-talker-0", None)]


def test_fields_that_the_operator_does_not_know_are_named():
    cluster = Cluster()
    assert "UnknownFields" not in conditions(cluster.update())
    cluster.unknown_fields = "spec.talker.pitch"
    assert ("Warning", "UnknownFields") in cluster.events()
    report = cluster.update()
    assert condition(report, "UnknownFields") == ("True", "Ignored")
    assert "spec.talker.pitch" in message(report, "UnknownFields")
    assert condition(report, "Degraded") == ("False", "AsExpected")
    assert cluster.events() == [], "once"


EARLIER = {"max_queue": 256, "max_queue_seconds": 2.0}


@pytest.mark.parametrize(
    ("stage", "known", "spec", "unknown"),
    [
        (TALKER, {"max_num_seqs": 8}, {"talker": TalkerSpec(lead_limit_seconds=5.0)}, "lead_limit_seconds"),
        (GATEWAY, EARLIER, {"slo": OBJECTIVES}, "ttfa_seconds"),
        (GATEWAY, EARLIER, {}, ""),
    ],
)
def test_a_setting_that_an_earlier_image_does_not_know_is_named(stage, known, spec, unknown):
    cluster = Cluster(**spec)
    report = cluster.set(stage, 0, reported=ReportedSettings(1, known, known)).update()
    assert ("UnknownFields" in conditions(report)) is bool(unknown)
    if unknown:
        assert condition(report, "UnknownFields") == ("True", "Ignored")
        assert f"{cluster.name(stage, 0)} does not know {unknown}" in message(report, "UnknownFields")
    assert condition(report, "Degraded") == ("False", "AsExpected")


# Events ------------------------------------------------------------------------------------------------------


def test_the_events_of_a_start():
    cluster = Cluster()
    pods, cluster.pods = cluster.pods, {}
    cluster.metrics = measured("no gateway runs", "Missing")
    assert cluster.events() == []
    cluster.pods = {name: msgspec.structs.replace(pod, ready=False, reported=None) for name, pod in pods.items()}
    assert cluster.events() == []
    cluster.pods = pods
    cluster.metrics = measured()
    assert cluster.events() == [
        *(("Normal", reason) for reason in ("Ready", "GatewayReady", "TalkerReady", "CodecReady", "ConnectorReady")),
        *(("Normal", reason) for reason in ("MetricsFound", "Complete")),
        *(("Normal", f"{stage}SettingsConfirmed") for stage in ("Gateway", "Talker", "Codec")),
    ]
    assert cluster.events() == []


def test_a_problem_and_its_recovery_cause_one_event_each():
    cluster = Cluster(talker=TalkerSpec(replicas=2))
    cluster.update()
    cluster.set(TALKER, 0, ready=False, problem="ImagePullBackOff: no").set(TALKER, 1, ready=False)
    assert cluster.events() == [("Warning", "NotReady"), ("Warning", "ImagePullBackOff")]
    cluster.set(TALKER, 0, problem="ErrImagePull: still no", restarts=1)
    assert cluster.events() == []
    cluster.set(TALKER, 0, ready=True, problem="").set(TALKER, 1, ready=True)
    cluster.set(TALKER, 0, reported=ReportedSettings(1, {}, {})).set(TALKER, 1, reported=ReportedSettings(1, {}, {}))
    assert cluster.events() == [("Normal", each) for each in ("Ready", "TalkerReady", "Complete", "Recovered")]


def test_a_pause_causes_no_event_and_no_missing_metrics():
    spec = {"talker": TalkerSpec(replicas=2, autoscaling=StageAutoscalingSpec(max_replicas=4)), "slo": OBJECTIVES}
    cluster = Cluster(**spec).drop(TALKER, 1)
    assert condition(cluster.update(), "MetricsAvailable")[0] == "True"
    running, found = cluster.pipeline, cluster.metrics
    cluster.pipeline, cluster.metrics = resolved(**spec, paused=True), paused_metrics(NOW)
    assert cluster.events() == []
    assert condition(cluster.previous, "AutoscalingReady") == ("False", "Paused")
    assert "MetricsAvailable" not in conditions(cluster.previous)
    cluster.pipeline, cluster.metrics = running, found
    cluster.set(TALKER, 1, ready=True)
    assert ("Normal", "Complete") in cluster.events()


def test_losing_one_of_several_replicas_causes_no_warning():
    cluster = Cluster(talker=TalkerSpec(replicas=2))
    cluster.update()
    cluster.drop(TALKER, 1)
    assert cluster.events() == [("Normal", "Scaling")]
    cluster.set(TALKER, 1, ready=True)
    assert cluster.events() == [("Normal", "Complete")]


def test_the_events_of_an_image_change():
    cluster = Cluster(talker=TalkerSpec(replicas=2))
    cluster.update()
    edited = Cluster(talker=TalkerSpec(replicas=2), image="new:2")
    edited.previous, new = cluster.previous, edited.pods
    edited.pods = cluster.pods
    assert edited.events() == [("Normal", "ImageChanged"), ("Normal", "ModelChanged"), ("Normal", "RolloutStarted")]
    edited.pods = {**cluster.pods, "demo-talker-1": new["demo-talker-1"]}
    assert edited.events() == []
    edited.pods = new
    assert edited.events() == [("Normal", "Complete")]
