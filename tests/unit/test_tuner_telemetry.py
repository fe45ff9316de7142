"""The tuner's metrics of a pipeline."""

from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import CollectorRegistry

from support.tuning import scaled
from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.resource.spec import CaptureShape
from syrinx_operator.resource.tuning_status import Forecast, Guard, Served, State, Trial
from syrinx_operator.tuner.builder import Event
from syrinx_operator.tuner.telemetry import TunerTelemetry

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
BASE = Setting(
    talker_max_num_seqs=8,
    codec_max_num_seqs=4,
    chunk_ramp=(2, 4, 8),
    capture_pairs=(CaptureShape(rows=1, frames=25), CaptureShape(rows=2, frames=25)),
)
TRIAL = Trial(
    id=3,
    candidate=BASE.with_value(Knob.CODEC_ROWS, 8),
    baseline=BASE,
    why="the queue waits for it",
    start_time=NOW - timedelta(seconds=90),
    period_seconds=30.0,
    period_time=NOW,
    candidate_served=Served(requests=4, bad=1),
    guard=Guard(expected_bad=0.1),
)
FORECAST = Forecast(time=NOW, rate=4.0, observed=0.7, current=0.75, best=0.98, setting=TRIAL.candidate)
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


@pytest.mark.parametrize(
    ("knob", "value"), [(Knob.TALKER_ROWS, 8), (Knob.CODEC_ROWS, 4), (Knob.RAMP, 2), (Knob.PAIRS, 2)]
)
def test_a_knob_is_exported_as_a_number(scraped, knob, value):
    scraped.tell()
    assert scraped.value("syrinx_tuning_knob", knob=knob.value) == value


def test_exactly_one_phase_is_set(scraped):
    scraped.tell(state=State(phase="Trial"))
    phases = ("Off", "Paused", "NoData", "Watching", "Trial", "Soaking")
    found = {phase: scraped.value("syrinx_tuning_phase", phase=phase) for phase in phases}
    assert found == {phase: float(phase == "Trial") for phase in phases}


def test_exports_the_trial_in_progress(scraped):
    scraped.tell(state=State(phase="Trial", trial=TRIAL))
    assert scraped.value("syrinx_tuning_trial_age_seconds") == 90
    assert scraped.value("syrinx_tuning_good_ratio", arm="candidate") == 0.75
    assert scraped.value("syrinx_tuning_requests", arm="candidate") == 4


def test_exports_the_forecast_once_there_is_one(scraped):
    scraped.tell()
    assert scraped.value("syrinx_tuning_forecast_ratio", of="best") is None
    scraped.tell(state=State(forecast=FORECAST))
    found = {of: scraped.value("syrinx_tuning_forecast_ratio", of=of) for of in ("observed", "current", "best")}
    assert found == {"observed": 0.7, "current": 0.75, "best": 0.98}


def test_exports_the_replicas_that_the_tuner_decides(scraped):
    scraped.tell()
    assert scraped.value("syrinx_tuning_replicas", stage="talker", of="set") is None
    scraped.tell(state=State(replicas=scaled(NOW, talkers=3, codecs=2)))
    assert scraped.value("syrinx_tuning_replicas", stage="talker", of="set") == 3
    assert scraped.value("syrinx_tuning_replicas", stage="codec", of="needed") == 2
    assert scraped.value("syrinx_tuning_capacity_requests", stage="talker") == pytest.approx(6.0)


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
    scraped.tell(state=State(trial=TRIAL))
    scraped.telemetry.forget(DEMO)
    assert not [sample for family in scraped.registry.collect() for sample in family.samples]
