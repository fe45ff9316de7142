"""Edits of the image of a pipeline with one replica of each stage: another pod serves before the only one ends."""

import pytest

from cluster import speech
from cluster.installation import image
from cluster.listeners import Listeners
from cluster.pipeline import running

PIPELINE = "images"
STAGES = ("gateway", "talker", "codec")


@pytest.fixture(scope="module")
def demo(installed):
    """The Ready pipeline of this file. A missing image is looked for in the registry, whatever the cluster's policy."""
    with running(installed, PIPELINE, imagePullPolicy="IfNotPresent") as pipeline:
        yield pipeline


def images(demo):
    """Returns the image of each pod of a stage, by name."""
    return {name: pod["spec"]["containers"][0]["image"] for stage in STAGES for name, pod in demo.pods(stage).items()}


def missing_image(demo):
    """Returns the name of an image that does not exist."""
    return image(demo.parameters.stages_image)["repository"] + ":no-such-version"


def test_an_image_that_does_not_exist_replaces_no_pod_and_fails_no_stream(demo):
    before = demo.uids()
    with Listeners(demo, text=speech.LONG) as listeners:
        listeners.wait(1)
        demo.edit({"image": missing_image(demo)})
        message = demo.wait_condition("Degraded", "ImagePullBackOff", missing_image(demo))
        assert "check the image name" in message and "spec.imagePullSecrets" in message
        assert "until this is fixed or the spec edited" in message
        listeners.wait(2)
        assert before.items() < demo.uids().items(), "the pods of before, and at least one that waits for its image"
        assert demo.condition("Ready")["status"] == "True"
        demo.edit({"image": None})
        demo.wait_ready()
    assert not listeners.failures
    demo.wait("to have its pods of before", lambda: demo.uids() == before)
    assert demo.condition("Degraded")["status"] == "False"


def test_another_image_fails_no_request(demo):
    if not (image_next := demo.parameters.stages_image_next):
        pytest.skip("SYRINX_TEST_STAGES_IMAGE_NEXT names no other image")
    names = {f"{PIPELINE}-talker-0", f"{PIPELINE}-codec-0"}

    def is_rolled_out():
        found = images(demo)
        return set(found.values()) == {image_next} and len(found) == len(STAGES) and demo.is_complete()

    with Listeners(demo) as listeners:
        listeners.wait(1)
        demo.edit({"image": image_next})
        demo.wait("to run the other image", is_rolled_out, slow=True)
        listeners.wait(1)
    assert not listeners.failures
    assert names < images(demo).keys()
    assert demo.status["image"] == image_next
