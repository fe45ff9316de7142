"""How soon listeners are heard, measured from what gateways really export."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from support.stage_metrics import Gateway
from syrinx_operator.cluster import measure
from syrinx_operator.cluster.measure import MetricsReader, summarize, window
from syrinx_operator.cluster.state import Component, Owner, Replica, TaskTypeStats
from syrinx_operator.resource.knobs import Identity
from syrinx_operator.resource.spec import PipelineSpec, SloSpec, TtfaObjective, TuningSpec, default_pipeline
from syrinx_operator.tuner.policy import policy_of
from syrinx_operator.tuner.runner import Observation, Tuner

OWNER = Owner("demo", "voices", "u-1", generation=1)


class Watch:
    """A metrics, the tuner that keeps what it reads, their clock, and the gateways they read."""

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

    async def look(self, after=30.0, scrape=None, owner=OWNER, every=None):
        """What is measured of the pipeline a while later."""
        self.now += timedelta(seconds=after)
        replicas = [gateway.replica for gateway in self.gateways]
        look = await self.metrics.read(self.pipeline, owner, replicas, scrape or self.scrape, max_age=every)
        if look is None:
            return None
        identity = Identity(model="m", image="i", device="d")
        seen = Observation(snapshots=look.snapshots, replicas=(), identity=identity, problem=look.problem)
        policy = policy_of(self.pipeline.spec)
        since = self.now - timedelta(seconds=window(policy))
        return summarize(look, policy, self.tuner.evidence(owner.uid, policy, seen, since, self.now))


def slo(**objectives):
    return SloSpec(ttfa=tuple(TtfaObjective(task_type=name, ttfa_p95_ms=ms) for name, ms in objectives.items()))


# Windows -----------------------------------------------------------------------------------------------------


async def test_only_what_was_counted_since_the_first_look_counts():
    watch = Watch(slo=slo(CustomVoice=300))
    gateway = watch.gateways[0]
    gateway.hears(*[5.0] * 50)
    assert await watch.look() == measure.MetricsSummary(source="gateways")
    gateway.hears(*[0.06] * 95, *[0.4] * 5)
    found = await watch.look()
    assert found.task_types == (
        TaskTypeStats(task_type="CustomVoice", requests=100, within=95, ttfa_p95_ms=pytest.approx(75.0)),
    )
    assert found.live_streams == 100


async def test_task_types_are_told_apart_and_only_those_with_an_objective_are_judged():
    watch = Watch(slo=slo(Base=500))
    await watch.look()
    watch.gateways[0].hears(0.06, 0.06)
    watch.gateways[0].hears(0.4, 0.6, task_type="Base")
    found = {one.task_type: one for one in (await watch.look()).task_types}
    assert (found["CustomVoice"].requests, found["CustomVoice"].within) == (2, None)
    assert (found["Base"].requests, found["Base"].within) == (2, 1)


async def test_gateways_and_the_arms_they_served_are_summed():
    first, second = Gateway("demo-gateway-5f-0"), Gateway("demo-gateway-5f-1")
    watch = Watch(first, second)
    await watch.look()
    first.hears(0.1, talker="demo-talker-0")
    first.hears(0.1, talker="demo-talker-1")
    second.hears(0.1)
    assert (await watch.look()).task_types[0].requests == 3


async def test_what_is_older_than_the_window_no_longer_counts():
    watch = Watch()
    await watch.look()
    watch.gateways[0].hears(0.1)
    counts = []
    for _ in range(12):
        found = await watch.look()
        counts.append(sum(one.requests for one in found.task_types))
    assert counts == [1] * 10 + [0] * 2
    assert found.task_types == () and found.live_streams == 0 and found.problem == ""


async def test_a_gateway_that_is_gone_counts_until_the_window_has_passed():
    stays, goes = Gateway("demo-gateway-5f-0"), Gateway("demo-gateway-5f-1")
    watch = Watch(stays, goes)
    await watch.look()
    goes.hears(0.1)
    await watch.look()
    watch.gateways = (stays,)
    assert (await watch.look()).task_types[0].requests == 1
    assert (await watch.look(after=300.0)).task_types == ()


async def test_a_gateway_that_was_started_anew_counts_from_zero():
    watch = Watch()
    gateway = watch.gateways[0]
    gateway.hears(*[0.1] * 10, underruns=3)
    await watch.look()
    gateway.hears(0.1)
    await watch.look()
    gateway.restart()
    gateway.hears(0.1, 0.1, underruns=1)
    found = await watch.look()
    assert (found.task_types[0].requests, found.live_streams, found.underruns) == (3, 3, 1)


async def test_streams_that_were_under_way_are_among_those_that_may_have_waited():
    watch = Watch()
    watch.gateways[0].live(5)
    await watch.look()
    watch.gateways[0].hears(0.1, underruns=6)
    found = await watch.look()
    assert (found.live_streams, found.underruns) == (6, 6)


async def test_an_interval_longer_than_the_window_is_measured_over_itself():
    watch = Watch(tuning=TuningSpec(interval_seconds=3600))
    await watch.look()
    watch.gateways[0].hears(0.1, 0.1)
    assert (await watch.look(after=3600.0)).task_types[0].requests == 2


# Objectives --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ms", [25, 50, 75, 100, 150, 200, 300, 500, 1000, 2000, 5000, 10_000])
async def test_every_objective_that_the_resource_accepts_is_an_edge(ms):
    watch = Watch(slo=slo(CustomVoice=ms))
    await watch.look()
    watch.gateways[0].hears(ms / 1000, ms / 1000 + 0.0001)
    assert (await watch.look()).task_types[0].within == 1


# When there is nothing ---------------------------------------------------------------------------------------


async def test_without_a_gateway_nothing_is_known():
    watch = Watch()
    watch.gateways = ()
    found = await watch.look()
    assert (found.reason, found.problem) == ("Missing", "no gateway is running")


async def test_gateways_without_an_address_are_not_asked():
    watch = Watch()
    watch.gateways[0].replica = msgspec.structs.replace(watch.gateways[0].replica, address="")
    assert (await watch.look()).reason == "Missing"
    assert watch.scrapes == 0


async def test_one_gateway_that_is_silent_does_not_hide_the_others():
    good, bad = Gateway("demo-gateway-5f-0"), Gateway("demo-gateway-5f-1")
    watch = Watch(good, bad)

    async def scrape(replica):
        if replica is bad.replica:
            raise OSError("no route")
        return good.text

    await watch.look(scrape=scrape)
    good.hears(0.1)
    found = await watch.look(scrape=scrape)
    assert found.problem == "" and found.task_types[0].requests == 1


async def test_when_all_are_silent_it_is_said_why():
    async def scrape(replica):
        raise OSError("no route")

    found = await Watch().look(scrape=scrape)
    assert found.reason == "Error"
    assert "demo-gateway-5f-0: OSError: no route" in found.problem
    assert found.task_types == ()


async def test_a_short_silence_hides_nothing_and_a_long_one_is_told():
    watch = Watch()
    await watch.look()
    watch.gateways[0].hears(0.1)
    known = await watch.look()
    gateways, watch.gateways = watch.gateways, ()
    assert [await watch.look() for _ in range(3)] == [known] * 3
    assert (await watch.look()).reason == "Missing"
    watch.gateways = gateways
    assert (await watch.look()).task_types == known.task_types


async def test_a_scrape_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr(measure, "SCRAPE_SECONDS", 0.01)

    async def scrape(replica):
        await asyncio.Event().wait()

    found = await asyncio.wait_for(Watch().look(scrape=scrape), 5)
    assert (found.reason, "TimeoutError" in found.problem) == ("Error", True)


async def test_being_cancelled_is_no_problem_of_the_gateways():
    watch, begun = Watch(), asyncio.Event()

    async def scrape(replica):
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(watch.look(scrape=scrape))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# How often ---------------------------------------------------------------------------------------------------


async def test_between_two_looks_the_answer_is_the_last_one():
    watch = Watch(tuning=TuningSpec(interval_seconds=30))
    first = await watch.look()
    watch.gateways[0].hears(0.1)
    assert await watch.look(after=10.0) == first
    assert watch.scrapes == 1
    assert (await watch.look(after=20.0)).task_types[0].requests == 1


async def test_a_look_can_be_asked_for_sooner_but_not_later():
    watch = Watch(tuning=TuningSpec(interval_seconds=30))
    await watch.look()
    watch.gateways[0].hears(0.1)
    assert (await watch.look(after=5.0, every=5.0)).task_types[0].requests == 1
    await watch.look(after=4.0, every=5.0)
    assert watch.scrapes == 2
    await watch.look(after=26.0, every=600.0)
    assert watch.scrapes == 3


async def test_a_clock_that_is_set_back_does_not_stop_the_looks():
    watch = Watch()
    await watch.look()
    await watch.look(after=-3600.0)
    assert watch.scrapes == 2


async def test_an_edited_objective_is_judged_at_once_and_loses_no_count():
    watch = Watch()
    await watch.look()
    watch.gateways[0].hears(0.1)
    await watch.look()
    watch.pipeline = msgspec.structs.replace(watch.pipeline, spec=PipelineSpec(slo=slo(CustomVoice=100)))
    assert (await watch.look(after=1.0)).task_types[0].within == 1


async def test_with_tuning_off_nothing_is_asked():
    watch = Watch(tuning=TuningSpec(mode="Off"))
    assert await watch.look() is None
    assert watch.scrapes == 0


async def test_pipelines_are_told_apart_and_forgotten_when_they_are_gone():
    watch = Watch()
    await watch.look()
    await watch.look(after=0.0, owner=Owner("demo", "other", "u-2", generation=1))
    assert watch.scrapes == 2
    watch.gateways[0].hears(0.1)
    assert (await watch.look()).task_types[0].requests == 1
    await watch.look(after=10_000.0, owner=Owner("demo", "other", "u-2", generation=1))
    assert {*watch.metrics._memory} == {"u-2"}


# Talkers and codecs ------------------------------------------------------------------------------------------


async def test_talkers_and_codecs_are_read_too_and_may_be_silent():
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
    look = await watch.metrics.read(watch.pipeline, OWNER, replicas, scrape)
    assert [each.replica for each in look.snapshots] == ["demo-gateway-5f-0", "demo-talker-0"]
    assert {each.time for each in look.snapshots} == {watch.now}
    assert look.problem == ""


async def test_talkers_alone_are_no_metrics_of_listeners():
    watch = Watch()
    talker = Replica(name="demo-talker-0", component=Component.TALKER, template="t", address="10.0.0.2")
    look = await watch.metrics.read(watch.pipeline, OWNER, [talker], watch.scrape)
    assert (look.reason, watch.scrapes) == ("Missing", 0)
