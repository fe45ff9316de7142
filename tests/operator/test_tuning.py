"""Tuning: settings follow from the recorded state, whichever operator wrote it, and overrides expire."""

from __future__ import annotations

import json
from functools import partial

import msgspec
import pytest

from support.listeners import Listeners
from support.operator import Harness
from support.tuning import trial
from support.virtual import now
from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.resource.state.tuning_status import State
from syrinx_stages.contract.settings import DEFAULT_RAMP

pytestmark = pytest.mark.virtual

RECORD = "demo-tuning"
TALKER = "demo-talker-0"
CODECS = ("demo-codec-0", "demo-codec-1")
SPEC = {"codec": {"replicas": 2}, "tuning": {"mode": "Auto", "intervalSeconds": 60}}
ASKED = Setting(talker_max_num_seqs=8, codec_max_num_seqs=8, chunk_ramp=DEFAULT_RAMP)
CHOSEN = ASKED.with_value(Knob.CODEC_ROWS, 16)
TRIED = ASKED.with_value(Knob.CODEC_ROWS, 32).with_value(Knob.TALKER_ROWS, 4)


def tuner_state(**fields) -> State:
    found = {
        "mode": "Auto",
        "phase": "Watching",
        "requested": ASKED,
        "chosen": CHOSEN,
        "trial_count": 3,
    }
    return State(**{**found, **fields})


def in_trial(*, counting: bool = False) -> State:
    """Returns a state in which all talkers and codecs run TRIED for a while; `counting` requests, already."""
    names = (TALKER, *CODECS)
    running = trial(TRIED, CHOSEN, now(), replicas=names, period_seconds=60.0, first_label=9)
    if counting:
        running = msgspec.structs.replace(running, confirmed_time=now(), counting_time=now(), pair_time=now())
    return tuner_state(phase="Trial", trial=running)


def recorded(harness: Harness) -> State:
    return msgspec.json.decode(harness.cluster.get("configmap", RECORD)["data"]["tuning.json"], type=State)


def tuning(harness: Harness) -> dict:
    found: dict = harness.cluster.get("ttspipeline", "demo")["status"]["tuning"]
    return found


def rows(harness: Harness, *, base: bool = False) -> list[int]:
    """Returns `max_num_seqs` of each codec, in force or of its base settings."""
    reports = [harness.cluster.kubelet.admins.report(pod) for pod in CODECS]
    return [report["base" if base else "settings"]["max_num_seqs"] for report in reports]


def gateway(harness: Harness) -> str:
    (pod,) = harness.cluster.list("pod", "syrinx.dev/component=gateway")
    name: str = pod["metadata"]["name"]
    return name


def label(harness: Harness) -> str | None:
    """Returns the label that the gateway gives to requests."""
    found: str | None = harness.cluster.kubelet.admins.report(gateway(harness))["settings"].get("arm")
    return found


def overridden(harness: Harness) -> list[str]:
    """Returns the replicas with overrides."""
    admins = harness.cluster.kubelet.admins
    return [pod for pod in (gateway(harness), TALKER, *CODECS) if "seconds" in admins.report(pod)]


def configured(harness: Harness) -> int:
    """Returns the settings with which a new codec starts."""
    data = harness.cluster.get("configmap", "demo-codec")["data"]
    found: int = json.loads(data["settings.json"])["settings"]["max_num_seqs"]
    return found


@pytest.fixture
async def pipeline(harness: Harness) -> Harness:
    """A ready pipeline whose operator has stopped."""
    harness.apply(**SPEC)
    async with harness.operator() as operator:
        await harness.settled()
        await harness.wait(lambda: len(harness.cluster.list("pod", "syrinx.dev/component=codec")) == 2, "two codecs")
        await harness.quiet(operator)
    return harness


async def test_an_operator_continues_the_trial_of_a_killed_one(pipeline):
    harness = pipeline
    harness.write_state(in_trial(counting=True))
    arm = f"{9 + recorded(harness).trial.period:x}"
    for _ in range(2):
        before = len(harness.cluster.kubelet.admins.puts)
        async with harness.operator() as operator:
            await harness.wait(lambda: rows(harness) == [32, 32], "all codecs run the candidate")
            await harness.wait(lambda: label(harness) == arm, "the gateway labels its requests")
            assert harness.cluster.kubelet.admins.report(TALKER)["settings"]["max_num_seqs"] == 4
            assert rows(harness, base=True) == [16, 16] and configured(harness) == 16
            for pod in (gateway(harness), TALKER, *CODECS):
                await harness.wait(partial(_renewed, harness, pod, before), f"the overrides of {pod} are renewed")
            await operator.kill()
        assert overridden(harness) == [gateway(harness), TALKER, *CODECS], "until their time is over"


def _renewed(harness: Harness, pod: str, before: int) -> bool:
    """Returns whether overrides were sent more than once after the first `before` settings."""
    puts = harness.cluster.kubelet.admins.puts[before:]
    return sum(name == pod and put.get("seconds") == 60 for name, put in puts) > 1


@pytest.mark.parametrize(
    ("edit", "asked"),
    [
        ({"tuning": {"mode": "Off"}}, 8),
        ({"tuning": {"mode": "Auto", "paused": True}}, 16),
        ({"codec": {"replicas": 2, "maxNumSeqs": 5}}, 5),
    ],
    ids=["Off", "paused", "a knob"],
)
async def test_an_edit_ends_a_trial_immediately(pipeline, edit, asked):
    harness = pipeline
    harness.write_state(in_trial(counting=True))
    async with harness.operator() as operator:
        await harness.wait(lambda: rows(harness) == [32, 32], "all codecs run the candidate")
        harness.apply(**{**SPEC, **edit})
        await harness.wait(
            lambda: rows(harness) == [asked, asked] and not overridden(harness), "what was tried is over"
        )
        await harness.wait(lambda: recorded(harness).trial is None, "the trial is over")
        await harness.quiet(operator)
        assert (rows(harness, base=True), configured(harness)) == ([asked, asked], asked)
        assert [record.verdict for record in recorded(harness).history] == ["Superseded"]
        assert len([message for message in harness.messages("Superseded") if "trial 3" in message]) == 1


async def test_the_chosen_setting_survives_a_lost_record(pipeline):
    harness = pipeline
    harness.write_state(tuner_state())
    async with harness.operator() as operator:
        await harness.wait(lambda: rows(harness) == [16, 16], "what was chosen is in force")
        await harness.quiet(operator)
    generation = harness.cluster.get("ttspipeline", "demo")["status"]["codec"]["settingsGeneration"]
    puts = len(harness.cluster.kubelet.admins.puts)
    harness.cluster.delete("configmap", RECORD)
    async with harness.operator() as operator:
        await operator.ready()
        await harness.wait(lambda: tuning(harness).get("chosen", {}).get("codecMaxNumSeqs") == 16, "it is remembered")
        await harness.quiet(operator)
    assert tuning(harness)["trialCount"] == 3
    assert recorded(harness).chosen == CHOSEN
    assert harness.cluster.get("ttspipeline", "demo")["status"]["codec"]["settingsGeneration"] == generation
    assert len(harness.cluster.kubelet.admins.puts) == puts, "nothing but the chosen setting was ever in force"
    (message,) = harness.messages("TuningStateLost")
    assert message.startswith("ConfigMap demo-tuning is missing")


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


def listeners(harness: Harness) -> None:
    """Simulates traffic of which a part is late while codecs have one row: too much to wait for a trial."""
    admins = harness.cluster.kubelet.admins
    admins.metrics = Listeners(CODECS, lambda pod: admins.report(pod)["settings"], rows=2, late=0.38).metrics


async def test_a_bad_setting_is_improved_under_load_while_the_operator_is_killed(harness):
    """Kills the operator while it watches the traffic, and while it watches the change that it has put in force."""
    seen: set[str] = set()
    listeners(harness)
    harness.apply(**FEW)
    operator = await harness.operator().__aenter__()
    try:
        await harness.settled()
        while "Soaking" not in seen:
            await harness.wait(lambda: tuning(harness)["phase"] not in seen | {"NoData"}, "another phase", 600)
            seen.add(tuning(harness)["phase"])
            await operator.kill()
            operator = await harness.operator().__aenter__()
        await harness.wait(
            lambda: rows(harness, base=True) == [2, 2] and not overridden(harness), "the setting is in force"
        )
        assert seen == {"Watching", "Soaking"} and configured(harness) == 2
        status = tuning(harness)
        assert status["lastGood"]["codecMaxNumSeqs"] == 1 and status["forecast"]["best"] > status["forecast"]["current"]
        soak = recorded(harness).soak
        assert soak.promised_bad is not None and soak.guard.expected_bad == pytest.approx(0.38, abs=0.1)
        assert [len(harness.messages(reason)) for reason in ("PutInForce", "TrialStarted")] == [1, 0]
        await harness.wait(lambda: harness.condition("TuningReady")["reason"] == "Soaking", "the condition says so")
    finally:
        await operator.stop()
