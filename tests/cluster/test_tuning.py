"""Tuning of a pipeline under load, with failures of the operator.

One pipeline with bad settings and one load for the whole file; the tests follow two trials, in order.
"""

import asyncio
import base64
import json
from typing import NamedTuple

import pytest

from cluster.client import wait_until
from cluster.load import Load, measure
from cluster.pipeline import ANYWHERE, Pipeline, running

PIPELINE = "tuned"
SHARE_OF_CAPACITY = 0.8
"""Share of the default settings' throughput, more than one row per step can serve."""
BADLY_SET = {
    "talker": {"maxNumSeqs": 1},
    "codec": {"maxNumSeqs": 1},
    "slo": {"ttfa": [{"taskType": "CustomVoice", "ttfaP95Ms": 500}]},
    "tuning": {"mode": "Auto", "intervalSeconds": 5},
}
VERDICTS = {"Promoted", "RolledBack", "Inconclusive"}
STAGES = ("talker", "codec")
LIMIT_SECONDS = 60.0
"""Seconds that overrides stay in force unless they are renewed."""
CONVERGES = 60.0
TRIAL_STARTS = 180.0
TRIAL_ENDS = 420.0


class Tuned(NamedTuple):
    pipeline: Pipeline
    load: Load


@pytest.fixture(scope="module")
def tuned(installed):
    """A pipeline with bad settings under load."""
    spec = {"tuning": {"mode": "Off"}, "monitoring": {"allowFrom": [ANYWHERE]}}
    with running(installed, PIPELINE, **spec) as pipeline:
        audio, capacity = asyncio.run(measure(installed.cluster, PIPELINE))
        print(f"\n{capacity:.2f} requests a second untuned")
        pipeline.edit(BADLY_SET)
        with Load(installed.cluster, PIPELINE, SHARE_OF_CAPACITY * capacity, audio) as load:
            yield Tuned(pipeline, load)


def tuning(tuned):
    """Returns the tuner's state."""
    found = tuned.pipeline.cluster.get("ConfigMap", f"{PIPELINE}-tuning")
    return json.loads(found["data"]["tuning.json"]) if found else {}


def report(tuned, stage):
    """Returns what a stage's only replica reports of its settings."""
    cluster = tuned.pipeline.cluster
    token = base64.b64decode(cluster.get("Secret", f"{PIPELINE}-stages")["data"]["token"]).decode()
    path = cluster.path("Pod", f"{PIPELINE}-{stage}-0:9091", "proxy") + f"/settings/{stage}"
    return cluster.call("GET", path, headers={"X-Syrinx-Token": token}).json()


def configured(tuned, stage):
    """Returns the settings with which a new replica starts."""
    data = tuned.pipeline.cluster.get("ConfigMap", f"{PIPELINE}-{stage}")["data"]
    return json.loads(data["settings.json"])["settings"]


def trial_events(tuned, reason, trial):
    """Returns the Events of a trial."""
    events = [each for each in tuned.pipeline.cluster.list("Event") if each["involvedObject"].get("name") == PIPELINE]
    return [each for each in events if each["reason"] == reason and f"trial {trial}," in each["message"]]


def tried(tuned):
    """Waits for a trial; returns it with the settings report of the stage that runs its candidate."""

    def found():
        trial = tuning(tuned).get("trial")
        if trial is None or not trial["period"].get("allReplicas"):
            return None
        seen = report(tuned, trial["knob"].split(".")[0])
        return (trial, seen) if "seconds" in seen else None

    return wait_until("a candidate to be in force", TRIAL_STARTS, found)


def runs_the_spec(tuned):
    """Returns whether every stage runs the spec's settings without overrides."""
    reports = [report(tuned, stage) for stage in STAGES]
    return all("seconds" not in each and each["settings"] == each["base"] for each in reports) and all(
        each["settings"]["max_num_seqs"] == 1 for each in reports
    )


def pods(tuned):
    """Returns UIDs and restarts by pod name."""
    return {
        pod["metadata"]["name"]: (pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"])
        for pod in tuned.pipeline.cluster.list("Pod", f"syrinx.dev/pipeline={PIPELINE}")
    }


def test_a_trials_settings_are_overrides_that_expire(tuned):
    trial, seen = tried(tuned)
    stage = trial["knob"].split(".")[0]
    assert trial["design"] == "Switchback", "there is one replica"
    assert 0 < seen["seconds"] <= LIMIT_SECONDS
    assert seen["settings"] != seen["base"] == configured(tuned, stage)
    assert seen["base"]["max_num_seqs"] == 1
    body = tuned.pipeline.cluster.get("TTSPipeline", PIPELINE)
    assert seen["generation"] == body["status"][stage]["settingsGeneration"]
    assert len(trial_events(tuned, "TrialStarted", trial["id"])) == 1


def test_switching_off_tuning_during_a_trial_ends_its_overrides(tuned):
    before = pods(tuned)
    trial, _ = tried(tuned)
    tuned.pipeline.edit({"tuning": {"mode": "Off"}})
    wait_until("the trial to end", CONVERGES, lambda: runs_the_spec(tuned))
    wait_until("the trial to be over", CONVERGES, lambda: tuning(tuned)["phase"] == "Off")
    left = tuning(tuned)
    assert not {"trial", "promotion", "soak", "chosen", "recommendation"} & set(left)
    assert (left["history"][-1]["id"], left["history"][-1]["verdict"]) == (trial["id"], "Superseded")
    assert len(trial_events(tuned, "Superseded", trial["id"])) == 1
    assert pods(tuned) == before


def test_a_trial_survives_the_operator_but_its_overrides_expire(tuned):
    pipeline, before = tuned.pipeline, pods(tuned)
    pipeline.edit({"tuning": {"mode": "Auto"}})
    tried(tuned)
    pipeline.installed.operator.kill()
    left = tuning(tuned)
    wait_until("the overrides to expire", LIMIT_SECONDS + CONVERGES, lambda: runs_the_spec(tuned))
    assert tuning(tuned) == left, "without an operator"
    pipeline.installed.operator.start()

    def over():
        return [each for each in tuning(tuned).get("history", []) if each["id"] == left["trial"]["id"]]

    def goes_on():
        return over() or tuning(tuned)["trial"]["period"] != left["trial"]["period"]

    wait_until("the trial to go on or to end", CONVERGES, goes_on)
    (record,) = wait_until("a verdict", TRIAL_ENDS, over)
    assert record["verdict"] in VERDICTS and record["reason"]
    assert len(trial_events(tuned, record["verdict"], record["id"])) == 1
    assert len(trial_events(tuned, "TrialStarted", record["id"])) == 1
    assert pods(tuned) == before
    print(f"\n{record}")


def test_with_tuning_off_the_specs_settings_are_in_force(tuned):
    tuned.pipeline.edit({"tuning": {"mode": "Off"}})
    wait_until("the spec's settings", CONVERGES, lambda: tuning(tuned)["phase"] == "Off" and runs_the_spec(tuned))
    assert [configured(tuned, stage)["max_num_seqs"] for stage in STAGES] == [1, 1]


def test_no_stream_failed_and_none_was_changed(tuned):
    assert not tuned.load.errors
    assert len(tuned.load.matches) >= 5 and all(tuned.load.matches)
    served = [outcome for outcome in tuned.load.outcomes if outcome.error is None]
    print(f"\n{len(served)} of {len(tuned.load.outcomes)} were served, {len(tuned.load.matches)} compared")
    assert served
