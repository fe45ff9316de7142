"""Tuning: settings follow from the status, whichever operator wrote it, and overrides expire."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import msgspec
import pytest

from support.listeners import Listeners
from support.operator import Harness
from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.resource.tuning_status import Period, Promotion, Soak, State, Trial
from syrinx_stages.contract.settings import DEFAULT_RAMP

pytestmark = pytest.mark.faults

RECORD = "demo-tuning"
CODECS = ("demo-codec-0", "demo-codec-1")
SPEC = {"codec": {"replicas": 2}, "tuning": {"mode": "Auto", "intervalSeconds": 60}}
ASKED = Setting(talker_max_num_seqs=8, codec_max_num_seqs=8, chunk_ramp=DEFAULT_RAMP)
CHOSEN = ASKED.with_value(Knob.CODEC_ROWS, 16)
TRIED = ASKED.with_value(Knob.CODEC_ROWS, 32)


def now() -> datetime:
    return datetime.now(UTC)


def trial() -> Trial:
    """Returns a trial of TRIED against CHOSEN on the second codec."""
    period = Period(
        index=0,
        start_time=now(),
        candidate_replicas=CODECS[1:],
        baseline_replicas=CODECS[:1],
        replicas=CODECS,
        restarts=(0, 0),
    )
    return Trial(
        id=3,
        knob=Knob.CODEC_ROWS,
        candidate=TRIED,
        baseline=CHOSEN,
        design="Parallel",
        rationale="the decoder waits",
        start_time=now(),
        period_seconds=60.0,
        period=period,
    )


def tuner_state(**fields) -> State:
    found = {
        "mode": "Auto",
        "phase": "Watching",
        "requested": ASKED,
        "chosen": CHOSEN,
        "last_good": CHOSEN,
        "trial_count": 3,
    }
    return State(**{**found, **fields})


PHASES = {
    "Trial": lambda: tuner_state(phase="Trial", trial=trial()),
    "Promoting": lambda: tuner_state(
        phase="Promoting", promotion=Promotion(id=3, setting=TRIED, replicas=CODECS[1:], last_step_time=now())
    ),
}
"""States in which the second codec has overrides (TRIED) and everything else CHOSEN."""


def write_state(harness: Harness, state: State) -> None:
    """Writes a tuner state to its record."""
    data = {"tuning.json": msgspec.json.encode(state).decode()}
    harness.cluster.patch("configmap", RECORD, {"data": data}, manager="syrinx-operator")


def recorded(harness: Harness) -> State:
    return msgspec.json.decode(harness.cluster.get("configmap", RECORD)["data"]["tuning.json"], type=State)


def tuning(harness: Harness) -> dict:
    found: dict = harness.cluster.get("ttspipeline", "demo")["status"]["tuning"]
    return found


def rows(harness: Harness, *, base: bool = False) -> list[int]:
    """Returns `max_num_seqs` of each codec, in force or of its base settings."""
    reports = [harness.cluster.kubelet.admins.report(pod) for pod in CODECS]
    return [report["base" if base else "settings"]["max_num_seqs"] for report in reports]


def overridden(harness: Harness) -> list[str]:
    """Returns the codecs with overrides."""
    return [pod for pod in CODECS if "seconds" in harness.cluster.kubelet.admins.report(pod)]


def configured(harness: Harness) -> int:
    """Returns the settings with which a new codec starts."""
    data = harness.cluster.get("configmap", "demo-codec")["data"]
    found: int = json.loads(data["settings.json"])["settings"]["max_num_seqs"]
    return found


def messages(harness: Harness, reason: str) -> list[str]:
    return [event["message"] for event in harness.events() if event["reason"] == reason]


@pytest.fixture
async def pipeline(harness: Harness) -> Harness:
    """A ready pipeline whose operator has stopped."""
    harness.apply(**SPEC)
    async with harness.operator() as operator:
        await harness.settled()
        await harness.wait(lambda: len(harness.cluster.list("pod", "syrinx.dev/component=codec")) == 2, "two codecs")
        await harness.quiet(operator)
    return harness


@pytest.mark.parametrize("phase", PHASES)
async def test_an_operator_continues_the_state_of_a_killed_one(pipeline, phase):
    harness = pipeline
    write_state(harness, PHASES[phase]())
    for _ in range(2):
        before = len(harness.cluster.kubelet.admins.puts)
        async with harness.operator() as operator:
            await harness.wait(lambda: rows(harness) == [16, 32], "one codec runs the candidate")
            assert rows(harness, base=True) == [16, 16] and configured(harness) == 16
            await harness.wait(partial(_renewed, harness, before), "it is renewed")
            await operator.kill()
        assert overridden(harness) == [CODECS[1]], "until its time is over"
        assert "demo-codec-0" not in {pod for pod, put in harness.cluster.kubelet.admins.puts if "seconds" in put}


def _renewed(harness: Harness, before: int) -> bool:
    """Waits until overrides were sent more than once after the first `count`."""
    puts = harness.cluster.kubelet.admins.puts[before:]
    return sum(pod == CODECS[1] and put.get("seconds") == 60 for pod, put in puts) > 1


@pytest.mark.parametrize(
    ("edit", "asked"),
    [
        ({"tuning": {"mode": "Off"}}, 8),
        ({"tuning": {"mode": "Recommend"}}, 8),
        ({"tuning": {"mode": "Auto", "paused": True}}, 16),
        ({"codec": {"replicas": 2, "maxNumSeqs": 5}}, 5),
        ({"tuning": {"mode": "Auto", "bounds": {"codecMaxNumSeqs": {"max": 8}}}}, 8),
    ],
    ids=["Off", "Recommend", "paused", "a knob", "bounds"],
)
async def test_an_edit_ends_a_trial_immediately(pipeline, edit, asked):
    harness = pipeline
    write_state(harness, PHASES["Trial"]())
    async with harness.operator() as operator:
        await harness.wait(lambda: rows(harness) == [16, 32], "one codec runs the candidate")
        harness.apply(**{**SPEC, **edit})
        await harness.wait(
            lambda: rows(harness) == [asked, asked] and not overridden(harness), "what was tried is over"
        )
        await harness.wait(lambda: recorded(harness).trial is None, "the trial is over")
        await harness.quiet(operator)
        assert (rows(harness, base=True), configured(harness)) == ([asked, asked], asked)
        assert [record.verdict for record in recorded(harness).history] == ["Superseded"]
        assert len([message for message in messages(harness, "Superseded") if "trial 3" in message]) == 1


async def test_leftover_overrides_are_ended_by_the_next_operator(pipeline):
    """An operator was killed between its verdict and applying it."""
    harness = pipeline
    write_state(harness, PHASES["Trial"]())
    async with harness.operator() as operator:
        await harness.wait(lambda: rows(harness) == [16, 32], "one codec runs the candidate")
        await operator.kill()
    write_state(harness, tuner_state())
    async with harness.operator():
        await harness.wait(lambda: rows(harness) == [16, 16] and not overridden(harness), "it is over")


async def test_a_restarted_codec_ends_its_trial(pipeline):
    harness = pipeline
    write_state(harness, PHASES["Trial"]())
    async with harness.operator() as operator:
        await harness.wait(lambda: rows(harness) == [16, 32], "one codec runs the candidate")
        harness.cluster.kubelet.restart(CODECS[1])
        await harness.wait(lambda: recorded(harness).trial is None, "the trial is over")
        await harness.wait(lambda: rows(harness) == [16, 16] and not overridden(harness), "it has the base")
        assert [record.verdict for record in recorded(harness).history] == ["RolledBack"]
        (message,) = messages(harness, "RolledBack")
        assert "demo-codec-1 restarted under the candidate" in message
        await operator.until(lambda: _counted(operator.get("/metrics").text, "RolledBack"), "it is counted")
        audit = [json.loads(line[line.index("{") :]) for line in operator.output.splitlines() if '"RolledBack"' in line]
        assert [(each["pipeline"], each["decision"]) for each in audit] == [("default/demo", 3)]


def _counted(metrics: str, verdict: str) -> bool:
    line = f'syrinx_tuning_decisions_total{{pipeline="demo",pipeline_namespace="default",verdict="{verdict}"}} 1.0'
    return line in metrics


async def test_an_unchanged_state_causes_no_writes(pipeline):
    harness = pipeline
    write_state(harness, tuner_state(soak=Soak(id=3, start_time=now(), end_time=now(), expected_good=0.9)))
    async with harness.operator() as operator:
        await harness.wait(lambda: rows(harness) == [16, 16], "what was chosen is in force")
        await harness.quiet(operator)
        before = len(harness.cluster.kubelet.admins.puts)
        await harness.quiet(operator)
        assert len(harness.cluster.kubelet.admins.puts) == before


async def loses(harness: Harness, loss: Callable[[], object]) -> None:
    """Loses something while no operator runs. Nothing but the chosen setting is ever in force."""
    write_state(harness, tuner_state())
    async with harness.operator() as operator:
        await harness.wait(lambda: rows(harness) == [16, 16], "what was chosen is in force")
        await harness.quiet(operator)
    generation = harness.cluster.get("ttspipeline", "demo")["status"]["codec"]["settingsGeneration"]
    puts = len(harness.cluster.kubelet.admins.puts)
    loss()
    async with harness.operator() as operator:
        await operator.ready()
        await harness.wait(lambda: tuning(harness).get("chosen", {}).get("codecMaxNumSeqs") == 16, "it is remembered")
        await harness.quiet(operator)
    assert tuning(harness)["trialCount"] == 3 and tuning(harness)["lastGood"]["codecMaxNumSeqs"] == 16
    assert recorded(harness).chosen == CHOSEN
    assert harness.cluster.get("ttspipeline", "demo")["status"]["codec"]["settingsGeneration"] == generation
    assert len(harness.cluster.kubelet.admins.puts) == puts


async def test_the_chosen_setting_survives_a_lost_status(pipeline):
    await loses(pipeline, lambda: pipeline.cluster.patch("ttspipeline", "demo", {"status": None}, subresource="status"))
    assert messages(pipeline, "TuningStateLost") == []


async def test_the_chosen_setting_survives_a_lost_record(pipeline):
    await loses(pipeline, lambda: pipeline.cluster.delete("configmap", RECORD))
    (message,) = messages(pipeline, "TuningStateLost")
    assert message.startswith("ConfigMap demo-tuning is missing")


async def test_the_chosen_setting_survives_a_damaged_record(pipeline):
    await loses(pipeline, lambda: pipeline.cluster.patch("configmap", RECORD, {"data": {"tuning.json": "{"}}))
    (message,) = messages(pipeline, "TuningStateLost")
    assert message.startswith("ConfigMap demo-tuning is not readable")


async def test_the_chosen_setting_and_the_trial_of_an_earlier_version_are_taken_over(pipeline):
    """Earlier versions kept the whole state in the status."""
    harness = pipeline
    state = json.loads(msgspec.json.encode(PHASES["Trial"]()))
    harness.cluster.delete("configmap", RECORD)
    for written in (None, state):
        harness.cluster.patch("ttspipeline", "demo", {"status": {"tuning": written}}, subresource="status")
    assert tuning(harness)["trial"]["period"], "the definition keeps fields that only earlier versions write"
    async with harness.operator():
        await harness.wait(lambda: rows(harness) == [16, 32], "one codec runs the candidate")
        assert (recorded(harness).chosen, recorded(harness).trial_count) == (CHOSEN, 3)
        await harness.wait(lambda: "period" not in tuning(harness).get("trial", {}), "it has left the status")
    assert messages(harness, "TuningStateLost") == []


async def test_the_record_of_another_owner_is_not_touched_and_nothing_is_tried(pipeline):
    harness = pipeline
    foreign = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": RECORD}, "data": {"mine": "x"}}
    harness.cluster.delete("configmap", RECORD)
    harness.cluster.create(foreign)
    async with harness.operator() as operator:
        await harness.wait(lambda: harness.condition("Degraded")["reason"] == "NameConflict", "it is reported")
        await harness.quiet(operator)
        assert harness.cluster.get("configmap", RECORD)["data"] == {"mine": "x"}
        harness.cluster.delete("configmap", RECORD)
        await harness.wait(lambda: recorded(harness).requested == ASKED, "the state is recorded again")


async def test_a_deleted_pipelines_metrics_are_removed(pipeline):
    harness = pipeline
    async with harness.operator() as operator:
        await operator.until(lambda: "syrinx_tuning_knob{" in operator.get("/metrics").text, "they are there")
        assert 'pipeline="demo",pipeline_namespace="default"' in await operator.metrics()
        harness.cluster.delete("ttspipeline", "demo")
        await operator.until(
            lambda: "syrinx_tuning_knob{" not in operator.get("/metrics").text, "the series are removed"
        )


FEW = {
    "codec": {"replicas": 2, "maxNumSeqs": 1},
    "slo": {"ttfa": [{"taskType": "CustomVoice", "ttfaP95Ms": 300}]},
    "tuning": {
        "mode": "Auto",
        "intervalSeconds": 5,
        "bounds": {
            "talkerMaxNumSeqs": {"min": 8, "max": 8},
            "codecMaxNumSeqs": {"min": 1, "max": 2},
            "chunkRamps": [],
            "capturePairs": {"max": 0},
        },
    },
}
"""A bad initial setting with one possible improvement."""


def listeners(harness: Harness, *, rows: int) -> None:
    """Simulates traffic whose latency depends on the codecs' rows."""
    admins = harness.cluster.kubelet.admins
    load = Listeners(CODECS, lambda pod: admins.report(pod)["settings"], per_second=30.0, rows=rows)
    admins.metrics = load.metrics


async def test_a_bad_setting_is_improved_under_load_while_the_operator_is_killed(harness):
    """Kills the operator during watching, trial and soak."""
    seen: set[str] = set()
    listeners(harness, rows=2)
    harness.apply(**FEW)
    operator = await harness.operator().__aenter__()
    try:
        await harness.settled()
        while "Soaking" not in seen:
            await harness.wait(lambda: tuning(harness)["phase"] not in seen | {"NoData"}, "another phase", 480)
            seen.add(tuning(harness)["phase"])
            await operator.kill()
            operator = await harness.operator().__aenter__()
        await harness.wait(
            lambda: rows(harness, base=True) == [2, 2] and not overridden(harness), "the setting is promoted"
        )
        await harness.wait(lambda: tuning(harness)["phase"] == "Watching", "the soak is over", 180)
        assert harness.cluster.get("ttspipeline", "demo")["status"]["tuning"]["lastGood"]["codecMaxNumSeqs"] == 2
        assert configured(harness) == 2
        assert [record.verdict for record in recorded(harness).history] == ["Promoted"]
        assert [len(messages(harness, reason)) for reason in ("TrialStarted", "Promoted", "Settled")] == [1, 1, 1]
        await harness.wait(lambda: harness.condition("TuningReady")["reason"] == "Watching", "the condition says so")
    finally:
        await operator.stop()


async def test_mode_recommend_only_reports_candidates(harness):
    listeners(harness, rows=2)
    harness.apply(**{**FEW, "tuning": {**FEW["tuning"], "mode": "Recommend"}})
    async with harness.operator():
        await harness.settled()
        await harness.wait(lambda: "recommendation" in tuning(harness), "a recommendation", 90)
        assert tuning(harness)["recommendation"]["setting"]["codecMaxNumSeqs"] == 2
        assert (rows(harness), configured(harness)) == ([1, 1], 1)
        assert not [put for _, put in harness.cluster.kubelet.admins.puts if put["settings"].get("max_num_seqs") == 2]
        assert len(messages(harness, "Recommended")) == 1
