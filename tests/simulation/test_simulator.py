"""The simulated pipeline does what the real one does, and what queueing theory says it must."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest

from simulator import kernel, layout
from simulator.scenario import TASK_TYPES, Costs, Decoder, Failure, Scenario, line
from simulator.world import World, clock, good
from syrinx_operator.resource.knobs import Setting
from syrinx_operator.resource.spec import CaptureShape
from syrinx_operator.tuner.policy import Objective
from syrinx_stages.contract.admission import late_margin
from syrinx_stages.contract.settings import CodecSettings
from syrinx_stages.contract.stages import Stage
from syrinx_stages.scheduling import codec as real_codec
from syrinx_stages.scheduling import talker as real_talker
from syrinx_stages.scheduling.codec_rows import Row, Rows

NOTHING = Decoder(1e-6, 0.0, 0.0)
QUICK = Costs(
    step=line(0.004, 0.0003),
    eager=Decoder(0.003, 0.0003, 0.0003),
    captured=Decoder(0.001, 0.0003, 0.0003),
    prefill={"CustomVoice": 0.01, "Base": 0.03},
    prepare={"Base": 0.05},
    reference_frames={"Base": 40},
)
LATER = 1e6
"""Codes that arrive then have not stalled and hold the first audio back only by a margin, which the simulator lacks."""
SETTING = Setting(talker_max_num_seqs=16, codec_max_num_seqs=8, chunk_ramp=(2, 2, 4, 8, 12))
SCENARIO = Scenario(
    name="a quiet afternoon",
    seconds=120.0,
    load=((60.0, {"CustomVoice": 4.0}), (120.0, {"CustomVoice": 1.0, "Base": 2.0})),
    objectives={"CustomVoice": Objective(0.1, 0.95), "Base": Objective(0.3, 0.95)},
    initial=SETTING,
    costs=QUICK,
)


def changed(scenario: Scenario, **changes: object) -> Scenario:
    return msgspec.structs.replace(scenario, **changes)


def with_costs(scenario: Scenario, **changes: object) -> Scenario:
    return changed(scenario, costs=msgspec.structs.replace(scenario.costs, **changes))


def ran(scenario: Scenario, beyond: float = 60.0) -> World:
    """Runs a scenario until all streams have ended."""
    world = World(scenario)
    world.run(scenario.seconds + beyond)
    return world


class TestSchedules:
    """The simulated schedulers make the same decisions as those of the stages."""

    def test_talker_steps_match_the_real_scheduler(self):
        draw = random.Random(0)
        for _ in range(100):
            world = World(changed(SCENARIO, load=((120.0, {"CustomVoice": 1.0}),)))
            now, memory = 50.0, world._memory
            talker = memory.replicas[0]
            rows = []
            talker["rows"] = limit = draw.randint(1, 10)
            for r in range(draw.randint(1, 16)):
                begun = draw.random() < 0.8
                row = real_talker.Row(id=f"{r:03}", accepted_at=draw.uniform(0, now), live=True, last_feedback_at=now)
                if begun:
                    row.produced = draw.randint(1, 200)
                    row.first_frame_at = draw.uniform(row.accepted_at, now)
                    row.delivered = draw.randint(0, row.produced)
                    row.first_delivered_at = draw.uniform(row.first_frame_at, now) if row.delivered else None
                rows.append(row)
                request = memory.requests[r]
                request["accepted"], request["state"], request["frames"] = row.accepted_at, kernel.ROW, 400
                request["produced"], request["delivered"] = row.produced, row.delivered
                request["first_frame"] = layout.NEVER if row.first_frame_at is None else row.first_frame_at
                reported = layout.NEVER if row.first_delivered_at is None else row.first_delivered_at
                request["first_reported_at"] = reported
                memory.slots[0, r] = r
            talker["held"] = len(rows)
            talker["polling"] = False
            talker["mean_seconds"] = step = draw.choice([np.inf, draw.uniform(0.001, 0.04)])
            found = real_talker.schedule(rows, now, limit, 8.0, margin=late_margin(step))
            assert kernel.can_admit(world._state, 0, now) == (not found.late)
            kernel.talker_step(world._state, 0, now)
            chosen = memory.batch[0, : talker["batch"]] if talker["busy"] else []
            assert {f"{r:03}" for r in chosen} == set(found.ids)
            if not found.ids:
                # The simulated listeners are never abandoned.
                wakes = found.wake_at or np.inf
                assert talker["wake"] == pytest.approx(wakes if wakes < now + 30 else np.inf)

    def test_codec_calls_match_the_real_scheduler(self, monkeypatch):
        monkeypatch.setattr(real_codec, "START_MARGIN_SECONDS", 0.0)
        draw = random.Random(0)
        for _ in range(150):
            pairs = tuple({(draw.randint(1, 8), draw.choice((1, 2, 4, 8, 12, 16))) for _ in range(draw.randint(0, 6))})
            setting = Setting(
                talker_max_num_seqs=8,
                codec_max_num_seqs=draw.randint(1, 8),
                chunk_ramp=draw.choice(((1, 2, 4, 8, 12), (2, 2, 3, 4, 5, 7, 9, 12), (4, 4, 8, 12), (25,))),
                capture_pairs=tuple(CaptureShape(rows=rows, frames=frames) for rows, frames in pairs),
            )
            world = World(changed(SCENARIO, load=((120.0, {"CustomVoice": 1.0}),), initial=setting))
            now, memory = 50.0, world._memory
            rows = []
            for r in range(draw.randint(1, 16)):
                row = Row(
                    id=f"{r:03}", accepted_at=draw.uniform(0, now), live=True, first_codes_at=LATER, codes_at=LATER
                )
                row.context = draw.choice((0, 0, 0, 30))
                row.pending = draw.randint(row.context, 40) if draw.random() < 0.7 else row.context + 1
                row.segment_ended = draw.random() < 0.2 and row.pending > 0
                if draw.random() < 0.7:
                    row.decoded = draw.randint(1, 60)
                    row.first_audio_at = now - row.decoded * 0.08 + draw.uniform(0, 3)
                rows.append(row)
                request = memory.requests[r]
                request["accepted"], request["fed"], request["replay_frames"] = (
                    row.accepted_at,
                    row.pending,
                    row.context,
                )
                request["codes_complete"], request["emitted"] = row.segment_ended, row.decoded
                request["first_audio"] = layout.NEVER if row.first_audio_at is None else row.first_audio_at
                memory.slots[1, r] = r
            memory.replicas[1]["held"] = len(rows)
            kernel.codec_turn(world._state, 1, now)
            settings = CodecSettings(
                max_num_seqs=setting.codec_max_num_seqs, chunk_ramp=setting.chunk_ramp, capture_pairs=pairs
            )
            plan = real_codec.schedule(Rows(rows), now, settings, pairs, 0)
            codec = memory.replicas[1]
            assert bool(codec["busy"]) == (plan.call is not None)
            if plan.call is None:
                waits = plan.wake_at is not None and plan.wake_at < LATER
                assert codec["wake"] == pytest.approx(plan.wake_at if waits else np.inf)
                continue
            assert {f"{r:03}" for r in memory.batch[1, : codec["batch"]]} == set(plan.call.ids)
            assert {codec["batch_frames"]} == set(plan.call.frames)
            assert layout.RESULTS[codec["batch_result"]] == plan.call.result
            rows_computed, frames_computed = plan.call.shape
            cost = QUICK.eager if plan.call.result == "eager" else QUICK.captured
            seconds = cost.base + cost.per_row * rows_computed + cost.per_frame * rows_computed * frames_computed
            assert codec["batch_seconds"] == pytest.approx(seconds, rel=0.6)


class TestEvidence:
    def test_counts_match_the_outcomes(self):
        world = ran(SCENARIO)
        evidence, outcomes = world.evidence(clock(0.0), clock(180.0)), world.outcomes()
        assert not evidence.problem
        assert evidence.of_arm().accepted == len(outcomes.ttfa)
        for name, served in evidence.streams.items():
            mine = outcomes.task == TASK_TYPES.index(name)
            assert served.requests == mine.sum()
            assert served.underruns == outcomes.underrun[mine].sum()
            for edge in (0.05, 0.1, 1.0):
                assert served.ttfa_histogram[edge] == (outcomes.ttfa[mine] <= edge).sum()
            objective = SCENARIO.objectives[name].seconds
            assert served.within_objective == (outcomes.ttfa[mine] <= objective).sum()
            known = evidence.outcomes[name, ""]
            assert known.well == good(outcomes, SCENARIO)[mine].sum()
            assert known.accepted == known.well + known.bad


class TestReplicas:
    def test_a_killed_replica_loses_no_stream(self):
        failures = (
            Failure(stage=Stage.TALKER, replica=0, at=30.0, down=20.0),
            Failure(stage=Stage.CODEC, replica=1, at=70.0, down=1.0),
            Failure(stage=Stage.CODEC, replica=0, at=90.0, down=30.0),
        )
        quiet = changed(SCENARIO, talkers=2, codecs=2, lead_limit=1.0)
        world = ran(changed(quiet, failures=failures))
        outcomes = world.outcomes()
        assert np.isfinite(outcomes.finished).all()
        assert not outcomes.refused.any()
        assert outcomes.underrun.sum() > ran(quiet).outcomes().underrun.sum()
        evidence = world.evidence(clock(0.0), clock(180.0))
        assert [worker.restarts for worker in evidence.replicas_of(Stage.TALKER)] == [1, 0]
        assert [worker.restarts for worker in evidence.replicas_of(Stage.CODEC)] == [1, 1]


class TestScaling:
    SERVICE = changed(SCENARIO, load=((1e9, {"CustomVoice": 6.0}),), talkers=3, codecs=3, seconds=180.0)

    def test_a_replica_serves_once_it_has_started(self):
        world = World(self.SERVICE)
        world.scale({Stage.TALKER: 1, Stage.CODEC: 2}, 0.0)
        world.run(30.0)
        world.scale({Stage.TALKER: 2, Stage.CODEC: 2}, 40.0)
        world.run(60.0)
        (started,) = (each for each in world.evidence(clock(0.0), clock(60.0)).replicas if each.name == "talker-1")
        assert not started.ready and world.evidence(clock(0.0), clock(60.0)).disruption
        world.run(180.0)
        talkers = world.outcomes().talker
        assert world.outcomes().accepted[talkers == 1].min() > 69.0
        assert (talkers == 1).sum() > 50 and not (talkers == 2).any()

    def test_a_replica_that_ends_finishes_its_requests(self):
        world, kept = World(self.SERVICE), World(self.SERVICE)
        for each in (world, kept):
            each.run(60.0)
        held = world.outcomes()
        drained = (held.talker == 1) & np.isnan(held.finished)
        assert drained.any()
        world.scale({Stage.TALKER: 1, Stage.CODEC: 1}, 0.0)
        for each in (world, kept):
            each.run(180.0)
        after = world.outcomes()[: len(held)]
        assert not np.isnan(after.finished[drained]).any()
        assert after.talker[drained].tolist() == [1] * int(drained.sum())
        later = world.outcomes()[len(held) :]
        assert set(later.talker[later.talker >= 0]) == {0}
        assert good(world.outcomes(), self.SERVICE).mean() > 0.99 * good(kept.outcomes(), self.SERVICE).mean()
