"""Reading of the metrics that a pipeline's stages export: when, from whom, and what is missing."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from support.prometheus import metrics_reader
from support.resolved import resolved
from support.stage_metrics import Gateway, Worker
from syrinx_operator.cluster.objects.state import Owner
from syrinx_operator.cluster.runners import tuning
from syrinx_operator.cluster.runners.tuning import window
from syrinx_operator.resource.fields.tuning import TuningSpec
from syrinx_operator.resource.spec import PipelineSpec, default_pipeline
from syrinx_operator.tuner.policy import policy_of

OWNER = Owner("demo", "voices", "u-1", generation=1)
OTHER = Owner("demo", "other", "u-2", generation=1)


class Watch:
    """A metrics reader, its clock, and the pods of a pipeline."""

    def __init__(self, *pods, **spec):
        self.pods = pods or (Gateway(),)
        self.pipeline = replace(default_pipeline(), spec=PipelineSpec(**spec))
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.metrics = metrics_reader(clock=lambda: self.now)
        self.scrapes = 0

    async def scrape(self, replica):
        self.scrapes += 1
        return next(pod.text for pod in self.pods if pod.replica.name == replica.name)

    async def read(self, after=30.0, scrape=None, owner=OWNER, **options):
        """Returns the reading `after` seconds later."""
        self.now += timedelta(seconds=after)
        replicas = [pod.replica for pod in self.pods]
        return await self.metrics.read(self.pipeline, owner, replicas, scrape or self.scrape, **options)


def failing(watch, pod):
    """Returns a scrape that does not reach a pod."""

    async def scrape(replica):
        if replica is pod.replica:
            raise OSError("no route")
        return await watch.scrape(replica)

    return scrape


def names(reading):
    return [each.replica for each in reading.snapshots]


@pytest.mark.parametrize(("interval", "seconds"), [(30, tuning.WINDOW), (3600, 7200)])
def test_the_window_spans_at_least_two_intervals(interval, seconds):
    assert window(policy_of(resolved(tuning=TuningSpec(interval_seconds=interval)))) == seconds


async def test_without_a_gateway_metrics_are_missing():
    found = await Watch(Worker("demo-talker-0", "talker")).read()
    assert (found.reason, found.problem) == ("Missing", "no gateway is ready")


async def test_a_gateway_that_has_become_ready_is_read_at_once():
    watch = Watch()
    ready, watch.pods[0].replica = watch.pods[0].replica, replace(watch.pods[0].replica, ready=False)
    found = await watch.read(scrape=failing(watch, watch.pods[0]))
    assert found.problem == "no gateway is ready", "it may not listen yet"
    watch.pods[0].replica = ready
    found = await watch.read(after=1)
    assert found.problem == "" and names(found) == ["demo-gateway-5f-0"]


async def test_one_failing_gateway_does_not_hide_the_others():
    watch = Watch(Gateway("demo-gateway-5f-0"), bad := Gateway("demo-gateway-5f-1"))
    found = await watch.read(scrape=failing(watch, bad))
    assert found.problem == "" and names(found) == ["demo-gateway-5f-0"]


async def test_if_all_gateways_fail_the_problem_says_why():
    watch = Watch()
    found = await watch.read(scrape=failing(watch, watch.pods[0]))
    assert found.reason == "Error" and found.snapshots == ()
    assert "demo-gateway-5f-0: OSError: no route" in found.problem


async def test_a_hanging_scrape_times_out(monkeypatch):
    monkeypatch.setattr(tuning, "SCRAPE_SECONDS", 0.01)

    async def scrape(replica):
        await asyncio.Event().wait()

    found = await asyncio.wait_for(Watch().read(scrape=scrape), 5)
    assert (found.reason, "TimeoutError" in found.problem) == ("Error", True)


async def test_talkers_and_codecs_are_scraped_too_and_may_fail():
    talker, codec, starting = (
        Worker(name, name.split("-")[1]) for name in ("demo-talker-0", "demo-codec-0", "b-codec")
    )
    starting.replica = replace(starting.replica, address="")
    watch = Watch(Gateway(), talker, codec, starting)
    found = await watch.read(scrape=failing(watch, codec))
    assert names(found) == ["demo-gateway-5f-0", "demo-talker-0"] and found.problem == ""
    assert {each.time for each in found.snapshots} == {watch.now}


async def test_the_last_reading_is_repeated_within_the_interval():
    watch = Watch(tuning=TuningSpec(interval_seconds=30))
    first = await watch.read()
    assert await watch.read(after=10.0) == replace(first, snapshots=())
    assert watch.scrapes == 1
    assert (await watch.read(after=5.0, max_age=10.0)).snapshots, "during a change it is read more often"
    watch.pipeline = replace(watch.pipeline, spec=PipelineSpec(tuning=TuningSpec(interval_seconds=40)))
    assert (await watch.read(after=1.0)).snapshots, "and after an edit"


async def test_with_tuning_off_nothing_is_scraped():
    watch = Watch(tuning=TuningSpec(mode="Off"))
    assert (await watch.read()).snapshots == ()
    assert watch.scrapes == 0


async def test_pipelines_are_separate_and_forgotten_when_no_longer_read():
    watch = Watch()
    await watch.read()
    await watch.read(after=0.0, owner=OTHER)
    assert watch.scrapes == 2
    await watch.read(after=10_000.0, owner=OTHER)
    assert {*watch.metrics._memory} == {"u-2"}
