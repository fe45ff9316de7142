"""Service-level figures from the metrics that gateways really export."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec

from support.stage_metrics import Gateway
from syrinx_operator.cluster import tuning
from syrinx_operator.cluster.state import Component, Owner, Replica
from syrinx_operator.cluster.tuning import MetricsReader, window
from syrinx_operator.resource.knobs import Identity
from syrinx_operator.resource.spec import PipelineSpec, default_pipeline
from syrinx_operator.resource.status import SloStatus
from syrinx_operator.resource.tuning import SloSpec, TtfaObjective, TuningSpec
from syrinx_operator.resource.tuning_status import State
from syrinx_operator.tuner.counters import Observation
from syrinx_operator.tuner.evidence import slo_statuses
from syrinx_operator.tuner.policy import policy_of
from syrinx_operator.tuner.runner import Tuner

OWNER = Owner("demo", "voices", "u-1", generation=1)


@dataclass
class Summary:
    """The figures of a window; `task_types` has those with requests."""

    problem: str
    reason: str
    task_types: tuple[SloStatus, ...]
    live_streams: int
    underruns: int


class Watch:
    """A metrics reader, a tuner that keeps its counters, their clock, and gateways."""

    def __init__(self, *gateways, **spec):
        self.gateways = gateways or (Gateway(),)
        self.pipeline = msgspec.structs.replace(default_pipeline(), spec=PipelineSpec(**spec))
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.metrics = MetricsReader(clock=lambda: self.now)
        self.tuner = Tuner()
        self.scrapes = 0

    async def scrape(self, replica):
        self.scrapes += 1
        return next(gateway.text for gateway in self.gateways if gateway.replica.name == replica.name)

    async def summary(self, after=30.0, scrape=None, owner=OWNER, every=None):
        """Returns the summary `after` seconds later."""
        self.now += timedelta(seconds=after)
        replicas = [gateway.replica for gateway in self.gateways]
        reading = await self.metrics.read(self.pipeline, owner, replicas, scrape or self.scrape, max_age=every)
        identity = Identity(model="m", image="i", device="d")
        seen = Observation(snapshots=reading.snapshots, replicas=(), identity=identity, problem=reading.problem)
        policy = policy_of(self.pipeline.spec)
        since = self.now - timedelta(seconds=window(policy))
        self.tuner.step(owner.uid, policy, State(), seen, self.now)
        evidence = self.tuner.evidence(owner.uid, policy, since, self.now)
        return Summary(
            problem=evidence.problem,
            reason=reading.reason if evidence.problem else "",
            task_types=tuple(each for each in slo_statuses(self.pipeline.spec.slo.ttfa, evidence) if each.requests),
            live_streams=evidence.live_streams,
            underruns=sum(stats.underruns for stats in evidence.streams.values()),
        )


def slo(**objectives):
    return SloSpec(ttfa=tuple(TtfaObjective(task_type=name, ttfa_p95_ms=ms) for name, ms in objectives.items()))


# Windows -----------------------------------------------------------------------------------------------------


async def test_requests_before_the_first_reading_do_not_count():
    watch = Watch(slo=slo(CustomVoice=300))
    gateway = watch.gateways[0]
    gateway.serve(*[5.0] * 50)
    assert await watch.summary() == Summary("", "", (), live_streams=0, underruns=0)
    gateway.serve(*[0.06] * 95, *[0.4] * 5)
    found = await watch.summary()
    assert found.task_types == (
        SloStatus(task_type="CustomVoice", requests=100, within=0.95, ttfa_p95_ms=75, met="True"),
    )
    assert found.live_streams == 100


async def test_the_window_spans_at_least_two_intervals():
    watch = Watch(tuning=TuningSpec(interval_seconds=3600))
    await watch.summary()
    watch.gateways[0].serve(0.1, 0.1)
    assert (await watch.summary(after=3600.0)).task_types[0].requests == 2


# Missing metrics ---------------------------------------------------------------------------------------------


async def test_without_a_gateway_metrics_are_missing():
    watch = Watch()
    watch.gateways = ()
    found = await watch.summary()
    assert (found.reason, found.problem) == ("Missing", "no gateway is running")


async def test_one_failing_gateway_does_not_hide_the_others():
    good, bad = Gateway("demo-gateway-5f-0"), Gateway("demo-gateway-5f-1")
    watch = Watch(good, bad)

    async def scrape(replica):
        if replica is bad.replica:
            raise OSError("no route")
        return good.text

    await watch.summary(scrape=scrape)
    good.serve(0.1)
    found = await watch.summary(scrape=scrape)
    assert found.problem == "" and found.task_types[0].requests == 1


async def test_if_all_gateways_fail_the_problem_says_why():
    async def scrape(replica):
        raise OSError("no route")

    found = await Watch().summary(scrape=scrape)
    assert found.reason == "Error"
    assert "demo-gateway-5f-0: OSError: no route" in found.problem
    assert found.task_types == ()


async def test_a_short_outage_keeps_the_figures_and_a_long_one_is_reported():
    watch = Watch()
    await watch.summary()
    watch.gateways[0].serve(0.1)
    known = await watch.summary()
    gateways, watch.gateways = watch.gateways, ()
    assert [await watch.summary() for _ in range(3)] == [known] * 3
    assert (await watch.summary()).reason == "Missing"
    watch.gateways = gateways
    assert (await watch.summary()).task_types == known.task_types


async def test_a_hanging_scrape_times_out(monkeypatch):
    monkeypatch.setattr(tuning, "SCRAPE_SECONDS", 0.01)

    async def scrape(replica):
        await asyncio.Event().wait()

    found = await asyncio.wait_for(Watch().summary(scrape=scrape), 5)
    assert (found.reason, "TimeoutError" in found.problem) == ("Error", True)


# Intervals ---------------------------------------------------------------------------------------------------


async def test_the_last_reading_is_repeated_within_the_interval():
    watch = Watch(tuning=TuningSpec(interval_seconds=30))
    first = await watch.summary()
    watch.gateways[0].serve(0.1)
    assert await watch.summary(after=10.0) == first
    assert watch.scrapes == 1
    assert (await watch.summary(after=20.0)).task_types[0].requests == 1


async def test_an_edited_objective_applies_immediately_and_keeps_counters():
    watch = Watch()
    await watch.summary()
    watch.gateways[0].serve(0.1)
    await watch.summary()
    watch.pipeline = msgspec.structs.replace(watch.pipeline, spec=PipelineSpec(slo=slo(CustomVoice=100)))
    assert (await watch.summary(after=1.0)).task_types[0].within == 1


async def test_with_tuning_off_nothing_is_scraped():
    watch = Watch(tuning=TuningSpec(mode="Off"))
    assert (await watch.summary()).problem == "no gateway metrics yet"
    assert watch.scrapes == 0


async def test_pipelines_are_separate_and_forgotten_when_no_longer_read():
    watch = Watch()
    await watch.summary()
    await watch.summary(after=0.0, owner=Owner("demo", "other", "u-2", generation=1))
    assert watch.scrapes == 2
    watch.gateways[0].serve(0.1)
    assert (await watch.summary()).task_types[0].requests == 1
    await watch.summary(after=10_000.0, owner=Owner("demo", "other", "u-2", generation=1))
    assert {*watch.metrics._memory} == {"u-2"}


# Talkers and codecs ------------------------------------------------------------------------------------------


async def test_talkers_and_codecs_are_scraped_too_and_may_fail():
    watch = Watch()
    talker, codec = (
        Replica(name=f"demo-{stage}-0", component=stage, template="t", address="10.0.0.2")
        for stage in (Component.TALKER, Component.CODEC)
    )
    starting = msgspec.structs.replace(codec, name="demo-codec-1", address="")

    async def scrape(replica):
        if replica is codec:
            raise OSError("no route")
        return 'syrinx_max_num_seqs{stage="talker"} 4' if replica is talker else watch.gateways[0].text

    replicas = [watch.gateways[0].replica, talker, codec, starting]
    reading = await watch.metrics.read(watch.pipeline, OWNER, replicas, scrape)
    assert [each.replica for each in reading.snapshots] == ["demo-gateway-5f-0", "demo-talker-0"]
    assert {each.time for each in reading.snapshots} == {watch.now}
    assert reading.problem == ""
