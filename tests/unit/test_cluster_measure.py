"""How soon listeners are heard, measured from what gateways really export."""

from __future__ import annotations

import asyncio
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.gateway_metrics import Gateway
from syrinx_operator.cluster import measure
from syrinx_operator.cluster.histogram import Counters, counted, quantile, total, within
from syrinx_operator.cluster.measure import Meter, parse
from syrinx_operator.cluster.state import Objective, Owner
from syrinx_operator.spec import PipelineSpec, SloSpec, TtfaObjective, TuningSpec, default_pipeline
from syrinx_stages.contract import metrics as contract

OWNER = Owner("demo", "voices", "u-1", generation=1)


class Watch:
    """A meter, its clock, and the gateways it reads."""

    def __init__(self, *gateways, **spec):
        self.gateways = gateways or (Gateway(),)
        self.pipeline = msgspec.structs.replace(default_pipeline(), spec=PipelineSpec(**spec))
        self.now = 1000.0
        self.meter = Meter(clock=lambda: self.now)
        self.scrapes = 0

    async def scrape(self, replica):
        self.scrapes += 1
        return next(gateway.text for gateway in self.gateways if gateway.replica.name == replica.name)

    async def look(self, after=30.0, scrape=None, owner=OWNER):
        self.now += after
        replicas = [gateway.replica for gateway in self.gateways]
        return await self.meter.measure(self.pipeline, owner, replicas, scrape or self.scrape)


def slo(**objectives):
    return SloSpec(ttfa=tuple(TtfaObjective(task_type=name, ttfa_p95_ms=ms) for name, ms in objectives.items()))


# What gateways export ----------------------------------------------------------------------------------------


def test_counters_are_read_from_what_a_gateway_exports():
    gateway = Gateway()
    gateway.hears(0.06, 0.4, underruns=1)
    gateway.hears(0.06, talker="demo-talker-1")
    gateway.hears(20.0, task_type="Base")
    gateway.live(3)
    found = parse(gateway.text, at=7.0)
    assert (found.at, found.live, found.started, found.underruns) == (7.0, 3.0, 4.0, 1.0)
    assert found.heard["CustomVoice"][0.05] == 0.0
    assert found.heard["CustomVoice"][0.075] == 2.0
    assert found.heard["CustomVoice"][math.inf] == 3.0
    assert (found.heard["Base"][10.0], found.heard["Base"][math.inf]) == (0.0, 1.0)
    assert {*found.heard["Base"]} == {*contract.TTFA_BUCKETS, math.inf}


def test_a_gateway_that_nobody_has_used_has_counted_nothing():
    assert parse(Gateway().text, at=0.0) == Counters(at=0.0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>",
        "up 1\n",
        "syrinx_live_streams NaN\n",
        "syrinx_live_streams{ 1\n",
        "syrinx_live_streams 1\n" * 400_000,
    ],
    ids=["empty", "no metrics", "others'", "no number", "broken", "too large"],
)
def test_what_is_no_gateways_metrics_is_refused(text):
    with pytest.raises(ValueError):
        parse(text, at=0.0)


# Windows -----------------------------------------------------------------------------------------------------


async def test_only_what_was_counted_since_the_first_look_counts():
    watch = Watch(slo=slo(CustomVoice=300))
    gateway = watch.gateways[0]
    gateway.hears(*[5.0] * 50)
    assert await watch.look() == measure.Measured(source="gateways")
    gateway.hears(*[0.06] * 95, *[0.4] * 5)
    found = await watch.look()
    assert found.task_types == (
        Objective(task_type="CustomVoice", requests=100, within=95, ttfa_p95_ms=pytest.approx(75.0)),
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


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=30))
def test_no_count_is_lost_or_made_up_but_those_that_a_reset_hides(steps):
    """A reset is seen if the counter is lower at the next look; what it had counted unseen is lost, as it must be."""
    value, known, looks = 0, 0, [counter(0)]
    for more, restarts in steps:
        before = value
        value = more if restarts else value + more
        known += value - before if value >= before else value
        looks.append(counter(value))
    found = counted([looks])
    assert total(found.heard.get("Base", {})) == found.streams == known


def counter(value):
    return Counters(at=0.0, started=value, heard={"Base": {1.0: value, math.inf: value}})


# Numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("buckets", "p95"),
    [
        ({}, None),
        ({0.1: 0, math.inf: 0}, None),
        ({0.1: 100, math.inf: 100}, 0.095),
        ({0.1: 90, 0.2: 100, math.inf: 100}, 0.15),
        ({0.1: 0, 0.2: 0, 0.5: 10, math.inf: 10}, 0.485),
        ({0.1: 5, 0.2: 5, math.inf: 100}, 0.2),
    ],
)
def test_a_percentile_is_interpolated_in_its_bucket_and_capped_by_the_last_edge(buckets, p95):
    assert quantile(buckets, 0.95) == (None if p95 is None else pytest.approx(p95))


@given(st.lists(st.floats(0.001, 9.9), min_size=1, max_size=200))
def test_a_percentile_lies_in_the_bucket_of_the_true_one(values):
    edges = (*contract.TTFA_BUCKETS, math.inf)
    buckets = {edge: sum(value <= edge for value in values) for edge in edges}
    true = sorted(values)[math.ceil(0.95 * len(values)) - 1]
    low = max((edge for edge in (0.0, *edges) if edge < true), default=0.0)
    assert low <= quantile(buckets, 0.95) <= min(edge for edge in edges if edge >= true)


def test_within_needs_an_edge():
    assert within({0.3: 4, math.inf: 5}, 300 / 1000) == 4
    assert within({0.3: 4, math.inf: 5}, 0.4) is None


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
    assert (found.reason, found.problem) == ("Missing", "no gateway runs that could be asked")


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
    assert await watch.look(after=10.0) is first
    assert watch.scrapes == 1
    assert (await watch.look(after=20.0)).task_types[0].requests == 1


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
    assert {*watch.meter._memory} == {"u-2"}
