"""The operator tunes a pipeline while people listen: what it tries, who may die meanwhile, and what is left of it.

One badly set pipeline and one crowd for the whole file; the tests follow them through two trials, in order.
"""

import asyncio
import json
from typing import NamedTuple

import pytest

from cluster.client import wait_until
from cluster.crowd import Crowd, measure
from cluster.installation import ANYWHERE, Installation

PIPELINE = "tuned"
SHARE_OF_CAPACITY = 0.8
"""Of what the pipeline does with its default settings: more than it can do with one row a step."""
BADLY_SET = {
    "talker": {"maxNumSeqs": 1},
    "codec": {"maxNumSeqs": 1},
    "slo": {"ttfa": [{"taskType": "CustomVoice", "ttfaP95Ms": 500}]},
    "tuning": {"mode": "Auto", "intervalSeconds": 5},
}
VERDICTS = {"Promoted", "RolledBack", "Inconclusive"}
STAGES = ("talker", "codec")
LIMIT_SECONDS = 60.0
"""How long settings that are tried stay in force unless they are renewed."""
CONVERGES = 60.0
TRIAL_STARTS = 180.0
TRIAL_ENDS = 420.0


class Tuned(NamedTuple):
    installed: Installation
    crowd: Crowd


@pytest.fixture(scope="module")
def tuned(installed):
    """A pipeline that is badly set while a crowd listens; removed in the end."""
    installed.create(PIPELINE, tuning={"mode": "Off"}, monitoring={"allowFrom": [ANYWHERE]})
    installed.wait_ready(PIPELINE)
    audio, capacity = asyncio.run(measure(installed.cluster, PIPELINE))
    print(f"\n{capacity:.2f} requests a second untuned")
    installed.edit(PIPELINE, BADLY_SET)
    with Crowd(installed.cluster, PIPELINE, SHARE_OF_CAPACITY * capacity, audio) as crowd:
        yield Tuned(installed, crowd)
    installed.remove(PIPELINE)


def tuning(tuned):
    return tuned.installed.cluster.get("TTSPipeline", PIPELINE)["status"].get("tuning", {})


def report(tuned, stage):
    """What a stage's only replica answers to GET /settings."""
    cluster = tuned.installed.cluster
    return cluster.call("GET", cluster.path("Pod", f"{PIPELINE}-{stage}-0:9090", "proxy") + "/settings").json()


def configured(tuned, stage):
    """What a replica that starts comes up with."""
    data = tuned.installed.cluster.get("ConfigMap", f"{PIPELINE}-{stage}")["data"]
    return json.loads(data["settings.json"])["settings"]


def told(tuned, reason, trial):
    """The resource's Events of a trial, as `kubectl describe` shows them."""
    events = [each for each in tuned.installed.cluster.list("Event") if each["involvedObject"].get("name") == PIPELINE]
    return [each for each in events if each["reason"] == reason and f"trial {trial}," in each["message"]]


def tried(tuned):
    """The trial under way and the report of the stage that runs its candidate, once there is one."""

    def found():
        trial = tuning(tuned).get("trial")
        if trial is None or not trial["period"].get("allReplicas"):
            return None
        seen = report(tuned, trial["knob"].split(".")[0])
        return (trial, seen) if "seconds" in seen else None

    return wait_until("a candidate to be in force", TRIAL_STARTS, found)


def as_asked(tuned):
    """Whether every stage has in force what the resource asks for, for good."""
    reports = [report(tuned, stage) for stage in STAGES]
    return all("seconds" not in each and each["settings"] == each["base"] for each in reports) and all(
        each["settings"]["max_num_seqs"] == 1 for each in reports
    )


def pods(tuned):
    """UIDs and restarts, by name."""
    return {
        pod["metadata"]["name"]: (pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"])
        for pod in tuned.installed.cluster.list("Pod", f"syrinx.dev/pipeline={PIPELINE}")
    }


def test_what_is_tried_is_in_force_for_a_limited_time(tuned):
    trial, seen = tried(tuned)
    stage = trial["knob"].split(".")[0]
    assert trial["design"] == "Switchback", "there is one replica"
    assert 0 < seen["seconds"] <= LIMIT_SECONDS
    assert seen["settings"] != seen["base"] == configured(tuned, stage)
    assert seen["base"]["max_num_seqs"] == 1
    body = tuned.installed.cluster.get("TTSPipeline", PIPELINE)
    assert seen["generation"] == body["status"][stage]["settingsGeneration"]
    assert len(told(tuned, "TrialStarted", trial["id"])) == 1


def test_switched_off_in_the_middle_of_a_trial_it_thaws(tuned):
    before = pods(tuned)
    trial, _ = tried(tuned)
    tuned.installed.edit(PIPELINE, {"tuning": {"mode": "Off"}})
    wait_until("what was tried to be over", CONVERGES, lambda: as_asked(tuned))
    wait_until("the trial to be over", CONVERGES, lambda: tuning(tuned)["phase"] == "Off")
    left = tuning(tuned)
    assert not {"trial", "promotion", "soak", "chosen", "recommendation"} & set(left)
    assert (left["history"][-1]["id"], left["history"][-1]["verdict"]) == (trial["id"], "Superseded")
    assert len(told(tuned, "Superseded", trial["id"])) == 1
    assert pods(tuned) == before


def test_a_trial_outlives_the_operator_and_what_it_tries_does_not(tuned):
    installed, before = tuned.installed, pods(tuned)
    installed.edit(PIPELINE, {"tuning": {"mode": "Auto"}})
    tried(tuned)
    installed.operator.kill()
    left = tuning(tuned)
    wait_until("what was tried to end by itself", LIMIT_SECONDS + CONVERGES, lambda: as_asked(tuned))
    assert tuning(tuned) == left, "while nobody was there"
    installed.operator.start()

    def over():
        return [each for each in tuning(tuned).get("history", []) if each["id"] == left["trial"]["id"]]

    def goes_on():
        return over() or tuning(tuned)["trial"]["period"] != left["trial"]["period"]

    wait_until("the trial to go on or to end", CONVERGES, goes_on)
    (record,) = wait_until("a verdict", TRIAL_ENDS, over)
    assert record["verdict"] in VERDICTS and record["reason"]
    assert len(told(tuned, record["verdict"], record["id"])) == 1
    assert len(told(tuned, "TrialStarted", record["id"])) == 1
    assert pods(tuned) == before
    print(f"\n{record}")


def test_switched_off_for_good_what_the_resource_asks_for_is_in_force(tuned):
    tuned.installed.edit(PIPELINE, {"tuning": {"mode": "Off"}})
    wait_until("what the resource asks for", CONVERGES, lambda: tuning(tuned)["phase"] == "Off" and as_asked(tuned))
    assert [configured(tuned, stage)["max_num_seqs"] for stage in STAGES] == [1, 1]


def test_no_stream_has_failed_and_none_was_changed(tuned):
    assert not tuned.crowd.errors
    assert len(tuned.crowd.heard) >= 5 and all(tuned.crowd.heard)
    served = [outcome for outcome in tuned.crowd.outcomes if outcome.error is None]
    print(f"\n{len(served)} of {len(tuned.crowd.outcomes)} were served, {len(tuned.crowd.heard)} compared")
    assert served
