"""The operator process: watch events, probes and kopf's configuration; and the self-test of `helm test`."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import kopf
import kopf.cli
import pytest

from syrinx_operator.cluster.config import ConfigError, options
from syrinx_operator.cluster.objects.kinds import AUTOSCALER, BY_KIND, PIPELINE, PLANNED
from syrinx_operator.cluster.operator import Operator, configure, scope
from syrinx_operator.cluster.watch.api import ApiError
from syrinx_operator.cluster.watch.selftest import INVALID_SPECS, SelftestFailed, selftest
from syrinx_operator.cluster.watch.workqueue import NamespacedName

DEMO = NamespacedName("voices", "demo")


class Queue:
    """Records calls of a work queue."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def add(self, key):
        self.calls.append(("add", key))

    def add_known(self, key):
        self.calls.append(("add_known", key))

    def add_version(self, key, version):
        self.calls.append(("add_version", key, version))

    def stuck(self):
        return [DEMO]


@pytest.fixture
def operator() -> Operator:
    found = Operator(options({"SYRINX_STAGES_IMAGE": "stages:1"}), ("voices",))
    found._queue = Queue()
    return found


def live(**metadata: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "voices", "name": "demo", "uid": "u-1", **metadata}}


@pytest.mark.parametrize(
    ("change", "found", "call"),
    [
        ("ADDED", live(), ("add", DEMO)),
        ("DELETED", live(), ("add", DEMO)),
        ("MODIFIED", live(generation=3), ("add_version", DEMO, ("u-1", 3, ""))),
        (
            "MODIFIED",
            live(generation=3, annotations={"syrinx.dev/rollout": "promote"}),
            ("add_version", DEMO, ("u-1", 3, "promote")),
        ),
        ("MODIFIED", live(generation=3, deletionTimestamp="2026-11-21T10:00:00Z"), ("add", DEMO)),
    ],
    ids=["added", "deleted", "modified", "commanded", "terminating"],
)
def test_changes_of_pipelines_enqueue_the_pipeline(operator, change, found, call):
    operator._changed(PIPELINE, change, found)
    assert operator._queue.calls == [call]


def test_changes_of_objects_enqueue_the_pipeline_in_their_label(operator):
    operator._changed(PLANNED[0], "MODIFIED", live(name="demo-talker", labels={"syrinx.dev/pipeline": "demo"}))
    operator._changed(PLANNED[0], "MODIFIED", live(name="other", labels={}))
    operator._changed(AUTOSCALER, "MODIFIED", live(name="other"))
    assert operator._queue.calls == [("add_known", DEMO)]


def test_of_the_tuners_state_only_the_loss_enqueues_the_pipeline(operator):
    record = live(name="demo-tuning", labels={"syrinx.dev/pipeline": "demo", "syrinx.dev/component": "tuning"})
    operator._changed(BY_KIND["ConfigMap"], "MODIFIED", record)
    assert operator._queue.calls == []
    operator._changed(BY_KIND["ConfigMap"], "DELETED", record)
    assert operator._queue.calls == [("add_known", DEMO)]


async def test_the_liveness_probe_names_stuck_pipelines_and_a_dead_lease_task(operator):
    assert (operator.health().ok, operator.health().text) == (False, "stuck: voices/demo")
    operator._lease_keeper = asyncio.create_task(asyncio.sleep(0))
    await operator._lease_keeper
    assert operator.health().text == "the Lease is no longer renewed; stuck: voices/demo"


def test_kopf_only_runs_the_process():
    settings = kopf.OperatorSettings()
    configure(settings, max_backoff_seconds=60.0)
    assert settings.scanning.disabled and settings.peering.standalone and not settings.posting.enabled
    backoffs = settings.networking.error_backoffs
    assert [*itertools.islice(backoffs, 9)] == [0.5, 1, 2, 4, 8, 16, 32, 60, 60] == [*itertools.islice(backoffs, 9)]


@pytest.mark.parametrize(
    ("arguments", "namespaces"),
    [(["-A"], None), (["-n", "a", "-n", "b", "-n", "a"], ("a", "b")), ([], None)],
)
def test_the_namespaces_are_those_of_the_command(arguments, namespaces):
    with kopf.cli.run.make_context("run", arguments):
        assert scope() == namespaces


@pytest.mark.parametrize("name", ["team-*", "!a", "Team", "a,b"])
def test_a_pattern_is_no_namespace(name):
    with kopf.cli.run.make_context("run", ["-n", name]), pytest.raises(ConfigError, match="--namespace: "):
        scope()


class Validator:
    """An API server that validates pipelines with a given function."""

    def __init__(self, error_of) -> None:
        self.error_of = error_of

    async def json(self, method, path, *, query, body):
        assert (method, query["dryRun"]) == ("POST", "All")
        error = self.error_of(body["spec"])
        if error is not None:
            raise error
        return body


def validate(spec) -> ApiError | None:
    field = next((field for field, invalid in INVALID_SPECS.items() if invalid == spec), None)
    return None if field is None else ApiError(422, "Invalid", f"{field}: not accepted")


async def test_the_self_test_passes_if_invalid_pipelines_are_rejected():
    await selftest(Validator(validate), "voices")


@pytest.mark.parametrize(
    ("error_of", "message"),
    [
        (lambda spec: None, "is accepted: install the chart syrinx-crds"),
        (lambda spec: ApiError(422, "Invalid", "bad"), "a valid pipeline with the bundled voice is rejected"),
        (lambda spec: validate(spec) and ApiError(422, "Invalid", "bad"), "without naming the field"),
        (lambda spec: ApiError(403, "Forbidden", "no"), "did not validate a pipeline"),
    ],
    ids=["no validation", "rejects everything", "no field name", "forbidden"],
)
async def test_the_self_test_fails_if_the_cluster_does_not_validate(error_of, message):
    with pytest.raises(SelftestFailed, match=message):
        await selftest(Validator(error_of), "voices")
