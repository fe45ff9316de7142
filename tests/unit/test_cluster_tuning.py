"""Tuning on Kubernetes: replicas' settings from the tuner's state, and the tuner's inputs."""

import json
from datetime import UTC, datetime

import msgspec
import pytest

from support.cluster_plan import CONFIG, EMPTY, after, objects, owner_of, pipeline, pod_template, replica
from support.cluster_status import OWNER
from support.cluster_status import Cluster as StatusCluster
from support.tuning import trial
from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.state import STAGES, ObjectKey, Problem
from syrinx_operator.cluster.plan import plan
from syrinx_operator.cluster.report.scaling import permitted
from syrinx_operator.cluster.runners import tuning
from syrinx_operator.resource.fields.tuning import TuningSpec
from syrinx_operator.resource.knobs import Identity, Knob, Setting, live_settings, setting_of
from syrinx_operator.resource.resolve import resolve
from syrinx_operator.resource.spec import CaptureShape, CodecSpec
from syrinx_operator.resource.state.tuning_status import (
    MAX_HISTORY,
    MAX_SHAPES,
    MAX_TRIED,
    CallPoint,
    Forecast,
    Measured,
    State,
    StepPoint,
    TrialRecord,
    Tried,
)
from syrinx_operator.tuner.decide import Decision
from syrinx_operator.tuner.policy import policy_of
from syrinx_stages.contract.settings import ReportedSettings
from syrinx_stages.contract.stages import Stage

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
GATEWAY, TALKER, CODEC = Stage.GATEWAY, Stage.TALKER, Stage.CODEC
RECORD = ObjectKey("ConfigMap", "demo-tuning")
IDENTITY = Identity(model="m-1", image="syrinx/stages:1.0.0", device="talker: cpu; codec: cpu")


def auto(**spec):
    return resolve(pipeline({"tuning": {"mode": "Auto"}, "codec": {"replicas": 4}, **spec}))


AUTO = auto()
INITIAL = setting_of(AUTO)
CHOSEN = INITIAL.with_value(Knob.CODEC_ROWS, 16)
CANDIDATE = CHOSEN.with_value(Knob.CODEC_ROWS, 32).with_value(Knob.TALKER_ROWS, 4)


def tuned_state(**fields):
    return State(**{"requested": INITIAL, "chosen": CHOSEN, "identity": IDENTITY, "trial_count": 2, **fields})


def tried(*, counting=True, **fields):
    """Returns the tuning in a trial, in a period of the candidate."""
    running = trial(CANDIDATE, CHOSEN, NOW, counting_time=NOW if counting else None, first_label=9, **fields)
    return tuned_state(phase="Trial", trial=running)


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
        *(ObjectKey("ConfigMap", "demo-codec"), RECORD)
    }


def test_pausing_keeps_the_chosen_setting_and_ends_a_trial():
    subject = auto(tuning={"mode": "Auto", "paused": True})
    tuned = tuning.tuning_of(subject, tried())
    assert tuned.assignment.base == CHOSEN
    assert overrides(tuned) == {}


def overrides(tuned):
    """Returns the overrides of a replica of each stage, without those of stages that have none."""
    found = {stage: tuned.overrides_for(replica(stage, 7, "t")) for stage in STAGES}
    return {stage: settings for stage, settings in found.items() if settings}


def test_in_a_period_of_the_candidate_all_talkers_and_codecs_run_it():
    tuned = tuning.tuning_of(AUTO, tried(counting=False))
    assert overrides(tuned) == {
        TALKER: live_settings(CANDIDATE, Stage.TALKER),
        CODEC: live_settings(CANDIDATE, Stage.CODEC),
    }
    assert rows(planned(AUTO, tuned.state)) == 16, "a replica that restarts runs the base"


@pytest.mark.parametrize("of_candidate", [True, False])
def test_gateways_label_requests_while_they_are_counted(of_candidate):
    state = tried(of_candidate=of_candidate)
    tuned = tuning.tuning_of(AUTO, state)
    assert overrides(tuned)[GATEWAY] == {"arm": f"{9 + state.trial.period:x}"}
    assert (TALKER in overrides(tuned)) is of_candidate


def test_a_canary_takes_no_part_in_a_trial():
    tuned = tuning.tuning_of(AUTO, tried())
    pods = [msgspec.structs.replace(replica(stage, 0, "t"), canary=True) for stage in STAGES]
    assert [tuned.overrides_for(pod) for pod in pods] == [{}, {}, {}]


@pytest.mark.parametrize(
    ("before", "after", "seconds"),
    [
        (tuned_state(), tuned_state(), 300.0),
        (tuned_state(), tried(counting=False), 0.0),
        (tried(counting=False), tried(), 0.0),
        (tried(), tuned_state(), 0.0),
        (tried(), tried(), tuning.RENEW_SECONDS),
        (tried(of_candidate=False), tried(of_candidate=False), tuning.RENEW_SECONDS),
        (tried(counting=False, of_candidate=False), tried(counting=False, of_candidate=False), 300.0),
    ],
    ids=["nothing", "start", "counting", "end", "candidate", "label", "baseline"],
)
def test_changes_are_applied_at_once_and_overrides_renewed(before, after, seconds):
    decision = Decision(state=after, requeue_after=400.0)
    assert tuning.requeue_after(AUTO, tuning.tuning_of(AUTO, before), decision, resync_seconds=300.0) == seconds


def test_tuned_settings_that_an_edit_made_invalid_are_dropped():
    """Replicas would refuse them, and new ones would fail to start."""
    smaller = auto(codec={"replicas": 4, "maxResident": 12})
    assert rows(planned(smaller, tuned_state())) == INITIAL.codec_max_num_seqs
    between = auto(codec={"replicas": 4, "maxResident": 20})
    tuned = tuning.tuning_of(between, tried())
    assert overrides(tuned) == {} and tuned.assignment.base == setting_of(between)


# The record ---------------------------------------------------------------------------------------------------

IN_TRIAL = tried()


def as_json(value):
    return json.loads(msgspec.json.encode(value))


def recorded(text):
    """Returns a cluster whose record has this text."""
    observed = after(planned(AUTO, tuned_state()))
    observed.objects[RECORD]["data"] = {"tuning.json": text}
    return observed


def published(state):
    """Returns the status of this version for a state."""
    cluster = StatusCluster()
    cluster.tuning = state
    return cluster.update()


def test_the_record_has_the_whole_state_and_belongs_to_the_pipeline():
    kept = objects(planned(AUTO, IN_TRIAL))[RECORD]
    assert kept["metadata"]["ownerReferences"][0]["uid"] == owner_of(AUTO).uid
    assert msgspec.json.decode(kept["data"]["tuning.json"], type=State) == IN_TRIAL


def test_the_record_decides():
    observed = after(planned(AUTO, IN_TRIAL))
    status = published(State(phase="Watching", message="the objectives are met", requested=INITIAL))
    assert tuning.tuner_state(status, owner_of(AUTO), observed) == (IN_TRIAL, "")


@pytest.mark.parametrize("text", [None, "", "not JSON", "[1]"])
def test_without_a_readable_record_the_settings_in_force_stay_and_a_trial_ends(text):
    observed = EMPTY if text is None else recorded(text)
    found, lost = tuning.tuner_state(published(IN_TRIAL), owner_of(AUTO), observed)
    assert lost == ("is missing" if text is None else "is not readable")
    assert found == msgspec.structs.replace(IN_TRIAL, trial=None, identity=None)
    event = tuning.lost_event(owner_of(AUTO), lost)
    assert (event.kind, event.reason) == ("Warning", "TuningStateLost") and "ConfigMap demo-tuning is" in event.message


def test_of_a_damaged_record_all_that_is_readable_is_kept():
    damaged = as_json(IN_TRIAL) | {"tried": "none", "soak": {"id": 3}}
    found, lost = tuning.tuner_state({}, owner_of(AUTO), recorded(json.dumps(damaged)))
    assert found == IN_TRIAL
    assert lost.startswith("is not readable as a whole (")


def test_the_largest_state_fits_into_a_config_map():
    rows, shape = {"talker_max_num_seqs": 1024, "codec_max_num_seqs": 1024}, CaptureShape(rows=1024, frames=64)
    setting = Setting(**rows, chunk_ramp=(64,) * 16, capture_pairs=(shape,) * 64)
    text, number = "x" * 256, 123456.789012
    verdict = {"before": text, "after": text, "verdict": "RolledBack", "reason": text, "requests": 10**6}
    failed = Tried(setting=setting, baseline=setting, difference=-number, error=0.01, rate=number, until=NOW)
    state = tuned_state(
        chosen=setting,
        forecast=Forecast(time=NOW, rate=number, observed=0.1, current=0.2, best=0.3, setting=setting),
        measured=Measured(
            steps=(StepPoint(1024, number, number),) * 12,
            calls=(CallPoint(1024, 64, False, number, number),) * MAX_SHAPES,
        ),
        trial=trial(setting, setting, NOW, replicas=("r" * 253,) * 512),
        tried=(failed,) * MAX_TRIED,
        history=(TrialRecord(id=10**6, time=NOW, start_time=NOW, **verdict),) * MAX_HISTORY,
    )
    assert len(msgspec.json.encode(state)) < 512 * 1024, "the limit of Kubernetes is 1 MiB"


# The tuner's inputs -------------------------------------------------------------------------------------------


class Cluster(StatusCluster):
    """A pipeline whose pods match the plan except for what a test changes."""

    def __init__(self):
        super().__init__(tuning=TuningSpec(mode="Auto"), codec=CodecSpec(replicas=4))

    def disruption(self, generation=OWNER.generation):
        return tuning.disruption_of(self.plan, self.observed, self.problems, generation, OWNER)

    def identity(self, devices, before=None, **spec):
        subject = resolve(pipeline({"tuning": {"mode": "Auto"}, **spec}))
        return tuning.identity(subject, self.plan, self.observed, devices, before)


def test_replica_stats_of_talkers_and_codecs():
    cluster = Cluster().set(CODEC, 1, restarts=3, ready=False)
    cluster.set(CODEC, 3, terminating=True)
    talker, codec, restarted, last = tuning.replica_stats(cluster.observed)
    assert (talker.name, talker.stage, codec.name, codec.stage) == ("demo-talker-0", "talker", "demo-codec-0", "codec")
    assert codec.settings["max_num_seqs"] == 8 and last.name == "demo-codec-2", "without the one that ends"
    assert (restarted.name, restarted.restarts, restarted.ready, restarted.settings) == ("demo-codec-1", 3, False, None)


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
    assert message in Cluster().set(component, 0, **fields).disruption()


def test_overrides_of_a_confirmed_base_are_no_change():
    limited = ReportedSettings(1, {"max_num_seqs": 32}, {"max_num_seqs": 8}, 20.0)
    assert Cluster().set(CODEC, 0, reported=limited).disruption() == ""


def test_edits_and_problems_are_a_disruption():
    assert Cluster().disruption(generation=None) == Cluster().disruption(generation=3) == "the resource was edited"
    cluster = Cluster()
    cluster.problems = [Problem("ApplyFailed", "Service demo-gateway cannot be applied")]
    assert cluster.disruption() == "Service demo-gateway cannot be applied"


def devices(cluster, **others):
    talkers_and_codecs = [name for name in cluster.pods if "talker" in name or "codec" in name]
    return {**dict.fromkeys(talkers_and_codecs, "NVIDIA H200"), **others}


def test_the_identity_has_model_image_devices_and_engine():
    cluster = Cluster()
    found = cluster.identity(devices(cluster, **{"demo-codec-2": "NVIDIA L4"}), talker={"engine": "vllm"})
    assert (found.model, found.image) == (cluster.plan.generation, "syrinx/stages:1")
    assert found.device == "talker: NVIDIA H200; codec: NVIDIA H200, NVIDIA L4; talker with vllm"


def test_an_unreported_device_keeps_the_previous_identity():
    cluster = Cluster()
    before = cluster.identity(devices(cluster))
    assert cluster.identity(devices(cluster, **{"demo-codec-2": ""}), before) == before
    assert cluster.identity({}, before) == before
    assert cluster.identity({}, msgspec.structs.replace(before, image="another")) != before


@pytest.mark.parametrize(
    ("spec", "others"), [({"codec": {"autoscaling": {"maxReplicas": 8}}}, {CODEC}), ({"topology": "Colocated"}, set())]
)
def test_a_stage_that_another_autoscaler_scales_is_not_scaled(spec, others):
    slo = {"ttfa": [{"taskType": "CustomVoice", "ttfaP95Ms": 200}]}
    subject = pipeline({"slo": slo, "talker": {"autoscaling": {"maxReplicas": 8}}, **spec})
    policy, owner = policy_of(resolve(subject)), owner_of(subject)
    assert permitted(policy, owner, EMPTY) == policy
    taken = msgspec.structs.replace(EMPTY, autoscaled=frozenset({names.workload_key("demo", TALKER)}))
    assert permitted(policy, owner, taken).scales.keys() == others
