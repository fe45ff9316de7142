"""What `python -m live_tuning` draws, and how it scores a tuner."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from live_tuning.draws import Load, Phase, draw_loads, draw_settings
from live_tuning.report import Report, StartResult, page, plot, start_result
from live_tuning.rows import Rows
from live_tuning.scores import Request, by_half_minute, never_below, seconds_after_shift, seconds_until, share
from live_tuning.service import Result
from syrinx_operator.commands.bench.load import corpus
from syrinx_operator.local.machine import Machine
from syrinx_operator.resource.knobs import RAMP_LADDER, ROWS_LADDER, Setting, setting_of
from syrinx_operator.resource.resolve import resolve
from syrinx_operator.resource.spec import default_pipeline

DEFAULTS = resolve(default_pipeline())
START = Setting(talker_max_num_seqs=1, codec_max_num_seqs=2, chunk_ramp=RAMP_LADDER[-1])
LOAD = Load(name="50 %", seed=1, phases=(Phase(seconds=90, rate=1.0), Phase(seconds=60, rate=2.0)))

# Draws ------------------------------------------------------------------------------------------------------------


def test_settings_are_all_of_the_ladders_but_the_defaults_in_an_order_of_the_seed():
    drawn = draw_settings(DEFAULTS, 1)
    rows = [each for each in ROWS_LADDER if each <= DEFAULTS.talker.max_resident]
    assert len(set(drawn)) == len(drawn) == len(rows) ** 2 * len(RAMP_LADDER) - 1
    assert setting_of(DEFAULTS) not in drawn
    assert drawn == draw_settings(DEFAULTS, 1)
    assert drawn != draw_settings(DEFAULTS, 2) and set(drawn) == set(draw_settings(DEFAULTS, 2))


def test_the_low_load_grows_and_the_high_one_shrinks_in_its_rate_or_its_texts():
    shifts = set()
    for seed in range(20):
        low, high = draw_loads(10.0, seed, 720, 300)
        assert low.phases[0] == Phase(seconds=720, rate=5.0, burst=2)
        assert high.phases[0] == Phase(seconds=720, rate=7.5)
        shifts |= {(load.name, load.phases[1].rate, load.phases[1].texts) for load in (low, high)}
    assert shifts == {
        ("50 %", 8.0, "all"),
        ("50 %", 5.0, "longest third"),
        ("75 %", 3.75, "all"),
        ("75 %", 7.5, "shortest third"),
    }


def test_all_services_get_the_same_requests():
    load = draw_loads(10.0, 1, 60, 30)[0]
    requests = load.requests(("us",))
    assert requests == load.requests(("us",))
    times = [at for at, *_ in requests]
    assert times == sorted(times) and times[::2] == times[1::2], "bursts of two"
    assert len([at for at in times if at < 60]) == pytest.approx(300, rel=0.2)
    start = replace(load, phases=(replace(load.phases[0], seconds=30),))
    assert start.requests(("us",)) == requests[: len([at for at in times if at < 30])], "a check is the run's start"


def test_a_shift_of_the_texts_applies_from_then_on():
    load = Load(name="", seed=1, phases=(Phase(seconds=60, rate=1), Phase(seconds=60, rate=1, texts="longest third")))
    texts = [(at, script.body(number)["input"]) for at, script, number in load.requests(("us",))]
    assert {text for at, text in texts if at >= 60} <= set(corpus()[-33:])
    assert not {text for at, text in texts if at < 60} <= set(corpus()[-33:])


# Scores -----------------------------------------------------------------------------------------------------------


def test_a_request_is_served_well_within_the_objective_and_without_a_gap():
    late, gap, failed, well = Request(0, 0.3), Request(0, 0.1, 1), Request(0, None), Request(0, 0.2)
    assert share([late, gap, failed, well], 0.2) == 0.25
    assert share([], 0.2) == 1.0


def test_requests_count_for_the_half_minute_in_which_they_arrive():
    requests = [Request(0, 0.1), Request(29.9, 40.0), Request(30, 0.1)]
    assert by_half_minute(requests, 75) == [requests[:2], requests[2:], []]


@pytest.mark.parametrize(
    ("shares", "seconds"),
    [
        ([1.0, 1.0, 1.0, 1.0], 0),
        ([0.5, 0.95, 0.95, 0.9], 30),
        ([0.5, 1.0, 0.5, 1.0], None),
        ([0.5, 1.0, 0.9, 0.95, 1.0], 90),
        ([0.5, 0.5, 0.5, 1.0], None),
    ],
)
def test_it_serves_enough_from_the_first_two_half_minutes_in_a_row_with_95_percent(shares, seconds):
    assert seconds_until(shares, [1.0] * len(shares)) == seconds
    assert seconds_until([each / 2 for each in shares], [0.5] * len(shares)) == seconds


def test_after_a_shift_the_better_of_the_defaults_and_the_share_before_is_what_counts():
    tuned = [0.1, 0.9, 0.9, 0.9, 0.9, 0.5, 0.8, 0.9, 0.9]
    assert seconds_after_shift(tuned, [0.2] * 9, 5) == 60, "its own share was 90 %, since the last four half minutes"
    assert seconds_after_shift(tuned, [1.0] * 9, 5) is None, "the defaults serve all"


def test_a_half_minute_is_worse_than_the_start_only_beyond_three_standard_errors():
    assert never_below([0.4, 0.5], [0.5, 0.5], [100, 100])
    assert not never_below([0.2, 0.5], [0.5, 0.5], [100, 100])
    assert never_below([0.2, 0.5], [0.5, 0.5], [10, 10]), "of few requests chance explains more"
    assert never_below([0.2, 0.5], [0.5, 0.7], [100, 100]), "the start varies as much by itself"
    assert never_below([1.0, 0.0], [0.0, 0.0], [100, 0])


# Results ----------------------------------------------------------------------------------------------------------


def result(ttfas: list[float], audio: str = "a", **decided) -> Result:
    """A run with ten requests in each half minute."""
    requests = [Request(30 * number + at, ttfa) for number, ttfa in enumerate(ttfas) for at in range(10)]
    decided = {"chosen": None, "decisions": ()} | decided
    return Result(requests=tuple(requests), samples=((0, "x"), (1, audio)), **decided)


def scores(**results: Result) -> StartResult:
    """Of the load: three half minutes, and two after its shift."""
    runs = {
        "untouched": result([0.9] * 5),
        "tuned": result([0.9, 0.1, 0.1, 0.9, 0.9], chosen=setting_of(DEFAULTS), decisions=((40.0, "Promoted"),)),
        "defaults": result([0.1] * 5),
    }
    return start_result(START, LOAD, runs | results, 0.2)


def test_a_start_is_scored_before_and_after_the_shift():
    found = scores()
    assert found.by_half_minute.tuned == (0.0, 1.0, 1.0, 0.0, 0.0)
    assert found.by_half_minute.requests == (10,) * 5
    assert (found.seconds_to_95, found.after_shift_seconds, found.never_below_start) == (30, None, True)
    assert (found.bytes_equal, found.samples) == (True, 2)


def test_a_good_start_that_the_tuner_makes_worse_is_not_never_below():
    assert not scores(untouched=result([0.1] * 5)).never_below_start
    assert scores(untouched=result([0.1] + [0.9] * 4)).never_below_start, "the first half minute does not count"


def test_audio_that_differs_in_a_sample_is_not_equal():
    assert not scores(tuned=result([0.1] * 5, audio="b")).bytes_equal


def test_the_page_has_a_row_for_each_start_and_load(tmp_path):
    machine = Machine("CPU", 2, 4.0, "Linux", "3.11", {})
    never = scores(tuned=result([0.9] * 5, audio="b"))
    report = Report(
        created="now", revision=None, command="live", machine=machine, service_cores=2, capacity=10.0,
        objective_seconds=0.2, loads=(LOAD,), rejected=3, defaults=1.0, tuned=0.4, untouched=0.0,
        starts=(scores(), never),
    )  # fmt: skip
    rows = [line.split("|")[1:-1] for line in page(report).splitlines() if line.startswith("| 1 / 2")]
    cells = [[cell.strip() for cell in row] for row in rows]
    before, after = ["0.0%", "66.7%", "100.0%"], ["0.0%", "0.0%", "100.0%"]
    assert cells[0] == ["1 / 2, 16", "50 %", *before, "30 s", "yes", *after, "never", "8 / 8, 2", "all of 2"]
    assert cells[1][5] == "never" and cells[1][-2:] == ["1 / 2, 16", "not all of 2"]
    plot(report.starts, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size


async def test_an_interrupted_run_continues_with_what_is_missing(tmp_path: Path):
    measured = []

    async def measure(phase: Phase, cores: object) -> Result:
        measured.append(phase.rate)
        return result([phase.rate])

    for rates in ((1.0,), (1.0, 2.0), (2.0, 1.0)):
        rows = Rows(tmp_path / "rows.jsonl", 1)
        for rate in rates:
            assert await rows.get(measure, Phase(seconds=1, rate=rate), Result) == result([rate])
    assert measured == [1.0, 2.0]
