"""Decisions of the tuner in an environment with a given ratio of good requests per setting."""

import math
from datetime import timedelta

import msgspec
import pytest

from support.tuner_world import IDENTITY, World, auto
from syrinx_operator.resource.knobs import Setting
from syrinx_operator.resource.stage_config import Stage
from syrinx_operator.resource.tuning_status import BestKnown, State, Workload
from syrinx_operator.tuner.decide import assignment, decide
from syrinx_operator.tuner.policy import Objective

HOUR = 3600
LONE = Setting(talker_max_num_seqs=1, codec_max_num_seqs=1, chunk_ramp=(2, 2, 3, 4, 5, 7, 9, 12))
USUAL = Setting(talker_max_num_seqs=8, codec_max_num_seqs=8, chunk_ramp=(2, 2, 3, 4, 5, 7, 9, 12))
NEARLY = Setting(talker_max_num_seqs=8, codec_max_num_seqs=4, chunk_ramp=(2, 2, 3, 4, 5, 7, 9, 12))
REPLICAS = pytest.mark.parametrize("replicas", [1, 2, 4])


def hill(setting, task_type, at):
    """Best at eight rows of each stage; everything else is clearly worse."""
    talker = {1: 0.4, 2: 0.6, 4: 0.8}.get(setting.talker_max_num_seqs, 1.0 if setting.talker_max_num_seqs == 8 else 0.7)
    codec = {1: 0.6, 2: 0.75, 4: 0.87}.get(setting.codec_max_num_seqs, 1.0 if setting.codec_max_num_seqs == 8 else 0.8)
    return 0.99 * talker * codec


def flat(share):
    return lambda setting, task_type, at: share


def in_trial(world):
    return world.state.trial is not None and world.state.trial.period.counting_since is not None


def until(world, condition, seconds=4 * HOUR):
    """Runs until a condition holds."""
    end = world.now + timedelta(seconds=seconds)
    while not condition(world):
        assert world.now < end, world.state.message
        world.pass_time(world.evaluate().requeue_after)
    return world


def is_thawed(world):
    now = assignment(world.policy, world.state)
    return not now.has_overrides


# --- finding the best


@REPLICAS
def test_a_bad_start_converges_to_the_best_setting(replicas):
    world = World(auto(requested=LONE), hill, talkers=replicas, codecs=replicas).run(12 * HOUR)
    assert (world.state.chosen.talker_max_num_seqs, world.state.chosen.codec_max_num_seqs) == (8, 8)
    assert world.state.trial_count <= 12
    assert world.state.last_good == world.state.chosen
    assert world.state.message == "the objectives are met"


def test_several_replicas_run_a_parallel_trial():
    world = until(World(auto(requested=NEARLY), hill, talkers=4, codecs=4), in_trial)
    trial = world.state.trial
    assert trial.design == "Parallel"
    assert len(trial.period.candidate_replicas) == len(trial.period.baseline_replicas) == 1
    first = trial.period
    second = until(world, lambda w: w.state.trial.period.index == 1).state.trial.period
    assert (second.candidate_replicas, second.baseline_replicas) == (first.baseline_replicas, first.candidate_replicas)


def test_one_replica_runs_a_switchback():
    world = until(World(auto(requested=LONE), hill), in_trial)
    assert world.state.trial.design == "Switchback"
    first = world.state.trial.period.all_replicas
    assert until(world, lambda w: w.state.trial.period.index == 1).state.trial.period.all_replicas is not first


def test_a_congested_stage_runs_a_switchback():
    class Crowded(World):
        def evidence(self):
            return msgspec.structs.replace(super().evidence(), queue_age=3.0)

    assert until(Crowded(auto(requested=LONE), hill, talkers=4), in_trial).state.trial.design == "Switchback"


def test_mostly_bad_requests_lead_to_a_switchback():
    assert until(World(auto(requested=LONE), hill, talkers=4), in_trial).state.trial.design == "Switchback"


def test_accepting_fewer_requests_is_not_counted_as_better():
    """In a parallel trial, a candidate of one row accepts few requests and leaves the others to its peers."""

    class Shared(World):
        def pass_time(self, seconds):
            super().pass_time(seconds)
            at, served = self.segments.pop()
            few = {
                name for name in self.names[Stage.CODEC] if self.setting_of(Stage.CODEC, name).codec_max_num_seqs == 1
            }
            taken = {
                route: (n // 4, n // 4) if route.codec in few else (n, good) for route, (n, good) in served.items()
            }
            self.segments.append((at, taken))

    world = Shared(auto(requested=NEARLY), flat(0.85), codecs=4, rate=12.0).run(12 * HOUR)
    assert all(record.after != "1" for record in world.state.history if record.verdict == "Promoted")


def test_a_slow_replica_does_not_bias_a_trial():
    for seed in range(2):
        world = World(auto(requested=USUAL), flat(0.9), talkers=3, codecs=3, seed=seed)
        world.speed = {"talker-1": 0.7, "codec-2": 0.8}
        assert "Promoted" not in world.run(12 * HOUR).verdicts()


def test_a_promotion_rolls_out_replica_by_replica():
    world = World(auto(requested=NEARLY), hill, codecs=8, rate=12.0)
    until(world, lambda w: w.state.phase == "Promoting")
    numbers = []
    while world.state.promotion is not None:
        numbers.append(len(world.state.promotion.replicas))
        world.pass_time(world.evaluate().requeue_after)
    assert sorted(set(numbers)) == [1, 2, 4]
    assert world.state.phase == "Soaking"
    assert is_thawed(world)


def test_follows_a_changing_workload():
    """Two rows are best by day, eight by night. Results of the first day hold on the second."""

    def good(setting, task_type, at):
        best = 2 if (at // (12 * HOUR)) % 2 == 0 else 8
        return 0.99 - 0.12 * abs(math.log2(setting.codec_max_num_seqs / best))

    def mix_at(world):
        day = (world.elapsed() // (12 * HOUR)) % 2 == 0
        world.mix = {"CustomVoice": 1.0} if day else {"Base": 1.0}

    world = World(auto(requested=USUAL), good)
    chosen = []
    for _ in range(4):
        world.run(12 * HOUR, mix_at)
        chosen.append(world.state.chosen.codec_max_num_seqs if world.state.chosen else 8)
    assert chosen == [2, 8, 2, 8]
    known = {known.workload.mix: known.setting.codec_max_num_seqs for known in world.state.best_known}
    assert known == {"CustomVoice:4": 2, "Base:4": 8}
    nights = [record for record in world.state.history if record.workload.mix == "Base:4"]
    assert len([r for r in nights if r.verdict == "Promoted"]) >= 2


# --- doing no harm


@pytest.mark.parametrize("share", [0.5, 0.9, 0.94])
def test_noise_alone_changes_no_knob(share):
    for seed in range(2):
        world = World(auto(requested=USUAL), flat(share), seed=seed).run(12 * HOUR)
        assert "Promoted" not in world.verdicts()
        assert world.state.chosen is None
        assert world.state.trial_count <= 13


def test_no_trial_starts_while_the_objectives_are_met():
    world = World(auto(requested=USUAL), flat(0.97)).run(12 * HOUR)
    assert world.state.trial_count == 0
    assert world.event_reasons() == []


def test_the_state_does_not_change_in_steady_state():
    world = World(auto(requested=USUAL), flat(0.97)).run(HOUR)
    before = world.state
    assert world.run(HOUR).state == before


def test_a_harmful_candidate_is_stopped_within_one_period():
    def good(setting, task_type, at):
        return 0.85 if setting == USUAL else 0.1

    world = World(auto(requested=USUAL), good)
    until(world, lambda w: w.verdicts() == ["RolledBack"])
    record = world.state.history[0]
    assert (record.time - record.start_time).total_seconds() < 240
    assert is_thawed(world)


def test_a_crashing_candidate_is_rolled_back_and_quarantined():
    world = until(World(auto(requested=LONE), hill), lambda w: in_trial(w) and w.state.trial.period.all_replicas)
    tried = world.state.trial.candidate
    world.restarts["talker-0"] += 1
    world.evaluate()
    assert world.verdicts() == ["RolledBack"]
    assert "restarted" in world.state.history[0].reason
    assert [each.setting for each in world.state.quarantine] == [tried]
    assert is_thawed(world)


def test_a_crash_under_the_baseline_only_discards_the_period():
    world = until(World(auto(requested=LONE), hill), lambda w: in_trial(w) and not w.state.trial.period.all_replicas)
    world.restarts["talker-0"] += 1
    world.evaluate()
    assert world.state.trial.discarded_periods == 1
    assert world.verdicts() == []


def test_each_failure_doubles_the_quarantine_and_the_cool_down():
    world = World(auto(requested=USUAL), lambda s, t, a: 0.8 if s == USUAL else 0.1)
    waits, times = [], {}
    for _ in range(8):
        until(world, lambda w: len(w.state.history) > len(waits), seconds=72 * HOUR)
        waits.append((world.state.next_trial_time - world.now).total_seconds())
    assert waits[:4] == pytest.approx([60, 120, 240, 480], abs=2)
    assert max(waits) <= 1800
    until(world, lambda w: any(each.failures == 2 for each in w.state.quarantine), seconds=96 * HOUR)
    for each in world.state.quarantine:
        times[each.failures] = each.until - world.now
    assert times[2] > timedelta(hours=1.5)


def test_a_gain_for_one_task_type_does_not_hide_a_loss_for_another():
    """More rows slightly improve preset voices and harm clones."""

    def good(setting, task_type, at):
        more = math.log2(setting.codec_max_num_seqs / 8)
        return min(1.0, 0.85 + 0.08 * more) if task_type == "CustomVoice" else 0.9 - 0.3 * max(0.0, more)

    world = World(auto(requested=USUAL), good, mix={"CustomVoice": 0.85, "Base": 0.15}, rate=8.0).run(12 * HOUR)
    assert all(record.after != "16" for record in world.state.history if record.verdict == "Promoted")


def test_a_regression_is_reverted():
    turned = {}

    def good(setting, task_type, at):
        better = setting.talker_max_num_seqs >= 2
        return 0.3 if better and turned else 0.9 if better else 0.6

    world = World(auto(requested=LONE), good)
    until(world, lambda w: w.state.phase == "Soaking")
    turned["now"] = True
    until(world, lambda w: "Regressed" in w.verdicts(), seconds=600)
    assert world.state.chosen == world.state.last_good == LONE
    assert world.event_reasons()[-1] == "Regressed"


# --- no data is no verdict


def test_without_data_a_trial_ends_without_a_verdict():
    world = until(World(auto(requested=LONE), hill), in_trial)
    world.problem = "Prometheus does not answer"
    before = [cell.test.pairs for cell in world.state.trial.strata]
    world.pass_time(world.evaluate().requeue_after)
    assert [cell.test.pairs for cell in world.state.trial.strata] == before
    until(world, lambda w: w.state.trial is None, seconds=600)
    assert world.verdicts() == ["Inconclusive"]
    assert "does not answer" in world.state.history[0].reason
    assert is_thawed(world)
    world.run(HOUR)
    assert world.state.phase == "NoData"
    assert world.state.trial_count == 1


def test_no_trial_starts_with_too_few_requests():
    world = World(auto(requested=LONE), hill, rate=0.01).run(12 * HOUR)
    assert world.state.trial_count == 0


def test_no_trial_starts_during_a_disruption():
    world = World(auto(requested=LONE), hill)
    world.disruption = "talker rolls out"
    world.run(HOUR)
    assert world.state.trial_count == 0
    assert "talker rolls out" in world.state.message


# --- people know better


@pytest.mark.parametrize("phase", ["Trial", "Soaking", "Watching"])
def test_an_edit_of_a_tuned_field_takes_effect_at_once(phase):
    world = until(World(auto(requested=LONE), hill), lambda w: w.state.phase == phase and w.state.trial_count >= 1)
    wanted = msgspec.structs.replace(LONE, talker_max_num_seqs=16)
    world.policy = msgspec.structs.replace(world.policy, requested=wanted)
    assert assignment(world.policy, world.state).base == wanted
    world.evaluate()
    assert world.state.trial is None and world.state.chosen is None
    assert assignment(world.policy, world.state).base == wanted
    assert "Superseded" in world.event_reasons() or phase == "Watching"


@pytest.mark.parametrize("mode", ["Off", "Recommend"])
@pytest.mark.parametrize("phase", ["Trial", "Soaking"])
def test_another_mode_returns_to_the_requested_setting(mode, phase):
    world = until(World(auto(requested=LONE), hill), lambda w: w.state.phase == phase)
    world.policy = msgspec.structs.replace(world.policy, mode=mode)
    assert is_thawed(world)
    assert assignment(world.policy, world.state).base == LONE
    world.evaluate()
    assert world.state.trial is None and world.state.chosen is None


def test_a_pause_keeps_the_chosen_setting_and_ends_the_trial():
    world = until(World(auto(requested=LONE), hill), lambda w: w.state.chosen is not None and in_trial(w))
    chosen = world.state.chosen
    world.policy = msgspec.structs.replace(world.policy, paused=True)
    assert is_thawed(world)
    world.run(HOUR)
    assert world.state.phase == "Paused"
    assert assignment(world.policy, world.state).base == chosen


def test_recommend_changes_nothing_and_emits_one_event():
    world = World(auto(requested=LONE, mode="Recommend"), hill).run(12 * HOUR)
    assert world.state.recommendation is not None
    assert world.state.trial_count == 0
    assert assignment(world.policy, world.state).base == LONE
    assert 1 <= world.event_reasons().count("Recommended") <= 3


def test_narrower_bounds_reset_a_setting_outside():
    world = World(auto(requested=LONE), hill).run(12 * HOUR)
    rows = {knob: (1, 2, 4) for knob in world.policy.rows}
    world.policy = msgspec.structs.replace(world.policy, rows=rows)
    world.evaluate()
    assert world.state.chosen is None


def test_another_image_discards_results_and_keeps_the_chosen_setting():
    world = World(auto(requested=LONE), hill).run(12 * HOUR)
    chosen = world.state.chosen
    assert world.state.best_known
    world.identity = msgspec.structs.replace(IDENTITY, image="syrinx 0.2.0")
    world.evaluate()
    assert world.state.best_known == () == world.state.quarantine
    assert world.state.chosen == chosen
    assert "Forgotten" in world.event_reasons()


def test_a_best_known_setting_that_is_bad_now_is_rolled_back():
    context = Workload(mix="CustomVoice:4", rate_bucket=4)
    bad = msgspec.structs.replace(USUAL, talker_max_num_seqs=1)
    from support.tuner_world import START

    state = State(
        best_known=(BestKnown(workload=context, setting=bad, good_ratio=0.999, time=START),), identity=IDENTITY
    )
    world = World(auto(requested=USUAL), lambda s, t, a: 0.8 if s.talker_max_num_seqs == 8 else 0.2, state=state)
    until(world, lambda w: w.state.history)
    assert (world.state.history[0].after, world.state.history[0].verdict) == ("1", "RolledBack")
    assert is_thawed(world)


# --- always


def test_at_most_one_change_is_in_progress_under_random_events():
    """Days with failures: crashes, missing data, changed replicas, roll-outs, bursts."""
    for seed in range(4):

        def good(setting, task_type, at, seed=seed):
            storm = 0.4 if math.sin(at / (300 + 50 * seed)) > 0.95 else 0.0
            return max(0.0, hill(setting, task_type, at) - storm)

        world = World(auto(requested=LONE), good, talkers=1 + seed % 4, codecs=1 + seed % 3, seed=seed)

        def disturb(world):
            check(world)
            dice = world.random.random()
            world.problem = "no answer" if dice < 0.05 else ""
            world.disruption = "rolls out" if 0.05 <= dice < 0.08 else ""
            if 0.08 <= dice < 0.09:
                world.restarts[world.random.choice(sorted(world.restarts))] += 1
            if 0.09 <= dice < 0.095:
                names = world.names[Stage.TALKER]
                world.names[Stage.TALKER] = names[:-1] if len(names) > 1 else [*names, "talker-9"]
                world.restarts.setdefault("talker-9", 0)

        world.run(12 * HOUR, disturb)
        assert world.state.trial_count >= 1


def check(world):
    state = world.state
    assert sum(each is not None for each in (state.trial, state.promotion, state.soak)) <= 1
    now = assignment(world.policy, state)
    assert is_thawed(world) or state.trial is not None or state.promotion is not None
    if state.trial is not None:
        assert now.base == state.trial.baseline
        assert len(state.trial.candidate.differing_knobs(state.trial.baseline)) == 1
    if state.soak is not None or state.promotion is not None:
        assert (state.last_good or world.policy.requested) is not None
    assert len(state.history) <= 20 and len(state.quarantine) <= 32 and len(state.best_known) <= 32
    assert len(msgspec.json.encode(state)) < 60_000
    for event in world.decisions[-1].events:
        if event.reason in ("Promoted", "RolledBack"):
            assert not world.problem or "restarted" in event.message
        assert len(event.message) <= 1000
        msgspec.json.encode(event)


def test_decide_is_idempotent():
    world = until(World(auto(requested=LONE), hill), in_trial)
    evidence = world.evidence()
    one = decide(world.policy, world.state, evidence, world.now)
    assert decide(world.policy, world.state, evidence, world.now) == one


def test_an_objective_without_requests_is_not_a_breach():
    policy = auto(requested=USUAL, objectives={"Base": Objective(0.2, 0.95)})
    world = World(policy, flat(0.5)).run(HOUR)
    assert world.state.trial_count == 0
