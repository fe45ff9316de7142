"""The exposition is, byte for byte, what prometheus-client's encoders write."""

import itertools
import math
import random

import pytest
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from syrinx_stages.contract import metrics as contract
from syrinx_stages.runtime.telemetry.exposition import Exposition
from syrinx_stages.runtime.telemetry.metrics import Metrics, rows_label

OPENMETRICS = "application/openmetrics-text"
FORMATS = ["", "text/plain; version=0.0.4", OPENMETRICS, f"{OPENMETRICS}; version=1.0.0"]
VALUES = itertools.cycle([0.0, 0.06, 3.0, 1e-7, 12345678.9, 1e17])
ANY = (0.0, 7.0, 0.1, 1e5, 99999.5, 123456.0, 3e-9, 5.4321e19, math.inf, math.nan)


def fill(metrics: Metrics, stage: str, labels: list[str]) -> None:
    for metric in contract.BY_STAGE[stage]:
        for value in labels if metric.labels else labels[:1]:
            series = metrics[metric].labels(*[value] * len(metric.labels)) if metric.labels else metrics[metric]
            if metric.kind == "histogram":
                series.observe(next(VALUES), {"trace_id": "abc"} if value == "one" else None)
            else:
                series.inc(next(VALUES))


@pytest.mark.parametrize("accept", FORMATS)
@pytest.mark.parametrize("stage", contract.BY_STAGE)
def test_all_metrics_of_a_stage_are_written_as_by_prometheus_client(stage, accept):
    metrics = Metrics(CollectorRegistry())
    exposition, (encode, content_type) = Exposition(metrics), choose_encoder(accept)
    for labels in (["one"], ["one", 'a "quoted"\\ \n name', ""]):
        fill(metrics, stage, labels)
        assert exposition.encode(accept) == (encode(metrics.registry), content_type)
    for family in metrics.families():
        family.clear()
    assert exposition.encode(accept) == (encode(metrics.registry), content_type)


@pytest.mark.parametrize("accept", FORMATS)
@pytest.mark.parametrize("seed", range(4))
def test_any_sequence_of_changes_is_written_as_by_prometheus_client(seed, accept):
    """Series that come, change and go, with any text as label, between scrapes in any format."""
    chance, metrics = random.Random(seed), Metrics(CollectorRegistry())
    exposition = Exposition(metrics)
    for _ in range(10):
        for _ in range(40):
            metric = chance.choice(contract.BY_STAGE["gateway"])
            labels = ["".join(chance.choices('ab"\\\n é語,={}', k=chance.randint(0, 3))) for _ in metric.labels]
            series, value = (
                metrics[metric].labels(*labels) if labels else metrics[metric],
                chance.choice((*ANY, 10 ** chance.uniform(-9, 20))),
            )
            if metric.kind == "gauge":
                series.set(chance.choice((value, -value)))
            elif metric.kind == "counter":
                series.inc(value)
            else:
                series.observe(value, chance.choice((None, {"trace_id": f"{chance.getrandbits(64):x}"})))
            if labels and chance.random() < 0.2:
                metrics[metric].remove(*labels)
        for each in (accept, chance.choice(FORMATS)):
            encode, content_type = choose_encoder(each)
            assert exposition.encode(each) == (encode(metrics.registry), content_type)


@pytest.mark.parametrize("accept", FORMATS)
def test_other_collectors_are_written_as_by_prometheus_client(accept):
    encode, _ = choose_encoder(accept)
    process = ProcessCollector(registry=None)
    families = list(process.collect())
    process.collect = lambda: families  # Each look at the process differs.
    found, _ = Exposition(Metrics(CollectorRegistry()), others=[process]).encode(accept)
    assert found == encode(process) and b"process_cpu_seconds_total" in found


def test_labels_of_the_process_are_sorted_among_those_of_the_series():
    metrics = Metrics(CollectorRegistry())
    metrics[contract.TTFA].labels("Base").observe(0.06)
    text = Exposition(metrics, {"pipeline": "demo", "track": "canary"}).encode("")[0].decode()
    assert 'syrinx_ttfa_seconds_sum{pipeline="demo",task_type="Base",track="canary"} 0.06\n' in text
    assert 'syrinx_ttfa_seconds_bucket{le="+Inf",pipeline="demo",task_type="Base",track="canary"} 1.0\n' in text


def test_a_histogram_has_the_buckets_of_the_contract():
    metrics = Metrics(CollectorRegistry())
    metrics[contract.TTFA].labels("Base").observe(0.06)
    exported = Exposition(metrics).encode("")[0].decode()
    for edge in contract.TTFA_BUCKETS:
        count = 1.0 if edge >= 0.06 else 0.0
        assert f'{{le="{edge}",task_type="Base"}} {count}' in exported


def test_only_accessed_families_are_exported():
    metrics = Metrics(CollectorRegistry())
    metrics[contract.LIVE_STREAMS]
    exported = Exposition(metrics).encode("")[0].decode()
    assert "syrinx_live_streams 0.0" in exported
    assert "syrinx_queue_length" not in exported
    assert "_created" not in exported


def test_every_metric_of_the_contract_belongs_to_a_stage():
    metrics = {value for value in vars(contract).values() if isinstance(value, contract.Metric)}
    assert metrics == {metric for families in contract.BY_STAGE.values() for metric in families}


@pytest.mark.parametrize(("rows", "label"), [(1, "1"), (3, "4"), (8, "8"), (256, "256"), (257, "+Inf")])
def test_rows_are_rounded_up_to_a_bucket(rows: int, label: str):
    assert rows_label(rows) == label
