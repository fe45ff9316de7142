"""Checkpoints from volumes, images and buckets: each has the files of the bundled voice, so speech stays the same.

One pipeline takes its checkpoint from one source after the other; each change is a roll-out that fails no request.
"""

from pathlib import Path

import pytest

from cluster import speech
from cluster.listeners import Listeners
from cluster.pipeline import running

PIPELINE = "models"
BUCKET = f"{PIPELINE}-bucket"
CLAIM = f"{PIPELINE}-checkpoint"
SERVER = (Path(__file__).parent / "s3_server.py").read_text()
COPY = "import shutil, syrinx_stages; shutil.copytree(syrinx_stages.__path__[0] + '/voice', '/models/v1')"
NOTHING = dict.fromkeys(("path", "claim", "s3", "image", "cache"))
"""Removes the source of before."""


@pytest.fixture(scope="module")
def demo(installed):
    """The Ready pipeline of this file. All of its pods are on one node, where a volume can be used by all of them."""
    node = next(each for each in installed.cluster.list("Node") if not each["spec"].get("taints"))
    placed = {"nodeSelector": {"kubernetes.io/hostname": node["metadata"]["labels"]["kubernetes.io/hostname"]}}
    with running(installed, PIPELINE, gateway=placed, talker=placed, codec=placed) as pipeline:
        yield pipeline


@pytest.fixture(scope="module")
def bundled(demo):
    """The speech of the bundled voice, in PCM."""
    return speech.stream(demo.cluster, PIPELINE, speech.SENTENCE, on_audio=lambda: None)


@pytest.fixture(scope="module")
def storage(demo):
    """Fields of volumes of the cluster's storage class."""
    name = demo.parameters.storage_class
    if name == "none":
        pytest.skip("SYRINX_TEST_STORAGE_CLASS is none")
    return {"storageClassName": name} if name else {}


@pytest.fixture
def claim(demo, storage):
    """The name of a PersistentVolumeClaim with the checkpoint in directory `v1`."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "64Mi"}}, **storage}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": CLAIM}, "spec": spec}
    demo.cluster.apply(claim)
    volume = {"name": "files", "persistentVolumeClaim": {"claimName": CLAIM}}
    demo.cluster.apply(demo.python_pod(CLAIM, COPY, volumes={"/models": volume}))

    def is_copied():
        return demo.cluster.get("Pod", CLAIM)["status"]["phase"] == "Succeeded"

    demo.wait("to have a copy of the checkpoint", is_copied, slow=True)
    demo.cluster.delete("Pod", CLAIM)
    yield CLAIM
    demo.cluster.delete("PersistentVolumeClaim", CLAIM)


@pytest.fixture(scope="module")
def endpoint(demo):
    """The URL of an S3 server in the cluster, with the checkpoint."""
    labels, port = {"app": BUCKET}, 8333
    files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": BUCKET}, "data": {"server.py": SERVER}}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": BUCKET}}
    volume = {"name": "files", "configMap": {"name": BUCKET}}
    server = demo.python_pod(BUCKET, "exec(open('/files/server.py').read())", volumes={"/files": volume})
    for each in (files, {**service, "spec": {"selector": labels, "ports": [{"port": port}]}}, server):
        demo.cluster.apply({**each, "metadata": {**each["metadata"], "labels": labels}})

    def is_running():
        return demo.cluster.get("Pod", BUCKET)["status"]["phase"] == "Running"

    demo.wait("to have a bucket", is_running, slow=True)
    yield f"http://{BUCKET}.{demo.cluster.namespace}.svc:{port}"
    for kind in ("Pod", "Service", "ConfigMap"):
        demo.cluster.delete(kind, BUCKET)


def serve(demo, bundled, meanwhile=lambda: None, **source):
    """Rolls a source out under load, and checks that its speech is that of the bundled voice."""
    before = demo.uids()
    with Listeners(demo) as listeners:
        listeners.wait(1)
        demo.edit({"model": {**NOTHING, "bundled": False, **source}})
        meanwhile()
        demo.wait("to be rolled out", lambda: demo.is_complete() and is_replaced(demo, before), slow=True)
        listeners.wait(1)
    assert not listeners.failures
    assert max(speech.difference(pcm, bundled) for pcm in listeners.streams) <= demo.parameters.pcm_tolerance


def is_replaced(demo, before):
    """Returns whether no pod of a stage is one of before."""
    stages = {uid for stage in ("gateway", "talker", "codec") for uid in demo.uids(stage).values()}
    return bool(stages) and not stages & set(before.values())


def test_a_claim_serves_the_checkpoint(demo, bundled, claim):
    serve(demo, bundled, claim=claim, path="v1")
    mounts = demo.pods("talker")[f"{PIPELINE}-talker-0"]["spec"]["volumes"]
    assert {"claimName": claim, "readOnly": True} in [each.get("persistentVolumeClaim") for each in mounts]
    demo.edit({"model": {**NOTHING, "bundled": True}})
    demo.wait_ready()


def test_an_image_volume_serves_the_checkpoint(demo, bundled):
    if not (reference := demo.parameters.model_image):
        pytest.skip("SYRINX_TEST_MODEL_IMAGE names no image")
    serve(demo, bundled, image={"reference": reference})


def test_a_bucket_is_downloaded_by_a_job_before_pods_are_replaced(demo, bundled, endpoint, storage):
    before = demo.uids()

    def downloads():
        message = demo.wait_condition("Progressing", "Downloading", "s3://voices/v1")
        assert any(job["metadata"]["name"] in message for job in demo.cluster.list("Job", demo.selector))
        assert before.items() <= demo.uids().items(), "the pods of before serve meanwhile"

    cache = {"storage": {"size": "64Mi", **storage}}
    serve(demo, bundled, downloads, s3={"uri": "s3://voices/v1", "endpoint": endpoint}, cache=cache)
    assert not demo.cluster.list("Job", demo.selector)


def test_a_download_that_fails_is_reported_and_replaces_no_pod(demo, endpoint, storage):
    before = demo.uids()
    demo.edit({"model": {"s3": {"uri": "s3://voices/v2", "endpoint": endpoint}}})
    message = demo.wait_condition("Degraded", "DownloadFailed")
    assert "s3://voices/v2 is not a Qwen3-TTS checkpoint" in message and "kubectl delete job" in message
    assert before.items() <= demo.uids().items()
    assert speech.is_speech(speech.speak(demo.cluster, PIPELINE))
    demo.edit({"model": {"s3": {"uri": "s3://voices/v1", "endpoint": endpoint}}})
    demo.wait_condition("Degraded", "AsExpected")
