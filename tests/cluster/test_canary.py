"""Canaries of new versions: bad ones are rolled back and say so, and good ones are promoted.

One pipeline serves the whole file; each test leaves it Ready and without a canary.
"""

import contextlib
import re
from collections import Counter

import pytest

from cluster import speech
from cluster.installation import image
from cluster.listeners import Listeners
from cluster.pipeline import running

PIPELINE = "canaried"
QUICK = {"steps": [{"weight": 50, "pauseSeconds": 10}, {"weight": 75, "pauseSeconds": 10}], "minRequests": 5}
ENDLESS = {"steps": [{"weight": 50, "pauseSeconds": 3600}], "minRequests": 5}
CLIENTS = 4
"""Enough for the requests that each version needs in a period."""
DOES_NOT_START = {
    "ErrImagePull|ImagePullBackOff": {"image": "MISSING"},
    "CrashLoopBackOff|have restarted 3 times": {"talker": {"env": [{"name": "PYTHONHOME", "value": "/nowhere"}]}},
}
"""Changes that keep a version from starting, by a pattern of the reason: Kubernetes alternates between two words."""
STARVED = {
    "talker": {"resources": {"requests": {"cpu": "50m"}, "limits": {"cpu": "50m"}}},
    "gateway": {"maxQueueSeconds": 2},
}
"""With a twentieth of a processor a talker starts, but generates speech more slowly than it is played. Patient clients
would show that only minutes later."""
OBJECTIVE = {"ttfa": [{"taskType": "CustomVoice", "ttfaP95Ms": 5000}]}
"""What the running version meets on a slow machine too."""
PATIENT = {"maxQueueSeconds": 60}
"""Nobody is refused because a machine is slow, only for what the operator does."""
UNDO = {"image": None, "gateway": PATIENT, "talker": {"env": None, "resources": None, "podAnnotations": None}}


@pytest.fixture(scope="module")
def demo(installed):
    """The Ready pipeline of this file."""
    with running(installed, PIPELINE, rollout={"canary": ENDLESS}, slo=OBJECTIVE, gateway=PATIENT) as pipeline:
        yield pipeline


@contextlib.contextmanager
def undone(demo):
    """Applies the running version again at the end, which ends its canary."""
    try:
        yield
    finally:
        demo.edit(UNDO)
        demo.wait("to be without a canary", lambda: not canary(demo) and not canary_pods(demo), slow=True)
        demo.wait_ready()


def canary(demo):
    """Returns the canary's status; empty without one."""
    return demo.status.get("canary") or {}


def canary_pods(demo):
    return {name: uid for name, uid in demo.uids().items() if "-canary-" in name}


def running_pods(demo):
    return {name: uid for name, uid in demo.uids().items() if "-canary-" not in name}


def edition(number):
    """Returns an edit that makes another version of the same image."""
    return {"talker": {"podAnnotations": {"example.org/edition": str(number)}}}


def counted(listeners):
    """Returns the failures of the requests with their numbers."""
    return f"{len(listeners.failures)} of {len(listeners.streams)} failed: {Counter(listeners.failures)}"


def serves(demo):
    """Returns whether a canary serves its share of the requests."""
    return canary(demo).get("phase") == "Running" and canary(demo).get("weight")


def rolled_back(demo, before, reason):
    """Waits until nothing is left of a canary but its status; returns the message of Degraded."""
    message = demo.wait_condition("Degraded", reason)
    demo.wait("to have no pod of the canary", lambda: not canary_pods(demo), slow=True)
    assert canary(demo)["phase"] == "RolledBack"
    assert running_pods(demo) == before, "no pod of the running version was touched"
    assert demo.condition("Ready")["status"] == "True"
    assert "the running version was kept" in message and "retry or promote" in message
    return message


@pytest.mark.parametrize("reason", DOES_NOT_START)
def test_a_version_that_does_not_start_is_rolled_back_without_a_failed_request(demo, reason):
    change, before = dict(DOES_NOT_START[reason]), running_pods(demo)
    if "image" in change:
        change["image"] = image(demo.parameters.stages_image)["repository"] + ":no-such-version"
    with undone(demo), Listeners(demo) as listeners:
        demo.edit(change)
        assert re.search(reason, rolled_back(demo, before, "CanaryFailed"))
    assert not listeners.failures
    assert "CanaryFailed" in demo.events()


def test_a_version_that_is_too_slow_is_rolled_back(demo):
    before = running_pods(demo)
    with undone(demo), Listeners(demo, CLIENTS):
        demo.edit(STARVED)
        demo.wait("to forward requests to the canary", lambda: serves(demo), slow=True)
        message = rolled_back(demo, before, "CanaryFailed")
    assert "points fewer good requests" in message or "it fails requests" in message


def test_an_annotation_aborts_a_canary_without_a_failed_request(demo):
    before = running_pods(demo)
    with undone(demo), Listeners(demo, CLIENTS) as listeners:
        demo.edit(edition(2))
        demo.wait("to forward requests to the canary", lambda: serves(demo), slow=True)
        listeners.wait(CLIENTS)
        demo.cluster.patch("TTSPipeline", PIPELINE, {"metadata": {"annotations": {"syrinx.dev/rollout": "abort"}}})
        assert "aborted by the user" in rolled_back(demo, before, "CanaryAborted")
        listeners.wait(CLIENTS)
        assert "syrinx.dev/rollout" not in demo.body["metadata"].get("annotations", {}), "the command was followed"
    assert not listeners.failures, counted(listeners)


def test_an_edit_replaces_a_canary_without_a_failed_request(demo):
    before = running_pods(demo)
    with undone(demo), Listeners(demo, CLIENTS) as listeners:
        demo.edit(edition(2))
        demo.wait("to forward requests to the canary", lambda: serves(demo), slow=True)
        former = canary_pods(demo).keys()
        listeners.wait(CLIENTS)
        demo.edit(edition(3))
        demo.wait("to have no pod of the first canary", lambda: not former & canary_pods(demo).keys(), slow=True)
        demo.wait("to forward requests to the next canary", lambda: serves(demo), slow=True)
        listeners.wait(CLIENTS)
    assert not listeners.failures, counted(listeners)
    assert running_pods(demo) == before


def test_a_good_version_is_promoted_through_its_steps(demo):
    if not (image_next := demo.parameters.stages_image_next):
        pytest.skip("SYRINX_TEST_STAGES_IMAGE_NEXT names no other image")
    weights = set()

    def is_promoted():
        weights.add(canary(demo).get("weight", 0))
        if canary(demo).get("phase") == "Promoted":
            assert canary_pods(demo), "they serve until the new version is complete"
        return demo.status["image"] == image_next and not canary(demo) and demo.is_complete()

    demo.edit({"rollout": {"canary": QUICK}})
    with Listeners(demo, CLIENTS) as listeners:
        demo.edit({"image": image_next})
        demo.wait("to run the other image", is_promoted, slow=True)
        demo.wait("to have no pod of the canary", lambda: not canary_pods(demo), slow=True)
        listeners.wait(CLIENTS)
    assert not listeners.failures, counted(listeners)
    assert {50, 75} <= weights
    assert "no harm found" in demo.events()["CanaryPromoted"]
    assert speech.is_speech(speech.speak(demo.cluster, PIPELINE))
