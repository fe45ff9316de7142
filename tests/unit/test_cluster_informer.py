"""Informers: what a LIST, a watch and an own write leave in memory, and which changes they report."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from support.fake_api import forbidden
from syrinx_operator.cluster.objects.kinds import PIPELINE, PLANNED, POD_MONITOR, Kind
from syrinx_operator.cluster.objects.state import Manifest
from syrinx_operator.cluster.watch import informer
from syrinx_operator.cluster.watch.api import ApiError, Listing, WatchEvent
from syrinx_operator.cluster.watch.informer import Informer

SERVICE = next(kind for kind in PLANNED if kind.kind == "Service")


class Script:
    """An API server that answers LISTs and watches with given values, in order.

    Then a LIST has the last answer again, and a watch stays open.
    """

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.last = listing(1)
        self.requests: list[str] = []
        self.idle = asyncio.Event()

    async def list_objects(self, kind: Kind, namespace: str | None, selector: str = "") -> Listing:
        self.requests.append("list")
        answer = self.answers.pop(0) if self.answers else self.last
        if isinstance(answer, ApiError):
            raise answer
        self.last = answer
        return answer

    @contextlib.asynccontextmanager
    async def watch(self, kind: Kind, namespace: str | None, selector: str, version: str, seconds: float):
        self.requests.append(f"watch {version}")
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, ApiError):
            raise answer
        yield self._events(answer)

    async def _events(self, answer: list[WatchEvent | ApiError] | None):
        if answer is None:
            self.idle.set()
            await asyncio.Event().wait()
        for event in answer or ():
            if isinstance(event, ApiError):
                raise event
            yield event


def service(version: int, name: str = "demo-gateway", **body: Any) -> Manifest:
    labels = {"syrinx.dev/pipeline": "demo"}
    metadata = {"namespace": "voices", "name": name, "uid": f"u-{name}", "resourceVersion": str(version)}
    return {"metadata": {**metadata, "labels": labels, "managedFields": [{}]}, **body}


def listing(version: int, *items: Manifest) -> Listing:
    return Listing(list(items), str(version))


def event(change: str, live: Manifest) -> WatchEvent:
    return WatchEvent(change, live)


def bookmark(version: int) -> WatchEvent:
    return WatchEvent("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})


class World:
    """An informer with a scripted server, until the server has nothing more to say."""

    def __init__(self, *answers: Any, kind: Kind = SERVICE, relist_seconds: float = 300.0) -> None:
        self.server = Script(*answers)
        self.changes: list[tuple[str, str]] = []
        self.informer = Informer(
            self.server,  # type: ignore[arg-type]
            kind,
            "voices",
            "syrinx.dev/pipeline",
            lambda kind, change, live: self.changes.append((change, live["metadata"]["name"])),
            relist_seconds=relist_seconds,
            max_backoff_seconds=0.01,
        )

    async def run(self) -> World:
        task = asyncio.create_task(self.informer.run())
        async with asyncio.timeout(10):
            await self.server.idle.wait()
        task.cancel()
        return self

    def versions(self) -> dict[str, str]:
        found = self.informer.of_pipeline("voices", "demo")
        return {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in found}


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch):
    for name in ("MIN_SECONDS", "NOT_SERVED_SECONDS"):
        monkeypatch.setattr(informer, name, 0.01)


async def test_it_has_what_is_listed_and_what_changes_afterwards():
    changes = [event("ADDED", service(6, "b")), event("MODIFIED", service(7, "a")), event("DELETED", service(8, "b"))]
    world = await World(listing(5, service(3, "a")), changes).run()
    assert world.versions() == {"a": "7"}
    assert world.changes == [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]
    assert world.server.requests == ["list", "watch 5", "watch 8"]


async def test_objects_have_their_kind_and_no_managed_fields():
    world = await World(listing(5, service(3))).run()
    found = world.informer.get("voices", "demo-gateway")
    assert found is not None and "managedFields" not in found["metadata"]
    assert (found["apiVersion"], found["kind"]) == ("v1", "Service")
    found["metadata"]["labels"].clear()
    assert world.versions() == {"demo-gateway": "3"}, "readers get copies"


async def test_of_managed_fields_only_the_owners_of_the_replica_count_are_kept():
    """By them the plan leaves the count to an autoscaler."""
    ours = {"manager": "syrinx-operator", "fieldsV1": {"f:spec": {"f:template": {}}}}
    scaler = {"manager": "hpa", "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
    live = service(3)
    live["metadata"]["managedFields"] = [ours, scaler]
    world = await World(listing(5, live)).run()
    found = world.informer.get("voices", "demo-gateway")
    assert found is not None
    assert found["metadata"]["managedFields"] == [{"manager": "hpa", "fieldsV1": {"f:spec": {"f:replicas": {}}}}]


async def test_a_watch_continues_where_the_last_one_ended():
    world = await World(listing(5), [bookmark(9)], [bookmark(12)]).run()
    assert world.server.requests == ["list", "watch 5", "watch 9", "watch 12"]


@pytest.mark.parametrize("answer", [ApiError(410, "Expired", "old"), [ApiError(410, "Expired", "old")]])
async def test_an_expired_version_is_followed_by_a_list_that_reports_what_was_missed(answer):
    world = await World(
        listing(5, service(2, "a"), service(3, "b")), answer, listing(9, service(7, "b"), service(8, "c"))
    ).run()
    assert world.versions() == {"b": "7", "c": "8"}
    assert world.changes[2:] == [("DELETED", "a"), ("MODIFIED", "b"), ("ADDED", "c")]
    assert world.informer.error is None


@pytest.mark.parametrize("status", [0, 401, 403, 404, 429, 500, 502, 503, 504])
async def test_every_error_is_retried(status):
    error = ApiError(status, "Reason", "failed")
    world = await World(error, error, error, listing(5, service(3)), error).run()
    assert world.versions() == {"demo-gateway": "3"}
    assert world.informer.error is None and world.informer.staleness() is None


async def test_a_bug_is_logged_and_retried(caplog):
    world = World(listing(5, service(3)), [event("MODIFIED", {"metadata": {}})], listing(6, service(3)))
    await world.run()
    assert "unexpected error" in caplog.text
    assert world.server.requests == ["list", "watch 5", "list", "watch 6"]


async def test_it_lists_from_time_to_time():
    world = World(listing(5, service(3, "a")), [], listing(9, service(7, "b")), relist_seconds=0.0)
    world.server.answers.append([])
    world.server.answers.append(listing(9, service(7, "b")))
    await world.run()
    assert world.versions() == {"b": "7"}


async def test_nothing_older_replaces_an_own_write():
    world = await World(listing(5, service(3))).run()
    world.informer.put(service(9))
    world.informer._receive(event("MODIFIED", service(8)))
    assert world.versions() == {"demo-gateway": "9"}
    world.informer._receive(event("MODIFIED", service(9)))
    world.informer._receive(event("DELETED", service(11)))
    world.informer.put(service(10))
    assert world.versions() == {}, "the watch has already seen it deleted"


async def test_a_list_keeps_what_was_written_after_it():
    world = await World(listing(5, service(3, "a"))).run()
    world.informer.put(service(9, "new"))
    world.server.answers = [listing(8)]
    world.informer.outdate("voices")
    await world.informer.refresh("voices")
    await world.informer.refresh("voices")
    assert world.server.requests[-1] == "list" and world.server.answers == []
    assert world.versions() == {"new": "9"}
    world.informer._receive(event("ADDED", service(7, "a")))
    assert world.versions() == {"new": "9"}, "the list is newer than the event"


async def test_an_object_that_loses_its_label_is_not_kept():
    world = await World(listing(5)).run()
    unlabeled = service(9)
    unlabeled["metadata"]["labels"] = {}
    world.informer.put(unlabeled)
    assert world.informer.get("voices", "demo-gateway") is None


async def test_objects_are_stale_if_they_were_never_listed_or_if_the_watch_fails_for_long():
    world = World()
    assert "not listed yet" in str(world.informer.staleness())
    world.informer._failed(forbidden(), 1)
    assert str(world.informer.staleness()) == "not allowed"
    world.server.answers = [listing(5), ApiError(503, "Unavailable", "overloaded")]
    with pytest.raises(ApiError):
        await world.informer._follow()
    assert world.informer.staleness() is None, "it has failed only just now"
    world.informer._failing_since -= informer.STALE_SECONDS
    assert str(world.informer.staleness()) == "not allowed"


async def test_a_kind_that_is_no_longer_served_has_no_objects():
    gone = ApiError(404, "NotFound", "the server could not find the requested resource")
    world = World(kind=PIPELINE)
    world.server.answers = [listing(5, service(3, "demo")), []]
    await world.informer._follow()
    world.informer._failed(gone, 1)
    assert world.changes == [("ADDED", "demo"), ("DELETED", "demo")]
    problem = world.informer.staleness()
    assert problem is not None and not problem.not_found and "install the CRD" in str(problem)


async def test_an_optional_kind_need_not_be_served():
    gone = ApiError(404, "NotFound", "the server could not find the requested resource")
    world = World(gone, gone, listing(5, service(3)), kind=POD_MONITOR)
    world.informer._failed(gone, 1)
    assert world.informer.staleness() is None and not world.informer.is_served
    await world.run()
    assert world.informer.is_served and world.versions() == {"demo-gateway": "3"}
