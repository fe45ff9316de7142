"""Tests of the prometheus-client objects of the metrics."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from syrinx_stages.contract import metrics as contract
from syrinx_stages.runtime.metrics import Metrics, rows_label


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(CollectorRegistry())


def test_a_histogram_has_the_buckets_of_the_contract(metrics: Metrics):
    metrics[contract.TTFA].labels("Base").observe(0.06)
    exported = generate_latest(metrics.registry).decode()
    for edge in contract.TTFA_BUCKETS:
        count = 1.0 if edge >= 0.06 else 0.0
        assert f'{{le="{edge}",task_type="Base"}} {count}' in exported


def test_only_accessed_families_are_exported(metrics: Metrics):
    metrics[contract.LIVE_STREAMS]
    exported = generate_latest(metrics.registry).decode()
    assert "syrinx_live_streams 0.0" in exported
    assert "syrinx_queue_length" not in exported
    assert "_created" not in exported


def test_every_metric_of_the_contract_belongs_to_a_stage():
    metrics = {value for value in vars(contract).values() if isinstance(value, contract.Metric)}
    assert metrics == {metric for families in contract.BY_STAGE.values() for metric in families}


@pytest.mark.parametrize(("rows", "label"), [(1, "1"), (3, "4"), (8, "8"), (256, "256"), (257, "+Inf")])
def test_rows_are_rounded_up_to_a_bucket(rows: int, label: str):
    assert rows_label(rows) == label
