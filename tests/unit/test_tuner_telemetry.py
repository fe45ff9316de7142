"""The tuner's metrics of a pipeline."""

from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import CollectorRegistry

from support.tuning import BASE, in_trial
from syrinx_operator.cluster.objects.tuner_telemetry import TunerTelemetry
from syrinx_operator.resource.knobs import Knob
from syrinx_operator.resource.state.tuning_status import State
from syrinx_operator.tuner.builder import Event

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
STATE = in_trial(NOW)
DEMO = ("voices", "demo")


class Scraped:
    """The series of a pipeline in a scrape."""

    def __init__(self):
        self.registry = CollectorRegistry()
        self.telemetry = TunerTelemetry(self.registry, clock=lambda: NOW)

    def tell(self, **fields):
        self.telemetry.update(DEMO, **{"base": BASE, "state": State(), **fields})

    def value(self, name, **labels):
        return self.registry.get_sample_value(name, {"pipeline_namespace": "voices", "pipeline": "demo", **labels})


@pytest.fixture
def scraped():
    return Scraped()


def test_exports_the_setting_in_force(scraped):
    scraped.tell()
    found = {knob: scraped.value("syrinx_tuning_knob", knob=knob.value) for knob in Knob}
    assert found == {Knob.TALKER_ROWS: 8, Knob.CODEC_ROWS: 4, Knob.RAMP: 2, Knob.PAIRS: 1}


def test_exactly_one_phase_is_set(scraped):
    scraped.tell(state=State(phase="Trial"))
    phases = ("Off", "Paused", "NoData", "Watching", "Trial", "Soaking")
    found = {phase: scraped.value("syrinx_tuning_phase", phase=phase) for phase in phases}
    assert found == {phase: float(phase == "Trial") for phase in phases}


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("trial_age_seconds", {}, 300),
        ("good_ratio", {"arm": "candidate"}, 0.975),
        ("requests", {"arm": "candidate"}, 40),
        ("forecast_ratio", {"of": "observed"}, 0.93),
        ("forecast_ratio", {"of": "current"}, 0.92),
        ("forecast_ratio", {"of": "best"}, 0.985),
        ("replicas", {"stage": "talker", "of": "set"}, 3),
        ("replicas", {"stage": "codec", "of": "needed"}, 2),
        ("capacity_requests", {"stage": "talker"}, pytest.approx(6.0)),
    ],
)
def test_exports_the_trial_the_forecast_and_the_replicas_once_there_are_some(scraped, name, labels, value):
    scraped.tell()
    assert not scraped.value(f"syrinx_tuning_{name}", **labels)
    scraped.tell(state=STATE)
    assert scraped.value(f"syrinx_tuning_{name}", **labels) == value


def test_metrics_age_until_newer_ones_arrive(scraped):
    scraped.tell()
    assert scraped.value("syrinx_tuning_metrics_age_seconds") is None
    scraped.tell(metrics_until=NOW - timedelta(seconds=40))
    scraped.tell()
    assert scraped.value("syrinx_tuning_metrics_age_seconds") == 40


def test_decisions_are_counted_from_zero_and_other_events_are_not(scraped):
    scraped.tell()
    assert scraped.value("syrinx_tuning_decisions_total", verdict="RolledBack") == 0
    reasons = ("TrialStarted", "RolledBack", "PutInForce", "RolledBack")
    scraped.tell(events=tuple(Event(reason=reason, message="") for reason in reasons))
    assert scraped.value("syrinx_tuning_decisions_total", verdict="PutInForce") == 1
    assert scraped.value("syrinx_tuning_decisions_total", verdict="RolledBack") == 2
    assert scraped.value("syrinx_tuning_decisions_total", verdict="TrialStarted") is None


def test_a_forgotten_pipeline_has_no_series(scraped):
    scraped.tell(state=STATE)
    scraped.telemetry.forget(DEMO)
    assert not [sample for family in scraped.registry.collect() for sample in family.samples]
