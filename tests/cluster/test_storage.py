"""Volumes of the managed Redis: streams survive its restart, and volumes grow."""

import pytest

from cluster import speech
from cluster.pipeline import running

PIPELINE = "stored"
CLAIM = f"{PIPELINE}-redis"


@pytest.fixture(scope="module")
def demo(installed):
    """The Ready pipeline of this file."""
    name = installed.parameters.storage_class
    if name == "none":
        pytest.skip("SYRINX_TEST_STORAGE_CLASS is none")
    storage = {"size": "64Mi", **({"storageClassName": name} if name else {})}
    with running(installed, PIPELINE, connector={"managed": True, "storage": storage}) as pipeline:
        yield pipeline


def test_streams_survive_the_deletion_of_redis(demo):
    quiet, before = speech.together(demo.cluster, PIPELINE), demo.uids("redis")
    disturbed = speech.together(demo.cluster, PIPELINE, lambda: demo.lose(f"{PIPELINE}-redis-0"))
    for pcm, expected in zip(disturbed, quiet, strict=True):
        assert speech.difference(pcm, expected) <= demo.parameters.pcm_tolerance
    demo.wait_ready()
    assert demo.uids("redis") != before


def can_grow(demo):
    """Returns whether the class of the volume permits growth."""
    name = demo.cluster.get("PersistentVolumeClaim", CLAIM)["spec"]["storageClassName"]
    return bool(demo.cluster.get("StorageClass", name).get("allowVolumeExpansion"))


def requested(demo):
    return demo.cluster.get("PersistentVolumeClaim", CLAIM)["spec"]["resources"]["requests"]["storage"]


def test_a_volume_grows_without_a_restart(demo):
    if not can_grow(demo):
        pytest.skip("the storage class does not permit growth")
    before = demo.uids()
    demo.edit({"connector": {"storage": {"size": "96Mi"}}})
    demo.wait("to request more", lambda: requested(demo) == "96Mi")
    demo.wait_ready()
    assert demo.uids() == before


def test_growth_that_the_class_forbids_is_reported_until_it_is_taken_back(demo):
    if can_grow(demo):
        pytest.skip("the storage class permits growth")
    before = demo.uids()
    demo.edit({"connector": {"storage": {"size": "96Mi"}}})
    assert CLAIM in demo.wait_condition("Degraded", "ApplyFailed", "resize")
    assert speech.is_speech(speech.speak(demo.cluster, PIPELINE))
    demo.edit({"connector": {"storage": {"size": "64Mi"}}})
    demo.wait_condition("Degraded", "AsExpected")
    demo.wait_ready()
    assert demo.uids() == before
