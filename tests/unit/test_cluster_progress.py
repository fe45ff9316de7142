"""Roll-outs and scaling that make no progress, lost nodes, and how the status reports them."""

from __future__ import annotations

from datetime import timedelta

from support.cluster_status import CODEC, GATEWAY, NOW, TALKER, Cluster, condition, message
from syrinx_operator.cluster.objects.state import ObjectKey
from syrinx_operator.resource.spec import TalkerSpec
from syrinx_stages.contract.settings import ReportedSettings


def time(after):
    return (NOW + after).strftime("%Y-%m-%dT%H:%M:%SZ")


CREATED = time(timedelta(0))


def rolling():
    """The only talker has an earlier template, and the second one is not ready yet."""
    cluster = Cluster(progress_deadline_seconds=600)
    cluster.set(TALKER, 0, template="old")
    with_talkers(cluster, 2)
    cluster.set(TALKER, 1, ready=False, unready_since=CREATED, created=CREATED, changed=CREATED)
    return cluster


def with_talkers(cluster, replicas):
    """The StatefulSet of the talkers, as the plan has it during a roll-out."""
    key = ObjectKey("StatefulSet", "demo-talker")
    cluster.objects[key] = {**cluster.objects[key], "spec": {**cluster.objects[key]["spec"], "replicas": replicas}}
    return cluster


def pass_time(cluster, seconds):
    cluster.now += timedelta(seconds=seconds)
    return cluster.update()


def test_a_rollout_without_progress_fails_at_the_deadline():
    cluster = rolling()
    assert condition(cluster.update(), "Progressing") == ("True", "RollingOut")
    assert message(cluster.previous, "Progressing") == "talker: 1 of 2 replicas are updated"
    pass_time(cluster, 600)
    assert cluster.events() == []
    cluster.now += timedelta(seconds=1)
    assert cluster.events() == [("Warning", "ProgressDeadlineExceeded")]
    assert condition(cluster.previous, "Progressing") == ("False", "ProgressDeadlineExceeded")
    assert condition(cluster.previous, "Degraded") == ("True", "ProgressDeadlineExceeded")
    assert condition(cluster.previous, "Ready") == ("True", "Serving"), "the old replica still serves"
    assert message(cluster.previous, "Progressing") == (
        "no progress for 10 minutes: talker: 1 of 2 replicas are updated"
    )


def test_it_stays_failed_until_there_is_progress():
    cluster = rolling()
    cluster.update()
    pass_time(cluster, 601)
    assert pass_time(cluster, 3600) and cluster.events() == []
    cluster.set(TALKER, 1, ready=True, changed=time(timedelta(seconds=4000)))
    assert ("Normal", "Recovered") in cluster.events()
    assert condition(cluster.previous, "Progressing") == ("True", "RollingOut")
    cluster.set(TALKER, 0, template=cluster.plan.templates[TALKER]).drop(TALKER, 1)
    assert ("Normal", "Complete") in cluster.events()


def test_each_step_starts_the_deadline_again():
    cluster = rolling()
    cluster.update()
    pass_time(cluster, 590)
    cluster.set(TALKER, 1, changed=time(timedelta(seconds=595)))
    assert condition(pass_time(cluster, 590), "Progressing") == ("True", "RollingOut")
    assert condition(pass_time(cluster, 20), "Progressing") == ("False", "ProgressDeadlineExceeded")


def test_the_deadline_counts_from_the_edit_if_no_pod_changes():
    cluster = Cluster(progress_deadline_seconds=600)
    cluster.update()
    pass_time(cluster, 10_000)
    cluster.set(CODEC, 0, reported=ReportedSettings(0, {}, {}))
    assert condition(cluster.update(), "Progressing") == ("True", "ConfirmingSettings")
    assert condition(pass_time(cluster, 590), "Progressing") == ("True", "ConfirmingSettings")
    assert condition(pass_time(cluster, 20), "Degraded") == ("True", "ProgressDeadlineExceeded")


def test_pods_that_the_cluster_does_not_create_stay_reported_after_the_deadline():
    cluster = Cluster(progress_deadline_seconds=600, talker=TalkerSpec(replicas=2)).drop(TALKER, 1)
    cluster.update()
    for _ in range(3):
        report = pass_time(cluster, 601)
        assert condition(report, "Progressing") == ("False", "ProgressDeadlineExceeded")
        assert condition(report, "Degraded") == ("True", "PodsMissing")


def test_gateways_that_wait_for_a_talker_are_not_stalled_themselves():
    cluster = Cluster(progress_deadline_seconds=600)
    cluster.set(TALKER, 0, ready=False, changed=CREATED).set(GATEWAY, 0, ready=False, changed=CREATED)
    cluster.update()
    assert (
        message(pass_time(cluster, 601), "Progressing") == "no progress for 10 minutes: talker: demo-talker-0 not ready"
    )


def test_the_default_deadline_allows_for_a_download_and_a_load():
    cluster = Cluster(talker=TalkerSpec(startup_seconds=1200))
    cluster.set(TALKER, 0, ready=False, initializing=True, unready_since=CREATED, changed=CREATED)
    cluster.update()
    report = pass_time(cluster, 1800)
    assert (condition(report, "Progressing"), condition(report, "Degraded")[0]) == (("True", "Starting"), "False")
    assert condition(pass_time(cluster, 1), "Progressing") == ("False", "ProgressDeadlineExceeded")


# Why ---------------------------------------------------------------------------------------------------------


def test_the_scheduler_is_quoted_at_once_and_reported_after_five_minutes():
    """An autoscaler may be adding a node meanwhile."""
    cluster = rolling().set(TALKER, 1, problem="Unschedulable: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu")
    report = cluster.update()
    assert "demo-talker-1: Unschedulable: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu" in message(
        report, "Progressing"
    )
    assert condition(pass_time(cluster, 299), "Degraded") == ("False", "AsExpected")
    report = pass_time(cluster, 2)
    assert condition(report, "Degraded") == ("True", "Unschedulable")
    assert "the running pod is kept until a second one is ready" in message(report, "Degraded")
    assert "set spec.updateStrategy: Replace" in message(report, "Degraded")
    report = pass_time(cluster, 600)
    assert condition(report, "Degraded") == ("True", "Unschedulable")
    assert "Insufficient nvidia.com/gpu" in message(report, "Progressing")
    assert condition(report, "Ready") == ("True", "Serving")


def test_a_stand_in_without_room_is_no_reason_to_replace_the_others():
    cluster = Cluster(talker=TalkerSpec(replicas=2)).set(TALKER, 1, ready=False, terminating=True, stuck=True)
    cluster.set(TALKER, 2, ready=False, problem="Unschedulable: 0/1 nodes are available", unready_since=CREATED)
    with_talkers(cluster, 3).update()
    report = pass_time(cluster, 301)
    assert condition(report, "Degraded") == ("True", "StuckTerminating")
    assert "demo-talker-2: Unschedulable" in message(report, "Degraded")
    assert "updateStrategy" not in message(report, "Degraded")


def test_volumes_that_are_not_mounted():
    cluster = rolling().set(TALKER, 1, waits_for="volumes or network")
    cluster.update()
    report = pass_time(cluster, 700)
    assert condition(report, "Degraded") == ("True", "NotStarted")
    assert "demo-talker-1 has been waiting for its volumes or network" in message(report, "Degraded")
    assert "kubectl describe pod demo-talker-1" in message(report, "Degraded")


def test_a_lost_node_is_named_at_once_with_the_way_out():
    cluster = Cluster(talker=TalkerSpec(replicas=2))
    cluster.update()
    problem = "NodeLost: its node gpu-7 does not respond"
    cluster.set(TALKER, 1, ready=False, started=True, node="gpu-7", node_lost=True, problem=problem)
    assert ("Warning", "NodeLost") in cluster.events()
    assert message(cluster.previous, "Degraded") == (
        "demo-talker-1: NodeLost: its node gpu-7 does not respond; repair the node, or if it is gone for good delete "
        "it: `kubectl delete node gpu-7`"
    )
    cluster.set(TALKER, 1, terminating=True)
    cluster.update()
    cluster.set(TALKER, 1, stuck=True)
    report = cluster.update()
    assert condition(report, "Degraded") == ("True", "NodeLost")
    assert "demo-talker-1 cannot end because its node gpu-7 does not respond" in message(report, "Degraded")


def test_a_pod_that_does_not_end():
    cluster = Cluster().set(TALKER, 1, ready=False, terminating=True)
    assert condition(cluster.update(), "Degraded") == ("False", "AsExpected")
    cluster.set(TALKER, 1, stuck=True)
    assert condition(cluster.update(), "Degraded") == ("True", "StuckTerminating")
    assert "kubectl describe pod demo-talker-1" in message(cluster.previous, "Degraded")
