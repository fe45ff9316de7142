"""The lifecycle of a pipeline, in order: apply, speak, edit, scale, break, fix, delete.

One pipeline serves the whole file because it takes minutes to start; each test leaves it Ready.
"""

import base64
import threading

import pytest

from cluster import speech
from cluster.client import ApiError, wait_until
from cluster.pipeline import CONVERGES, running

PIPELINE = "demo"
OWNED = (
    "StatefulSet",
    "Deployment",
    "Service",
    "ConfigMap",
    "Secret",
    "ServiceAccount",
    "PersistentVolumeClaim",
    "PodDisruptionBudget",
    "NetworkPolicy",
)


@pytest.fixture(scope="module")
def demo(installed):
    """The Ready pipeline of this file."""
    with running(installed, PIPELINE) as pipeline:
        yield pipeline


def owned(demo):
    return {
        f"{kind}/{item['metadata']['name']}": item["metadata"]["uid"] for kind in OWNED for item in listed(demo, kind)
    }


def listed(demo, kind):
    try:
        return demo.cluster.list(kind, demo.selector)
    except ApiError as error:
        if error.status == 403:
            pytest.fail(f"the tests need the right to list {kind}: {error}")
        raise


def test_a_healthy_start_has_no_warning(demo):
    # By uid: other tests have had objects of these names.
    uids = {demo.cluster.get("TTSPipeline", PIPELINE)["metadata"]["uid"], *demo.uids().values(), *owned(demo).values()}
    about = [each for each in demo.cluster.list("Event") if each["involvedObject"].get("uid") in uids]
    assert about
    assert [(each["involvedObject"]["name"], each["message"]) for each in about if each["type"] == "Warning"] == []


def test_it_generates_speech(demo):
    audio = speech.speak(demo.cluster, PIPELINE)
    assert speech.is_speech(audio)


def test_the_status_is_complete(demo):
    body = demo.cluster.get("TTSPipeline", PIPELINE)
    seen = body["status"]
    assert seen["observedGeneration"] == body["metadata"]["generation"]
    assert seen["talker"]["summary"] == seen["codec"]["summary"] == "1/1"
    assert seen["endpoint"].startswith(f"http://{PIPELINE}-gateway.{demo.cluster.namespace}.svc")
    for kind in ("Ready", "GatewayReady", "TalkerReady", "CodecReady", "ConnectorReady"):
        condition = speech.condition(body, kind)
        assert condition["status"] == "True", condition
        assert condition["reason"]
        assert condition["message"]
    assert speech.condition(body, "Degraded").get("status") != "True"


def test_kubectl_get_shows_its_columns(demo):
    table = demo.cluster.call(
        "GET",
        demo.cluster.path("TTSPipeline"),
        headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"},
    ).json()
    columns = [column["name"] for column in table["columnDefinitions"]]
    for name in ("Name", "Ready", "Talker", "Codec", "Mode", "Tune", "TTFA-p95", "Age"):
        assert name in columns
    row = next(row for row in table["rows"] if row["object"]["metadata"]["name"] == PIPELINE)
    shown = dict(zip(columns, row["cells"], strict=True))
    assert (shown["Ready"], shown["Talker"], shown["Codec"], shown["Mode"]) == ("True", "1/1", "1/1", "Recommend")


def test_events_report_the_start(demo):
    events = [each for each in demo.cluster.list("Event") if each["involvedObject"].get("name") == PIPELINE]
    assert any(each["reason"] == "Ready" or "Ready" in each["reason"] for each in events), events


def test_a_live_setting_changes_without_a_restart(demo):
    before = demo.uids()
    demo.edit({"talker": {"maxNumSeqs": 3}, "codec": {"chunkRamp": [1, 2, 6]}})
    wait_until("talkers to confirm maxNumSeqs 3", CONVERGES, lambda: demo.confirmed("talker", maxNumSeqs=3))
    wait_until("codecs to confirm the ramp", CONVERGES, lambda: demo.confirmed("codec", chunkRamp=[1, 2, 6]))
    demo.wait_ready()
    assert demo.uids() == before
    demo.edit({"talker": {"maxNumSeqs": 8}, "codec": {"chunkRamp": [2, 2, 4, 8, 12]}})
    wait_until("talkers to confirm maxNumSeqs 8", CONVERGES, lambda: demo.confirmed("talker", maxNumSeqs=8))


@pytest.mark.parametrize("stage", ["talker", "codec"])
def test_killing_a_stage_during_a_stream_does_not_change_the_audio(demo, stage):
    quiet = speech.stream(demo.cluster, PIPELINE, speech.LONG, on_audio=lambda: None)
    killed = threading.Event()

    def kill():
        demo.cluster.delete("Pod", f"{PIPELINE}-{stage}-0", grace=0)
        killed.set()

    disturbed = speech.stream(demo.cluster, PIPELINE, speech.LONG, on_audio=kill)
    assert killed.is_set()
    assert speech.difference(disturbed, quiet) <= demo.parameters.pcm_tolerance
    demo.wait_ready()


def test_a_stage_scales_out_and_back(demo):
    demo.edit({"codec": {"replicas": 2}})
    demo.wait_ready()
    wait_until("two codecs", demo.parameters.ready_seconds, lambda: demo.status["codec"]["summary"] == "2/2")
    wait_until("a disruption budget", CONVERGES, lambda: demo.cluster.get("PodDisruptionBudget", f"{PIPELINE}-codec"))
    assert speech.is_speech(speech.speak(demo.cluster, PIPELINE))
    demo.edit({"codec": {"replicas": 1}})
    wait_until("one codec", CONVERGES, lambda: len(demo.pods("codec")) == 1)
    wait_until(
        "no disruption budget", CONVERGES, lambda: not demo.cluster.get("PodDisruptionBudget", f"{PIPELINE}-codec")
    )
    demo.wait_ready()


def test_kubectl_scale_scales_the_talkers(demo):
    demo.cluster.patch("TTSPipeline", PIPELINE, {"spec": {"replicas": 2}}, subresource="scale")
    wait_until("two talkers", demo.parameters.ready_seconds, lambda: demo.status["talker"]["summary"] == "2/2")
    scale = demo.cluster.call("GET", demo.cluster.path("TTSPipeline", PIPELINE, "scale")).json()
    assert scale["status"]["replicas"] == 2
    assert len(demo.cluster.list("Pod", scale["status"]["selector"])) == 2
    demo.cluster.patch("TTSPipeline", PIPELINE, {"spec": {"replicas": 1}}, subresource="scale")
    wait_until("one talker", CONVERGES, lambda: len(demo.pods("talker")) == 1)
    demo.wait_ready()


def test_an_autoscalers_replicas_are_kept(demo):
    """Like a HorizontalPodAutoscaler: through the scale subresource of the StatefulSet."""
    workload = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": f"{PIPELINE}-codec"}
    target = {"type": "Utilization", "averageUtilization": 80}
    metric = {"type": "Resource", "resource": {"name": "cpu", "target": target}}
    spec = {"scaleTargetRef": workload, "minReplicas": 2, "maxReplicas": 2, "metrics": [metric]}
    kind = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler"}
    demo.cluster.apply({**kind, "metadata": {"name": "codec-scaler"}, "spec": spec})
    try:
        wait_until("the autoscaler's two codecs", demo.parameters.ready_seconds, lambda: len(demo.pods("codec")) == 2)
        demo.edit({"codec": {"maxNumSeqs": 5}})
        wait_until("codecs to confirm maxNumSeqs 5", CONVERGES, lambda: demo.confirmed("codec", maxNumSeqs=5))
        assert demo.cluster.get("StatefulSet", f"{PIPELINE}-codec")["spec"]["replicas"] == 2
    finally:
        demo.cluster.delete("HorizontalPodAutoscaler", "codec-scaler")
    demo.edit({"codec": {"maxNumSeqs": 8}})
    wait_until("one codec again", CONVERGES, lambda: len(demo.pods("codec")) == 1)
    demo.wait_ready()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("Service", f"{PIPELINE}-gateway"),
        ("ConfigMap", f"{PIPELINE}-talker"),
        ("NetworkPolicy", f"{PIPELINE}-redis"),
        ("ServiceAccount", f"{PIPELINE}-stages"),
        ("Deployment", f"{PIPELINE}-gateway"),
        ("StatefulSet", f"{PIPELINE}-talker"),
    ],
)
def test_a_deleted_object_is_recreated(demo, kind, name):
    uid = demo.cluster.get(kind, name)["metadata"]["uid"]
    demo.cluster.delete(kind, name)

    def back():
        found = demo.cluster.get(kind, name)
        return found and found["metadata"]["uid"] != uid

    wait_until(f"{kind} {name} to come back", CONVERGES, back)
    demo.wait_ready()


def test_a_deleted_password_is_replaced_and_used_by_all(demo):
    before = secret(demo)
    demo.cluster.delete("Secret", f"{PIPELINE}-redis")
    # Secrets are not watched: the operator reads them every 5 minutes.
    demo.wait("to have a new password", lambda: demo.cluster.get("Secret", f"{PIPELINE}-redis"), slow=True)
    assert secret(demo) != before

    def generates_speech():
        return speech.is_speech(speech.speak(demo.cluster, PIPELINE))

    wait_until("the pipeline to generate speech with the new password", demo.parameters.ready_seconds, generates_speech)
    demo.wait_ready()


def secret(demo):
    return base64.b64decode(demo.cluster.get("Secret", f"{PIPELINE}-redis")["data"]["password"])


def test_drift_is_reverted(demo):
    demo.cluster.patch("Service", f"{PIPELINE}-gateway", {"spec": {"selector": {"syrinx.dev/component": "nobody"}}})
    demo.cluster.patch("StatefulSet", f"{PIPELINE}-talker", {"spec": {"replicas": 3}})

    def reverted():
        service = demo.cluster.get("Service", f"{PIPELINE}-gateway")
        talkers = demo.cluster.get("StatefulSet", f"{PIPELINE}-talker")
        right = service["spec"]["selector"]["syrinx.dev/component"] == "gateway"
        return right and talkers["spec"]["replicas"] == 1

    wait_until("the drift to be reverted", CONVERGES, reverted)
    demo.wait_ready()


def test_a_pod_template_edit_rolls_only_its_stage(demo):
    before = demo.uids()
    demo.edit({"talker": {"podAnnotations": {"example.org/edition": "2"}}})

    def rolled():
        pod = demo.pods("talker").get(f"{PIPELINE}-talker-0")
        return pod and pod["metadata"].get("annotations", {}).get("example.org/edition") == "2"

    wait_until("the talker to be rolled", demo.parameters.ready_seconds, rolled)
    demo.wait_ready()
    after = demo.uids()
    assert after[f"{PIPELINE}-talker-0"] != before[f"{PIPELINE}-talker-0"]
    assert {n: u for n, u in after.items() if "talker" not in n} == {
        n: u for n, u in before.items() if "talker" not in n
    }


def test_twenty_edits_in_a_row_converge_without_orphans(demo):
    expected = owned(demo)
    for number in range(20):
        demo.edit(
            {
                "talker": {"maxNumSeqs": 2 + number % 7},
                "codec": {"replicas": 1 + number % 2, "maxNumSeqs": 1 + number % 5},
                "gateway": {"maxQueue": 100 + number},
            },
        )
    demo.edit({"talker": {"maxNumSeqs": 8}, "codec": {"replicas": 1, "maxNumSeqs": 8}, "gateway": {"maxQueue": 256}})
    demo.wait_ready()
    wait_until("talkers to confirm the last edit", CONVERGES, lambda: demo.confirmed("talker", maxNumSeqs=8))
    wait_until("one codec", CONVERGES, lambda: len(demo.pods("codec")) == 1)
    wait_until("no orphan and nothing missing", CONVERGES, lambda: owned(demo) == expected)


def test_killing_the_operator_at_any_time_loses_nothing(demo):
    before = demo.uids()
    for number in range(3):
        demo.edit({"talker": {"maxNumSeqs": 4 + number}})
        demo.installed.operator.kill()
        demo.installed.operator.start()
    wait_until("talkers to confirm the last edit", CONVERGES, lambda: demo.confirmed("talker", maxNumSeqs=6))
    demo.wait_ready()
    assert demo.uids() == before
    demo.edit({"talker": {"maxNumSeqs": 8}})
    wait_until("talkers to confirm maxNumSeqs 8", CONVERGES, lambda: demo.confirmed("talker", maxNumSeqs=8))


def test_an_operator_with_other_default_images_restarts_no_pod(demo):
    before = demo.uids()
    demo.installed.operator.kill()
    demo.installed.operator.start(stages_image="syrinx/stages:some-later-version")
    demo.edit({"talker": {"maxNumSeqs": 7}})
    wait_until("talkers to confirm maxNumSeqs 7", CONVERGES, lambda: demo.confirmed("talker", maxNumSeqs=7))
    assert demo.uids() == before
    demo.installed.operator.kill()
    demo.installed.operator.start()
    demo.edit({"talker": {"maxNumSeqs": 8}})
    wait_until("talkers to confirm maxNumSeqs 8", CONVERGES, lambda: demo.confirmed("talker", maxNumSeqs=8))


def test_a_failing_rollout_is_reported_and_the_next_edit_fixes_it(demo):
    before = demo.uids()
    demo.edit({"talker": {"nodeSelector": {"example.org/no-such-node": "true"}}})

    def reported():
        body = demo.cluster.get("TTSPipeline", PIPELINE)
        return "Unschedulable" in speech.condition(body, "Progressing").get("message", "")

    def is_complete():
        return speech.condition(demo.cluster.get("TTSPipeline", PIPELINE), "Progressing").get("reason") == "Complete"

    wait_until("Progressing to report the unschedulable pod", demo.parameters.ready_seconds, reported)
    assert speech.is_speech(speech.speak(demo.cluster, PIPELINE)), "the running talker is kept"
    demo.edit({"talker": {"nodeSelector": None}})
    wait_until("the second talker to end", demo.parameters.ready_seconds, is_complete)
    assert before.items() <= demo.uids().items()
    assert speech.is_speech(speech.speak(demo.cluster, PIPELINE))


def test_deleting_it_removes_all_objects(demo):
    demo.cluster.delete("TTSPipeline", PIPELINE)

    def nothing_is_left():
        return not owned(demo) and not demo.cluster.list("Pod", demo.selector)

    wait_until("all objects to be deleted", demo.parameters.ready_seconds, nothing_is_left)
    assert demo.cluster.get("TTSPipeline", PIPELINE) is None
