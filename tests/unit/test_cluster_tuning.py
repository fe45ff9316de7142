"""Tuning on Kubernetes: replicas' settings from the tuner's state, and the tuner's inputs."""

import json
from datetime import UTC, datetime

import msgspec
import pytest

from support.cluster_plan import CONFIG, EMPTY, after, objects, owner_of, pipeline, pod_template, replica
from syrinx_operator.cluster import tuning
from syrinx_operator.cluster.plan import plan
from syrinx_operator.cluster.state import STAGES, Component, ObjectKey, Problem
from syrinx_operator.resource.knobs import Identity, Knob, setting_of
from syrinx_operator.resource.stage_config import Stage
from syrinx_operator.resource.status import read
from syrinx_operator.resource.tuning_status import Period, State, Trial
from syrinx_stages.contract.settings import ReportedSettings

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
TALKER, CODEC = Component.TALKER, Component.CODEC
BACKUP = ObjectKey("ConfigMap", "demo-tuning")
IDENTITY = Identity(model="m-1", image="syrinx/stages:1.0.0", device="talker: cpu; codec: cpu")


def auto(**spec):
    return pipeline({"tuning": {"mode": "Auto"}, "codec": {"replicas": 4}, **spec})


AUTO = auto()
INITIAL = setting_of(AUTO.spec)
CHOSEN = INITIAL.with_value(Knob.CODEC_ROWS, 16)
OVERRIDES = CHOSEN.with_value(Knob.CODEC_ROWS, 32)


def tuned_state(**fields):
    return State(
        **{
            "requested": INITIAL,
            "chosen": CHOSEN,
            "last_good": CHOSEN,
            "identity": IDENTITY,
            "trial_count": 2,
            **fields,
        }
    )


def trial(*candidates, everywhere=False):
    period = Period(index=0, start_time=NOW, candidate_replicas=candidates, all_replicas=everywhere)
    return Trial(
        id=3,
        knob=Knob.CODEC_ROWS,
        candidate=OVERRIDES,
        baseline=CHOSEN,
        design="Parallel",
        rationale="the decoder waits",
        start_time=NOW,
        period_seconds=30.0,
        period=period,
    )


def planned(subject, state, observed=EMPTY):
    tuned = tuning.tuning_of(subject, state)
    return plan(tuned.applied_to(subject), owner_of(subject), observed, CONFIG, tuned.state)


def rows(plan):
    return plan.settings[CODEC].settings["max_num_seqs"]


# Settings -----------------------------------------------------------------------------------------------------


def test_a_chosen_setting_changes_live_settings_and_no_pod_template():
    plain, tuned = planned(AUTO, State()), planned(AUTO, tuned_state())
    assert (rows(plain), rows(tuned)) == (INITIAL.codec_max_num_seqs, 16)
    for component in plain.templates:
        assert pod_template(tuned, AUTO, component) == pod_template(plain, AUTO, component)
    assert {key for key, each in objects(tuned).items() if objects(plain).get(key) != each} == {
        *(ObjectKey("ConfigMap", "demo-codec"), BACKUP)
    }


@pytest.mark.parametrize("mode", ["Off", "Recommend"])
def test_only_mode_auto_applies_tuned_settings(mode):
    subject = auto(tuning={"mode": mode})
    state = tuned_state(trial=trial("demo-codec-0", everywhere=True))
    tuned = tuning.tuning_of(subject, state)
    assert rows(planned(subject, state)) == INITIAL.codec_max_num_seqs
    assert tuned.overrides_for(replica(CODEC, 0, "t")) is None


def test_pausing_keeps_the_chosen_setting_and_ends_a_trial():
    subject = auto(tuning={"mode": "Auto", "paused": True})
    tuned = tuning.tuning_of(subject, tuned_state(trial=trial("demo-codec-0", everywhere=True)))
    assert tuned.assignment.base == CHOSEN
    assert tuned.overrides_for(replica(CODEC, 0, "t")) is None


def test_a_trial_overrides_the_settings_of_its_replicas():
    tuned = tuning.tuning_of(AUTO, tuned_state(trial=trial("demo-codec-1", "demo-codec-3")))
    limited = [tuned.overrides_for(replica(CODEC, n, "t")) for n in range(4)]
    assert [each and each["max_num_seqs"] for each in limited] == [None, 32, None, 32]
    assert tuned.overrides_for(replica(TALKER, 1, "t")) is None
    assert tuned.overrides_for(replica(Component.GATEWAY, 1, "t")) is None
    assert rows(planned(AUTO, tuned.state)) == 16


def test_a_switchback_trial_applies_to_new_replicas_too():
    tuned = tuning.tuning_of(AUTO, tuned_state(trial=trial(everywhere=True)))
    assert tuned.overrides_for(replica(CODEC, 9, "t"))["max_num_seqs"] == 32


def test_an_edit_of_a_tuned_field_takes_effect_immediately():
    edited = auto(codec={"replicas": 4, "maxNumSeqs": 3})
    assert rows(planned(edited, tuned_state(trial=trial("demo-codec-0")))) == 3


def test_tuned_settings_that_an_edit_made_invalid_are_dropped():
    """Replicas would refuse them, and new ones would fail to start."""
    smaller = auto(codec={"replicas": 4, "maxResident": 12})
    assert rows(planned(smaller, tuned_state())) == INITIAL.codec_max_num_seqs
    between = auto(codec={"replicas": 4, "maxResident": 20})
    tuned = tuning.tuning_of(between, tuned_state(trial=trial("demo-codec-0")))
    assert not tuned.assignment.has_overrides and tuned.assignment.base == setting_of(between.spec)


# Backup -------------------------------------------------------------------------------------------------------


def test_a_backup_is_written_once_a_setting_was_chosen():
    assert BACKUP not in objects(planned(AUTO, State(phase="Watching", requested=INITIAL)))
    kept = objects(planned(AUTO, tuned_state()))[BACKUP]
    assert kept["metadata"]["ownerReferences"][0]["uid"] == owner_of(AUTO).uid
    found = json.loads(kept["data"]["tuning.json"])
    assert (found["trialCount"], found["lastGood"]["codecMaxNumSeqs"], found["identity"]["model"]) == (2, 16, "m-1")


@pytest.mark.parametrize("status", [{}, {"tuning": {"phase": "Measuring"}}, {"tuning": {"trial": 1}}])
def test_the_backup_replaces_an_unreadable_status(status):
    observed = after(planned(AUTO, tuned_state(phase="Trial", trial=trial("demo-codec-0"))))
    assert tuning.tuner_state(status, owner_of(AUTO), observed) == tuned_state()


def test_the_status_takes_precedence_over_the_backup():
    observed = after(planned(AUTO, tuned_state()))
    state = State(phase="Watching", message="the objectives are met", requested=INITIAL)
    written = json.loads(msgspec.json.encode({"tuning": state}))
    assert tuning.tuner_state(written, owner_of(AUTO), observed) == state


@pytest.mark.parametrize("text", ["", "not JSON", '{"chosen": 1}'])
def test_an_unreadable_backup_is_ignored(text):
    observed = after(planned(AUTO, tuned_state()))
    observed.objects[BACKUP]["data"] = {"tuning.json": text}
    assert tuning.tuner_state({}, owner_of(AUTO), observed) == State()


def test_the_backup_of_a_former_pipeline_of_the_same_name_is_ignored():
    observed = after(planned(AUTO, tuned_state()))
    owner = msgspec.structs.replace(owner_of(AUTO), uid="another")
    assert tuning.tuner_state({}, owner, observed) == State()


# The tuner's inputs -------------------------------------------------------------------------------------------


class Cluster:
    """A pipeline whose pods match the plan except for what a test changes."""

    def __init__(self):
        self.plan = planned(AUTO, State())
        self.pods = {}
        for component, template in self.plan.templates.items():
            settings = self.plan.settings.get(component)
            for n in range(self.plan.replicas[component]):
                pod = replica(component, n, template, ready=True)
                reported = (
                    ReportedSettings(settings.generation, settings.settings, settings.settings) if settings else None
                )
                self.pods[pod.name] = msgspec.structs.replace(pod, reported=reported)
        self.problems = []

    def set(self, name, **fields):
        self.pods[name] = msgspec.structs.replace(self.pods[name], **fields)
        return self

    @property
    def observed(self):
        return after(self.plan, replicas=tuple(self.pods.values()))

    def disruption(self, generation=1):
        return tuning.disruption_of(self.plan, self.observed, self.problems, generation, owner_of(AUTO))

    def identity(self, devices, before=None, subject=AUTO):
        return tuning.identity(subject, self.plan, self.observed, devices, before)


def test_replica_stats_of_talkers_and_codecs():
    cluster = Cluster().set("demo-codec-1", restarts=3, ready=False, reported=None)
    cluster.set("demo-codec-3", terminating=True)
    found = {worker.name: worker for worker in tuning.replica_stats(cluster.observed)}
    assert sorted(found) == ["demo-codec-0", "demo-codec-1", "demo-codec-2", "demo-talker-0"]
    assert (found["demo-codec-0"].stage, found["demo-talker-0"].stage) == (Stage.CODEC, Stage.TALKER)
    assert found["demo-codec-0"].settings["max_num_seqs"] == 8
    assert (found["demo-codec-1"].restarts, found["demo-codec-1"].ready, found["demo-codec-1"].settings) == (
        3,
        False,
        None,
    )


def test_no_change_is_in_progress():
    assert Cluster().disruption() == ""


@pytest.mark.parametrize("component", STAGES)
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"terminating": True}, "terminating"),
        ({"ready": False}, "not ready"),
        ({"template": "another"}, "are updated"),
        ({"reported": ReportedSettings(0, {}, {})}, "has not confirmed settings generation 1"),
        ({"reported": None}, "has not confirmed settings generation 1"),
    ],
)
def test_a_replica_that_differs_from_the_plan_is_a_disruption(component, fields, message):
    assert message in Cluster().set(f"demo-{component}-0", **fields).disruption()


def test_overrides_of_a_confirmed_base_are_no_change():
    limited = ReportedSettings(1, {"max_num_seqs": 32}, {"max_num_seqs": 8}, 20.0)
    assert Cluster().set("demo-codec-0", reported=limited).disruption() == ""


def test_edits_and_problems_are_a_disruption():
    assert Cluster().disruption(generation=None) == Cluster().disruption(generation=0) == "the resource was edited"
    cluster = Cluster()
    cluster.problems = [Problem("ApplyFailed", "Service demo-gateway cannot be applied")]
    assert cluster.disruption() == "Service demo-gateway cannot be applied"


def devices(cluster, **others):
    talkers_and_codecs = [name for name in cluster.pods if "talker" in name or "codec" in name]
    return {**dict.fromkeys(talkers_and_codecs, "NVIDIA H200"), **others}


def test_the_identity_has_model_image_and_devices():
    cluster = Cluster()
    found = cluster.identity(devices(cluster, **{"demo-codec-2": "NVIDIA L4"}))
    assert (found.model, found.image) == (cluster.plan.generation, "syrinx/stages:1.0.0")
    assert found.device == "talker: NVIDIA H200; codec: NVIDIA H200, NVIDIA L4"


def test_the_identity_differs_between_engines():
    cluster, on_vllm = Cluster(), auto(talker={"engine": "vllm"})
    found = cluster.identity(devices(cluster), subject=on_vllm)
    assert found.device == "talker: NVIDIA H200; codec: NVIDIA H200; talker with vllm"


def test_without_reported_devices_the_identity_has_none():
    cluster = Cluster()
    assert cluster.identity({}).device == ""


def test_an_unreported_device_keeps_the_previous_identity():
    cluster = Cluster()
    before = cluster.identity(devices(cluster))
    assert cluster.identity(devices(cluster, **{"demo-codec-2": ""}), before) == before
    assert cluster.identity({}, before) == before
    assert cluster.identity({}, msgspec.structs.replace(before, image="another")) != before


def test_a_state_survives_a_round_trip_through_the_api_server():
    state = tuned_state(phase="Trial", trial=trial("demo-codec-0"))
    assert read(json.loads(msgspec.json.encode({"tuning": state}))).tuning == state
