"""Pod templates, autoscalers and pauses, as a real API server, scheduler and kubelet treat them."""

import pytest

from cluster import speech
from cluster.pipeline import running

PIPELINE = "shaped"
WORKLOADS = {"gateway": "Deployment", "talker": "StatefulSet", "codec": "StatefulSet"}
SIDECAR = {
    "name": "sidecar",
    "command": ["python", "-c", "import time; print('beside the codec', flush=True); time.sleep(86400)"],
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}


@pytest.fixture(scope="module")
def demo(installed):
    """The Ready pipeline of this file."""
    with running(installed, PIPELINE) as pipeline:
        yield pipeline


def codec(demo):
    return demo.pods("codec")[f"{PIPELINE}-codec-0"]


def test_a_restricted_namespace_would_admit_all_pods(demo):
    """The API server compares the pods with a level that a namespace gets, also in a dry run."""
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    answer = demo.cluster.call(
        "PATCH",
        demo.cluster.path("Namespace", demo.cluster.namespace),
        params={"dryRun": "All"},
        json={"metadata": {"labels": label}},
        headers={"Content-Type": "application/merge-patch+json"},
    )
    assert answer.json()["metadata"]["labels"].items() >= label.items()
    assert "Warning" not in answer.headers, answer.headers["Warning"]


def test_a_pod_template_adds_a_sidecar_and_hosts(demo):
    sidecar = {**SIDECAR, "image": demo.parameters.stages_image, "imagePullPolicy": demo.parameters.pull_policy}
    hosts = [{"ip": "192.0.2.7", "hostnames": ["redis.example"]}]
    demo.edit({"codec": {"podTemplate": {"spec": {"containers": [sidecar], "hostAliases": hosts}}}})
    demo.wait_ready()
    assert codec(demo)["spec"]["hostAliases"] == hosts
    assert "beside the codec" in demo.cluster.logs(f"{PIPELINE}-codec-0", "sidecar")
    assert speech.is_speech(speech.speak(demo.cluster, PIPELINE))


def test_a_pod_template_that_the_api_server_refuses_is_reported(demo):
    before = demo.uids()
    demo.edit({"codec": {"podTemplate": {"spec": {"dnsPolicy": "Sometimes"}}}})
    message = demo.wait_condition("Degraded", "ApplyFailed", "Sometimes")
    assert f"{PIPELINE}-codec" in message
    assert speech.is_speech(speech.speak(demo.cluster, PIPELINE))
    assert demo.uids() == before
    demo.edit({"codec": {"podTemplate": None}})
    demo.wait_condition("Degraded", "AsExpected")
    demo.wait_ready()
    assert len(codec(demo)["spec"]["containers"]) == 1


@pytest.mark.parametrize("stage", WORKLOADS)
def test_an_autoscaler_is_accepted_and_finds_its_workload(demo, stage):
    before, name = demo.uids(), f"{PIPELINE}-{stage}"
    demo.edit({stage: {"autoscaling": {"by": "Hpa", "maxReplicas": 3}}})

    def scaler():
        return demo.cluster.get("HorizontalPodAutoscaler", name)

    found = demo.wait("to have an autoscaler", scaler)
    assert found["spec"]["scaleTargetRef"]["kind"] == WORKLOADS[stage]
    metrics = [each["external"]["metric"]["name"] for each in found["spec"]["metrics"]]
    assert metrics[0] == "syrinx_live_streams"

    def able():
        conditions = (scaler().get("status") or {}).get("conditions") or []
        return next((each for each in conditions if each["type"] == "AbleToScale"), {}).get("status") == "True"

    demo.wait("to be read by the autoscaler", able)
    assert demo.uids() == before, "without metrics nothing scales"
    demo.edit({stage: {"autoscaling": None}})
    demo.wait("to have no autoscaler", lambda: scaler() is None)
    demo.wait_ready()
    assert demo.uids() == before


def test_a_paused_pipeline_is_left_alone_until_it_goes_on(demo):
    before, settings = demo.uids(), demo.cluster.get("ConfigMap", f"{PIPELINE}-talker")
    demo.edit({"paused": True})
    demo.wait_condition("Progressing", "Paused")
    demo.edit({"talker": {"maxNumSeqs": 3}, "codec": {"podAnnotations": {"example.org/edition": "2"}}})
    demo.cluster.delete("NetworkPolicy", f"{PIPELINE}-codec")
    demo.cluster.delete("Pod", f"{PIPELINE}-talker-0")
    demo.wait("to have a new talker, from Kubernetes", lambda: new_talker(demo, before), slow=True)
    assert demo.cluster.get("NetworkPolicy", f"{PIPELINE}-codec") is None
    assert demo.status["observedGeneration"] < demo.body["metadata"]["generation"]
    assert demo.cluster.get("ConfigMap", f"{PIPELINE}-talker") == settings
    assert demo.uids("codec") == {f"{PIPELINE}-codec-0": before[f"{PIPELINE}-codec-0"]}
    demo.edit({"paused": False})
    demo.wait_ready()
    assert demo.confirmed("talker", maxNumSeqs=3)
    assert demo.cluster.get("NetworkPolicy", f"{PIPELINE}-codec")
    assert codec(demo)["metadata"]["annotations"]["example.org/edition"] == "2"


def new_talker(demo, before):
    """Returns whether another talker than before is ready."""
    name = f"{PIPELINE}-talker-0"
    conditions = demo.pods("talker").get(name, {}).get("status", {}).get("conditions", [])
    is_ready = any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)
    return is_ready and demo.uids("talker")[name] != before[name]


KILL_CODEC = (
    "for each in /proc/[0-9]*/cmdline; do "
    "grep -qa 'syrinx_stages[.]codec' $each && kill -9 $(basename $(dirname $each)); done; true"
)


def test_a_pod_with_both_stages_takes_settings_of_each_and_restarts_as_one(installed):
    with running(installed, "colocated", topology="Colocated", talker={"replicas": 1}, codec=None) as demo:
        [pod] = demo.pods("talker")
        assert demo.pods("codec") == {} and speech.is_speech(speech.speak(demo.cluster, demo.name))
        demo.edit({"codec": {"chunkRamp": [3, 6]}, "talker": {"maxNumSeqs": 3}})
        demo.wait("to have the codec's ramp", lambda: demo.confirmed("codec", chunkRamp=[3, 6]))
        demo.wait("to have the talker's rows", lambda: demo.confirmed("talker", maxNumSeqs=3))
        demo.cluster.execute(pod, "talker", KILL_CODEC)

        def restarted():
            [status] = demo.pods("talker")[pod]["status"]["containerStatuses"]
            return status["restartCount"] == 1 and status["ready"]

        demo.wait("to have restarted its pod", restarted)
        assert speech.is_speech(speech.speak(demo.cluster, demo.name))
