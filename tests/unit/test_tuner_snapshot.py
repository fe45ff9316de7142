"""Parsing of the metrics that each stage exports."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from support.prometheus import OWNER, recorded
from support.stage_metrics import Gateway, Worker
from syrinx_operator.cluster.watch.prometheus import counters_query
from syrinx_operator.observed.snapshot import BUCKET, STARTED, WANTED_METRICS, Series, parse_metrics
from syrinx_stages.contract import metrics as contract

AT = datetime(2026, 1, 1, tzinfo=UTC)


def read(text, stage="gateway"):
    return parse_metrics("r", stage, AT, text)


def test_a_gateways_counters():
    gateway = Gateway()
    gateway.serve(0.06, underruns=1)
    gateway.serve(0.06, 0.4)
    gateway.serve(20.0, task_type="Base")
    gateway.live(3)
    found = read(gateway.text)
    assert (found.replica, found.stage, found.time, found.live_streams) == ("r", "gateway", AT, 3)
    assert found.counts == {
        Series(BUCKET, ("CustomVoice",), 0.075): 2,
        Series(BUCKET, ("CustomVoice",), 0.5): 1,
        Series(BUCKET, ("Base",), math.inf): 1,
        Series(STARTED, ()): 4,
        Series(contract.UNDERRUNS.name, ("CustomVoice",)): 1,
    }


@pytest.mark.parametrize("stage", WANTED_METRICS)
def test_each_stage_exports_the_wanted_metrics_and_labels(stage):
    suffixes = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
    exported = {f"{each.name}{suffix}": each for each in contract.BY_STAGE[stage] for suffix in suffixes[each.kind]}
    for name, labels in WANTED_METRICS[stage].items():
        assert {*labels} <= {*exported[name].labels}


def test_the_recorded_answers_of_prometheus_are_to_todays_query():
    assert counters_query(OWNER, 300) in recorded(), "python -m support.prometheus records them"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>",
        "up 1\n",
        "syrinx_frames_total 1\n",
        "syrinx_live_streams NaN\n",
        "syrinx_live_streams +Inf\n",
        "syrinx_live_streams -1\n",
        "syrinx_live_streams 1e300\n",
        "syrinx_live_streams\n",
        "syrinx_live_streams{ 1\n",
        'syrinx_live_streams{a="b} 1\n',
        "syrinx_live_streams 1\n" + 'syrinx_ttfa_seconds_bucket{le="SECRET"} 1\n',
        "syrinx_live_streams 1\n" + 'syrinx_ttfa_seconds_bucket{le="1"} 2\nsyrinx_ttfa_seconds_bucket{le="2"} 1\n',
        "syrinx_live_streams 1\n" + 'syrinx_requests_total{task_type="' + "x" * 5000 + '"} 1\n',
        "syrinx_live_streams 1\n" * 400_000,
    ],
    ids=lambda text: repr(text[:60]),
)
def test_rejects_text_that_is_not_a_gateways_metrics(text):
    with pytest.raises(ValueError):
        read(text)


def test_rejects_metrics_of_another_stage():
    with pytest.raises(ValueError, match="these are not a codec's metrics"):
        read(Worker("t", "talker").text, "codec")
    with pytest.raises(ValueError, match="unknown stage redis"):
        read(Gateway().text, "redis")


def test_bucket_bounds_parse_with_and_without_a_decimal_point():
    bucket = 'syrinx_ttfa_seconds_bucket{{le="{}"}} 1\n'
    assert read("syrinx_live_streams 0\n" + bucket.format("1")) == read(
        "syrinx_live_streams 0\n" + bucket.format("1.0")
    )


@given(st.text(), st.integers(0, 2**53))
def test_label_values_round_trip(value, count):
    registry = CollectorRegistry()
    Gauge(contract.LIVE_STREAMS.name, "", registry=registry).set(0)
    family = Counter(contract.REQUESTS.name, "", contract.REQUESTS.labels, registry=registry)
    family.labels(value, "stop").inc(count)
    found = read(generate_latest(registry).decode(errors="replace"))
    expected = value.encode(errors="replace").decode()
    assert found.counts == ({Series(contract.REQUESTS.name, (expected, "stop")): count} if count else {})
