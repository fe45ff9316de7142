"""What the tuner does over hours, in a pipeline with a given ratio of bad requests. The model's answer is scripted."""

import math

import pytest
from msgspec.structs import replace

from support.tuner_world import BASE, BETTER, World, auto, better
from syrinx_operator.observed.evidence import WINDOW_SECONDS, CaptureCost
from syrinx_operator.resource.knobs import Knob
from syrinx_operator.resource.spec import CaptureShape
from syrinx_operator.resource.state.tuning_status import MAX_HISTORY, MAX_TRIED
from syrinx_operator.tuner import decide as deciding
from syrinx_operator.tuner.decide import assignment
from syrinx_operator.tuner.trial import LABELS, MAX_TRIAL_SECONDS

HOUR = 3600.0
BAD, WELL = 0.25, 0.02


def in_phase(phase):
    return lambda world: world.state.phase == phase


def tried(world) -> bool:
    return bool(world.state.history)


# Finding the best -------------------------------------------------------------------------------------------------


def test_a_better_setting_is_tried_promoted_and_settled():
    world = World(better(BAD, WELL)).until(lambda w: "Settled" in w.events)
    assert world.events == ["TrialStarted", "Promoted", "Settled"]
    assert world.state.chosen == BETTER == world.setting
    assert world.is_plain
    (record,) = world.state.history
    assert record.difference == pytest.approx(BAD - WELL, abs=0.1)
    assert record.forecast == pytest.approx(world.gain)
    assert (record.time - record.start_time).total_seconds() < 1200
    world.serve(HOUR)
    assert len(world.events) == 3


def test_the_question_shows_the_load_and_what_was_measured():
    world = World(better(BAD, WELL), rate=6.0, replicas=2).until(lambda w: w.questions, 300)
    question = world.questions[0]
    assert question.current == BASE
    assert question.load.rate == pytest.approx(6.0, rel=0.3)
    assert question.load.frames == pytest.approx(100.0, rel=0.05)  # Two talkers report 50 for each request.
    assert (question.plant.talkers, question.plant.codecs) == (2, 2)
    assert question.plant.limits == {"CustomVoice": 0.2}
    assert question.observed_well == pytest.approx(1 - BAD, abs=0.1)
    assert question.measured.is_known
    assert 0.0 < question.observed_quick["CustomVoice"] <= 0.5


def test_results_are_part_of_the_next_question():
    world = World(better(BAD, BAD + 0.2)).until(tried, 2 * MAX_TRIAL_SECONDS)
    count = len(world.questions)
    world.until(lambda w: len(w.questions) > count, 2 * HOUR)
    question = world.questions[-1]
    assert question.avoided == (BETTER,)
    assert (question.compared[0].setting, question.compared[0].baseline) == (BETTER, BASE)
    assert question.compared[0].difference < 0


def test_a_gain_that_is_not_worth_a_trial_is_left():
    world = World(better(BAD, WELL), gain=deciding.LEAST_GAIN / 2).serve(HOUR)
    assert world.state.trial_count == 0


# Doing no harm ----------------------------------------------------------------------------------------------------


def test_a_service_that_serves_well_is_left_alone():
    world = World(better(0.001, 0.5)).serve(6 * HOUR)
    assert (world.events, world.questions) == ([], [])
    assert world.state.phase == "Watching"
    before = replace(world.state, measured=None, measured_time=None, message="")
    world.serve(HOUR)
    assert replace(world.state, measured=None, measured_time=None, message="") == before


def test_an_idle_service_is_looked_at_less_often():
    world = World(better(0.001, 0.5)).serve(HOUR)
    assert world.decisions[-1].requeue_after == world.policy.interval
    world.rate = 0.0
    world.serve(2 * WINDOW_SECONDS)
    assert world.state.phase == "NoData"
    assert world.decisions[-1].requeue_after == 3 * world.policy.interval


def test_a_harmful_candidate_is_stopped_within_a_minute_of_its_requests():
    for seed in range(5):
        world = World(better(0.05, 0.9), seed=seed).until(tried)
        assert world.verdicts == ["RolledBack"]
        assert world.setting == BASE
        exposed = sum(world.applied[at].candidate is not None for at in range(len(world.applied)))
        assert exposed <= 20
        assert world.state.tried[0].difference < 0


def test_a_setting_that_disappoints_after_its_trial_is_taken_back():
    turned = {"bad": WELL}
    world = World(lambda setting, _: turned["bad"] if setting == BETTER else BAD).until(in_phase("Soaking"))
    turned["bad"] = 0.8
    world.until(lambda w: "Regressed" in w.events, WINDOW_SECONDS)
    assert world.setting == BASE
    assert world.verdicts == ["Promoted", "Regressed"]
    assert world.state.tried[-1].setting == BETTER and world.state.tried[-1].difference < 0


def test_replicas_that_restart_repeatedly_take_a_setting_back():
    world = World(better(BAD, WELL)).until(in_phase("Soaking"))
    world.restarts["talker-0"] += 2
    world.until(lambda w: "Regressed" in w.events, 60)
    assert "restart" in world.state.history[-1].reason


# Urgent changes ---------------------------------------------------------------------------------------------------


def test_where_most_requests_are_bad_the_answer_comes_into_force_at_once():
    world = World(better(0.7, 0.1), gain=0.5).until(lambda w: w.events, 300)
    assert world.events == ["PutInForce"]
    assert world.setting == BETTER and world.is_plain
    world.until(lambda w: "Settled" in w.events, 2 * WINDOW_SECONDS)
    (known,) = world.state.tried
    assert (known.setting, known.baseline) == (BASE, BETTER)
    assert known.difference == pytest.approx(-0.6, abs=0.15)


def test_an_urgent_change_that_makes_it_worse_is_taken_back():
    world = World(better(0.6, 0.95), gain=0.5).until(lambda w: "Regressed" in w.events, 600)
    assert world.events == ["PutInForce", "Regressed"]
    assert world.setting == BASE
    assert world.state.tried[-1].setting == BETTER


def test_a_gain_that_the_model_may_err_about_is_tried():
    world = World(better(0.3, 0.1), gain=0.2, doubt=0.03).until(lambda w: w.events, 300)
    assert world.events == ["PutInForce"]
    world = World(better(0.3, 0.1), gain=0.2, doubt=0.12).until(lambda w: w.events, 300)
    assert world.events == ["TrialStarted"]


def test_where_most_are_bad_any_gain_will_do():
    world = World(better(0.8, 0.7), gain=0.0, more=0.1).until(lambda w: w.events, 300)
    assert world.events == ["PutInForce"]


# What is counted --------------------------------------------------------------------------------------------------


def test_a_setting_that_serves_fewer_than_the_model_said_is_not_watched_for_long():
    """It is better than the one before, so it stays, and the model runs again at once with what was observed."""
    world = World(better(0.8, 0.25), gain=0.78).until(lambda w: w.events == ["PutInForce"])
    begin, asked = world.now, len(world.questions)
    world.until(lambda w: "Settled" in w.events, 120)
    assert "fewer well than the model said" in world.state.message
    assert world.setting == BETTER
    world.until(lambda w: len(w.questions) > asked, 120)
    assert world.now - begin < 120
    question = world.questions[-1]
    assert question.observed_well == pytest.approx(0.75, abs=0.15)
    assert question.compared[0].difference == pytest.approx(-0.55, abs=0.15)


def test_the_model_may_err_where_more_are_bad_than_the_objective_allows():
    for bad, is_bold in ((0.03, False), (0.2, True)):
        world = World(better(bad, bad)).until(lambda w: w.questions, 600)
        assert world.questions[0].is_bold == is_bold


def test_a_trial_that_cannot_decide_is_not_begun():
    world = World(better(BAD, WELL), rate=0.12, gain=0.05).serve(2 * HOUR)
    assert world.state.trial_count == 0
    assert "requests/s cannot show a difference of 8.0 points" in world.state.message


# Changes of the load ----------------------------------------------------------------------------------------------


def shifted(world, rate) -> World:
    """Returns the pipeline once it has noticed another rate, within two minutes."""
    world.rate = rate
    return world.until(lambda w: "LoadChanged" in w.events, 120)


def test_a_changed_load_is_noticed_and_nothing_before_it_counts():
    world = World(better(BAD, WELL)).until(lambda w: "Settled" in w.events).serve(HOUR)
    world.bad = lambda setting, _: 0.4
    at = world.now
    shifted(world, 4 * world.rate)
    assert world.state.tried == () and world.state.forecast is None
    asked = len(world.questions)
    world.until(lambda w: len(w.questions) > asked, 180)
    assert world.now - at < 180
    assert world.questions[-1].load.rate == pytest.approx(world.rate, rel=0.15)
    assert world.questions[-1].observed_well == pytest.approx(0.6, abs=0.1)


@pytest.mark.parametrize("phase", ["Trial", "Soaking"])
def test_a_changed_load_ends_what_was_begun_under_the_former(phase):
    world = World(better(BAD, WELL), start=600.0)
    for _ in range(20):
        world.evaluate()
        world.run(world.now + 10.0)
    world.until(in_phase(phase))
    chosen = world.state.chosen
    shifted(world, 8 * world.rate)
    assert (world.state.trial, world.state.soak, world.state.chosen) == (None, None, chosen)
    assert world.is_plain


# No data is no verdict --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["Watching", "Trial", "Soaking"])
def test_without_data_no_setting_changes(phase):
    world = World(better(BAD, WELL)).until(in_phase(phase))
    chosen = world.state.chosen
    world.problem = "Prometheus does not answer"
    world.serve(3 * HOUR)
    assert "Promoted" not in world.verdicts[phase == "Soaking" :]
    assert {"RolledBack", "Regressed"}.isdisjoint(world.verdicts)
    assert world.state.chosen == chosen
    assert world.state.phase == "NoData" and world.state.trial is None
    assert world.is_plain


def test_a_gateway_that_reports_no_outcomes_is_left_alone():
    world = World(better(0.9, WELL))
    evidence = world.evidence
    world.evidence = lambda since, until: replace(evidence(since, until), outcomes={})
    world.serve(HOUR)
    assert world.state.phase == "NoData" and world.state.trial_count == 0


def test_nothing_starts_during_a_disruption():
    world = World(better(BAD, WELL))
    world.disruption = "talker rolls out"
    world.serve(HOUR)
    assert world.state.trial_count == 0
    assert world.state.message == "talker rolls out"


# The user decides -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["Watching", "Trial", "Soaking"])
def test_an_edit_comes_into_force_at_once(phase):
    world = World(better(BAD, WELL)).until(in_phase(phase))
    wanted = replace(BASE, talker_max_num_seqs=16)
    world.policy = replace(world.policy, requested=wanted)
    assert assignment(world.policy, world.state).base == wanted
    world.evaluate()
    assert (world.state.trial, world.state.soak, world.state.chosen) == (None, None, None)
    assert world.setting == wanted and world.is_plain
    assert ("Superseded" in world.events) == (phase != "Watching")


def test_narrower_bounds_take_back_what_is_outside():
    world = World(better(BAD, WELL)).until(lambda w: "Settled" in w.events)
    world.policy = replace(world.policy, rows={**world.policy.rows, Knob.TALKER_ROWS: (1, 2)})
    world.evaluate()
    assert world.setting == BASE


@pytest.mark.parametrize("mode", ["Off", "Recommend"])
@pytest.mark.parametrize("phase", ["Trial", "Soaking"])
def test_another_mode_returns_to_the_requested_setting(mode, phase):
    world = World(better(BAD, WELL)).until(in_phase(phase))
    world.policy = replace(world.policy, mode=mode)
    now = assignment(world.policy, world.state)
    assert (now.base, now.candidate) == (BASE, None)
    world.evaluate()
    assert (world.state.trial, world.state.soak, world.state.chosen) == (None, None, None)


def test_a_pause_keeps_the_chosen_setting():
    world = World(better(BAD, WELL)).until(lambda w: "Settled" in w.events)
    world.policy = replace(world.policy, paused=True)
    world.serve(HOUR)
    assert world.state.phase == "Paused"
    assert world.setting == BETTER


def test_recommend_only_recommends():
    world = World(better(BAD, WELL), policy=auto(mode="Recommend")).serve(3 * HOUR)
    assert world.events == ["Recommended"]
    assert world.state.recommendation.setting == BETTER
    assert all(each.base == BASE and each.candidate is None and not each.label for each in world.applied)
    world.bad = better(0.001, WELL)
    world.serve(HOUR)
    assert world.state.recommendation is None


# Always -----------------------------------------------------------------------------------------------------------


def test_another_image_forgets_what_was_measured_and_keeps_the_setting():
    world = World(better(BAD, WELL)).until(lambda w: "Settled" in w.events)
    assert world.state.tried and world.state.measured.is_known
    world.identity = replace(world.identity, image="syrinx 0.2.0")
    world.evaluate()
    assert world.state.tried == () and not world.state.measured.is_known
    assert world.setting == BETTER
    assert world.events[-1] == "Forgotten"


def test_the_label_of_a_period_is_never_that_of_one_shortly_before():
    world = World(better(BAD, BAD)).serve(HOUR)
    starts: dict[str, float] = {}
    last, at = "", 0.0
    for decision, applied in zip(world.decisions, world.applied, strict=True):
        if applied.label and applied.label != last:
            assert at - starts.get(applied.label, -math.inf) > 120.0
        if applied.label:
            starts[applied.label] = at
        last = applied.label
        at += decision.requeue_after
    assert len(starts) == LABELS


def test_at_most_one_change_is_in_progress_under_random_failures():
    for seed in range(3):
        storms = 300 + 50 * seed

        def bad(setting, at, storms=storms):
            return (WELL if setting == BETTER else BAD) + 0.5 * (math.sin(at / storms) > 0.95)

        world = World(bad, seed=seed, replicas=1 + seed)
        chance = world._randoms

        def disturb(world, chance=chance):
            check(world)
            dice = chance.random()
            world.problem = "no answer" if dice < 0.02 else ""
            world.disruption = "rolls out" if 0.02 <= dice < 0.03 else ""
            world.confirms = not 0.03 <= dice < 0.05
            if 0.05 <= dice < 0.055:
                world.restarts[chance.choice(sorted(world.restarts))] += 1
            if 0.055 <= dice < 0.056:
                world.restarts.pop("talker-9", None) or world.restarts.setdefault("talker-9", 0)

        world.serve(4 * HOUR, disturb)
        assert world.state.trial_count >= 1


def check(world):
    state, now = world.state, world.applied[-1]
    assert state.trial is None or state.soak is None
    assert world.is_plain or state.trial is not None
    assert state.trial is None or now.base == state.trial.baseline
    assert len(state.history) <= MAX_HISTORY and len(state.tried) <= MAX_TRIED
    assert len(state.message) <= 256
    assert 0 < world.decisions[-1].requeue_after <= deciding.IDLE_INTERVALS * world.policy.interval


def test_captures_come_into_force_while_requests_are_served_well():
    world = World(better(0.001, 0.5))
    world.captures = (CaptureCost(1, 4, 0.5, 1 << 20),)
    world.until(lambda w: "Settled" in w.events)
    assert world.events == ["PutInForce", "Settled"]
    assert world.setting == BASE.with_value(Knob.PAIRS, (CaptureShape(rows=1, frames=4),))
    assert world.questions == []


def test_another_image_ends_a_trial():
    world = World(better(BAD, WELL)).until(in_phase("Trial"))
    world.identity = replace(world.identity, image="syrinx 0.2.0")
    world.evaluate()
    assert world.verdicts == ["Superseded"] and world.is_plain
