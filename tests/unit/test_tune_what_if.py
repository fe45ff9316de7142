"""`syrinx tune --what-if`: the grammar of questions, what an answer depends on, and the answer itself."""

from functools import cache
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from support.resolved import resolved
from syrinx_operator.commands.tune.view import TuneError, View
from syrinx_operator.commands.tune.what_if import (
    WhatIf,
    least_use,
    mean_frames,
    parse_what_if,
    question_of,
    what_if_lines,
)
from syrinx_operator.resource.knobs import Setting, setting_of
from syrinx_operator.resource.spec import PipelineSpec
from syrinx_operator.resource.state.tuning_status import CallPoint, Measured, PreparePoint, State, StepPoint

RECORDED = Path(__file__).parents[1] / "fixtures" / "tuning" / "state.json"
STATE = msgspec.json.decode(RECORDED.read_bytes(), type=State)
"""After 40 minutes of a simulated pipeline."""
OBJECTIVES = [{"taskType": "Base", "ttfaP95Ms": 500}, {"taskType": "CustomVoice", "ttfaP95Ms": 200}]


def view(state=STATE, *, talkers=1, codecs=1, **spec):
    parsed = msgspec.convert({"slo": {"ttfa": OBJECTIVES}, **spec}, PipelineSpec)
    pipeline = resolved(**msgspec.structs.asdict(parsed))
    fields = {"pipeline": pipeline, "requested": setting_of(pipeline), "talkers": talkers, "codecs": codecs}
    return View(name="demo", location="here", state=state, **fields)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("rate=40", WhatIf(rate=40)),
        ("rate=0.5,mix=Base:1", WhatIf(rate=0.5, mix={"Base": 1})),
        ("rate=4,mix=Base:1,CustomVoice:3", WhatIf(rate=4, mix={"Base": 1, "CustomVoice": 3})),
        ("mix=Base:1,CustomVoice:.5,rate=4", WhatIf(rate=4, mix={"Base": 1, "CustomVoice": 0.5})),
        ("Rate=4,MIX=base:1,customvoice : 3", WhatIf(rate=4, mix={"Base": 1, "CustomVoice": 3})),
        (" rate = 4 , mix = Base:1 , CustomVoice:3 ", WhatIf(rate=4, mix={"Base": 1, "CustomVoice": 3})),
        (
            "rate=4,frames=50,burst=2,reference=40,talkers=2,codecs=3",
            WhatIf(rate=4, frames=50, burst=2, reference=40, talkers=2, codecs=3),
        ),
    ],
)
def test_a_question_is_parsed(text, asked):
    assert parse_what_if(text) == asked


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "'' is not KEY=VALUE"),
        ("mix=Base:1", "rate is missing, for example rate=40"),
        ("rate=", "rate: '' is not a number above 0"),
        ("rate=0", "rate: '0' is not a number above 0"),
        ("rate=nan", "rate: 'nan' is not a number above 0"),
        ("rate=inf", "rate: 'inf' is not a number above 0"),
        ("rate=4,rate=5", "rate is given twice"),
        ("rate=4,5", "'5' is not KEY=VALUE (after rate)"),
        ("rate=4,Base:1", "'Base:1' is not KEY=VALUE (after rate)"),
        ("rate=4,mix=Base:1,talkers=2,CustomVoice:3", "'CustomVoice:3' is not KEY=VALUE (after talkers)"),
        ("rate=4,rows=8", "'rows' is not a key; there are rate, mix, frames, burst, reference, talkers, codecs"),
        ("rate=4,mix=Base", "mix: 'Base' is not TYPE:SHARE"),
        ("rate=4,mix=Base:1,", "mix: '' is not TYPE:SHARE"),
        ("rate=4,mix=clone:1", "mix: 'clone' is no task type; there are CustomVoice, VoiceDesign, Base"),
        ("rate=4,mix=Base:0", "mix: Base: '0' is not a number above 0"),
        ("rate=4,mix=Base:1,Base:2", "mix: Base is given twice"),
        ("rate=4,mix=Base:1,mix=CustomVoice:2", "mix is given twice"),
        ("rate=4,frames=0.5", "frames: '0.5' is not a number from 1"),
        ("rate=4,burst=0", "burst: '0' is not a number from 1"),
        ("rate=4,reference=-1", "reference: '-1' is not a number from 0"),
        ("rate=4,talkers=0", "talkers: '0' is not an integer from 1 to 1024"),
        ("rate=4,codecs=1.5", "codecs: '1.5' is not an integer from 1 to 1024"),
    ],
)
def test_an_error_names_the_key(text, problem):
    with pytest.raises(TuneError) as error:
        parse_what_if(text)
    assert str(error.value) == f"--what-if: {problem}"


def test_what_is_not_given_is_as_it_is_now():
    question = question_of(view(talkers=3, codecs=2), WhatIf(rate=4, mix={"Base": 1, "CustomVoice": 3}))
    assert question.load.rates == {"Base": 1.0, "CustomVoice": 3.0}
    assert question.load.frames == pytest.approx(mean_frames(STATE.measured))
    assert (question.plant.talkers, question.plant.codecs) == (3, 2)
    assert question.plant.limits == {"Base": 0.5, "CustomVoice": 0.2}
    assert question.current == STATE.chosen
    only = view(slo={"ttfa": OBJECTIVES[:1]})
    assert question_of(only, WhatIf(rate=4)).load.rates == {"Base": 4.0}


def test_the_task_types_are_those_that_were_served():
    """A checkpoint has one, however many objectives there are."""
    one, two = PreparePoint("CustomVoice", 6, 0.1), PreparePoint("Base", 2, 0.1)
    for served, rates in (((one,), {"CustomVoice": 4.0}), ((one, two), {"CustomVoice": 3.0, "Base": 1.0})):
        known = replace(STATE, measured=replace(STATE.measured, prepares=served))
        for slo in ({"ttfa": []}, {"ttfa": OBJECTIVES}):
            assert question_of(view(known, slo=slo), WhatIf(rate=4)).load.rates == rates


def test_a_colocated_codec_is_in_each_talker():
    question = question_of(view(topology="Colocated"), WhatIf(rate=4, mix={"Base": 1}, talkers=2))
    assert question.plant.codecs == 2
    with pytest.raises(TuneError, match="codecs: with topology Colocated there is one in each talker"):
        question_of(view(topology="Colocated"), WhatIf(rate=4, mix={"Base": 1}, talkers=2, codecs=3))


def test_the_mean_length_follows_from_steps_and_prefills():
    steps = (StepPoint(1, 100, 0.5), StepPoint(2, 50, 0.3))
    assert mean_frames(Measured(steps=steps, prefills=4, prefill_seconds=0.1)) == 50


@pytest.mark.parametrize(
    ("state", "asked", "problem"),
    [
        (State(), WhatIf(rate=1), "engine times of demo are not known yet: send it requests"),
        (STATE, WhatIf(rate=1), "mix is missing, for example mix=Base:1,CustomVoice:3"),
        (
            replace(STATE, measured=replace(STATE.measured, prefills=0.0)),
            WhatIf(rate=1, mix={"Base": 1}),
            "frames is missing, and no request was measured",
        ),
    ],
)
def test_what_cannot_be_answered(state, asked, problem):
    with pytest.raises(TuneError, match=problem):
        question_of(view(state), asked)


TOO_MUCH = "rate=60,mix=CustomVoice:1,frames=50"


@cache
def lines(text):
    """Returns the lines of an answer."""
    return what_if_lines(view(), parse_what_if(text))


def answer(text):
    """Returns the rows of an answer's table: (in force, best)."""
    shown = lines(text)
    start = shown.index("") + 2
    return {line[:27].strip(): line[27:].split("  ") for line in shown[start:]}


def ratios(table):
    current, *_, best = (float(each.strip("% ")) for each in table["served well"] if each.strip())
    return current, best


def test_one_talker_serves_little_of_a_load_that_four_serve():
    alone = ratios(answer(TOO_MUCH))
    assert alone[0] <= alone[1] < 50
    four = ratios(answer("rate=60,mix=CustomVoice:1,frames=50,talkers=4,codecs=4"))
    assert four[1] > 99


def test_a_load_beyond_the_capacity_is_named():
    assert "The load exceeds the capacity of these replicas" in lines(TOO_MUCH)[-1]
    assert not any("exceeds" in line for line in lines("rate=1,mix=CustomVoice:1,frames=50"))


def test_a_replica_is_used_as_much_as_its_full_steps_and_calls_take():
    measured = Measured(
        steps=(StepPoint(1, 100, 1.0),), calls=(CallPoint(1, 4, False, 10, 0.2),), prefills=10, prefill_seconds=0.5
    )
    setting = Setting(talker_max_num_seqs=1, codec_max_num_seqs=1, chunk_ramp=(2, 4))
    asked = WhatIf(rate=1, mix={"Base": 1}, frames=20, reference=10, talkers=2, codecs=3)
    question = question_of(view(replace(STATE, measured=measured, chosen=setting)), asked)
    talkers, codecs = least_use(question, setting)
    assert talkers == pytest.approx((20 * 0.01 + 0.05) / 2)
    assert codecs == pytest.approx(30 * 0.02 / 4 / 3)
