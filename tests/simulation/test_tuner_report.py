"""The report of the tuner's measurements has the parts that were measured."""

from simulator.inversion import Case, Inversion, Late
from simulator.report import Report, table
from simulator.shifts import Shift
from syrinx_operator.resource.knobs import RAMP_LADDER, Setting

START = Setting(talker_max_num_seqs=32, codec_max_num_seqs=1, chunk_ramp=RAMP_LADDER[1])
CASE = Case(
    start=START,
    rate=1.5,
    objective_seconds=1.5,
    by_rows={1: 0.6, 2: 0.75, 4: 0.9, 8: 0.9, 16: 0.88},
    found=(Late(well=0.98, setting=START),),
)


def headings(report):
    return [line for line in table(report).splitlines() if line.startswith("#")]


def test_a_part_that_was_not_measured_is_left_out():
    assert headings(Report()) == ["# How good the tuner is"]


def test_changes_of_the_load_and_the_inversion_have_their_sections():
    shift = Shift(noticed_seconds=30.0, median_seconds=20.0, runs=10)
    report = Report(
        shifts={"rate x2": shift},
        false_shifts_per_48h=0.0,
        inversion=Inversion(command="the command", cases={"voice clones": CASE}),
    )
    assert headings(report)[1:] == ["## Changes of the load", "## Rows of a codec for preset voices and clones"]
    assert "| voice clones, 1.5 requests/s | 60.0% | 75.0% | 90.0% | 90.0% | 88.0% | 1 | 1 | 98.0% |" in table(report)
