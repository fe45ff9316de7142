"""The measurements of `syrinx bench --overload`."""

import pytest
from msgspec import structs

from syrinx_operator.commands.bench.overload import OverloadReport, Part, Run, completed, merge, served, summarize
from syrinx_operator.commands.bench.report import load, save
from syrinx_operator.commands.bench.stats import Arrival, Outcome, simulate
from syrinx_stages.contract.family import FAMILY

SCALE = {"ttfa_alone_ms": 100.0, "peak_audio_seconds": 2.0, "capacity": 1.0, "clients": 1}
RUN = Run(machine="m", created="", revision=None, command="", **SCALE)


def stream(due: float, first: float, last: float) -> Outcome:
    """A stream of 2 s of audio, half at `first` and half at `last` seconds after it was due."""
    arrivals = [Arrival(at, FAMILY.sample_rate) for at in (first, last)]
    return Outcome(simulate(arrivals, 0), due=due, seconds=last)


def test_audio_counts_when_it_arrives_and_requests_when_they_end():
    outcomes = [stream(10.0, 0.5, 4.5), Outcome(error="http 503", due=10.0, seconds=0.01)]
    assert served(outcomes, 10.5, 14.5) == pytest.approx(2.0 / 4)
    assert served(outcomes, 10.5, 12.5) == pytest.approx(1.0 / 2)
    assert (completed(outcomes, 10.0, 14.0), completed(outcomes, 14.0, 15.0)) == (0.0, 1.0)


def test_a_summary_separates_refused_failed_and_served_requests():
    outcomes = [
        stream(10.0, 0.1, 0.2),
        stream(10.0, 0.3, 2.3),
        Outcome(error="http 503", due=10.0, seconds=0.02),
        Outcome(error="cut off", due=10.0, seconds=3.0),
    ]
    result = summarize(RUN, 5.0, [Part(outcomes, 4.0, 2.0, 0.5)])
    assert (result.requests, result.refused, result.failed, result.rate) == (4, 1, 1, 5.0)
    assert result.throughput_share == pytest.approx(served(outcomes, 12.0, 14.0) / 2.0)
    assert result.ttfa_p50_ms == pytest.approx(200.0)
    assert result.refusal_p95_ms == pytest.approx(20.0)
    assert result.underruns == 0.5, "the second half of one stream is 1 s late"


def test_the_parts_of_a_load_count_together_and_the_longest_recovery():
    first, second = [stream(10.0, 0.1, 4.0)], [stream(50.0, 0.1, 2.0), stream(50.0, 0.1, 4.0)]
    result = summarize(RUN, 2.0, [Part(first, 4.0, 1.0, 0.2), Part(second, 4.0, 3.0, 0.7)])
    audio = served(first, 12.0, 14.0) + served(second, 52.0, 54.0)
    assert (result.requests, result.recovery_seconds) == (3, 0.7)
    assert result.throughput_share == pytest.approx(audio / (1.0 + 3.0))
    assert summarize(RUN, 2.0, [Part(first, 4.0, 1.0, 0.2), Part(second, 4.0, 3.0, None)]).recovery_seconds is None


def test_a_report_is_merged_with_those_of_other_machines(tmp_path):
    file = tmp_path / "overload.json"
    first = OverloadReport([RUN], [summarize(RUN, 1.0, [Part([stream(0.0, 0.1, 0.2)], 3.0, 2.0, None)])])
    other = structs.replace(RUN, machine="other")
    save(merge(first, file), file)
    merged = merge(OverloadReport([other], []), file)
    assert [run.machine for run in merged.runs] == ["m", "other"] and merged.loads == first.loads
    save(merge(first, file), file)
    assert load(file, OverloadReport) == first, "a machine has one run"
