"""Tuning of a pipeline under load, with failures of the operator.

One pipeline with bad settings and one load for the whole file. Whether the tuner tries what it finds, or puts it in
force at once, depends on the machine. The later tests therefore plant the start of a trial in the tuner's record.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import pytest
from msgspec.structs import replace

from cluster.client import wait_until
from cluster.installation import Installation
from cluster.load import Load, measure
from cluster.pipeline import ANYWHERE, Pipeline, running
from syrinx_operator.resource.knobs import Knob, Setting, live_settings
from syrinx_operator.resource.state.tuning_status import Guard, State, Trial
from syrinx_operator.tuner.trial import runs_candidate
from syrinx_stages.contract.stages import WORKERS

PIPELINE = "tuned"
SHARE_OF_CAPACITY = 0.8
"""Share of the default settings' throughput, more than one row per step can serve."""
BADLY_SET = {
    "talker": {"maxNumSeqs": 1},
    "codec": {"maxNumSeqs": 1},
    "slo": {"ttfa": [{"taskType": "CustomVoice", "ttfaP95Ms": 500}]},
    "tuning": {"mode": "Auto", "intervalSeconds": 5},
}
LIMIT_SECONDS = 60.0
"""Seconds that overrides stay in force unless they are renewed."""
PERIOD_SECONDS = 20.0
CONVERGES = 60.0
IS_FOUND = 600.0
"""A trial under load takes minutes."""


class Tuned(NamedTuple):
    pipeline: Pipeline
    load: Load

    @property
    def state(self) -> State:
        """The tuner's recorded state."""
        found = self.pipeline.cluster.get("ConfigMap", f"{PIPELINE}-tuning")
        return msgspec.json.decode(found["data"]["tuning.json"], type=State) if found else State()

    def record(self, state: State) -> None:
        data = {"tuning.json": msgspec.json.encode(state).decode()}
        self.pipeline.cluster.patch("ConfigMap", f"{PIPELINE}-tuning", {"data": data})

    def report(self, stage: str) -> dict[str, Any]:
        """Returns what a stage's only replica reports of its settings."""
        cluster, (pod,) = self.pipeline.cluster, self.pipeline.pods(stage)
        token = base64.b64decode(cluster.get("Secret", f"{PIPELINE}-stages")["data"]["token"]).decode()
        path = cluster.path("Pod", f"{pod}:9091", "proxy") + f"/settings/{stage}"
        return cluster.call("GET", path, headers={"X-Syrinx-Token": token}).json()

    def configured(self, stage: str) -> dict[str, Any]:
        """Returns the settings with which a new replica starts."""
        data = self.pipeline.cluster.get("ConfigMap", f"{PIPELINE}-{stage}")["data"]
        return msgspec.json.decode(data["settings.json"])["settings"]

    def events(self, change: str) -> list[str]:
        """Returns the reasons of the Events of a trial or change."""
        events = [each for each in self.pipeline.cluster.list("Event") if each["message"].startswith(f"{change}, ")]
        return sorted(each["reason"] for each in events for _ in range(each.get("count") or 1))

    def starts(self) -> dict[str, tuple[str, int]]:
        """Returns UIDs and restarts by pod name."""
        return {
            name: (pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"])
            for name, pod in self.pipeline.pods().items()
        }


@pytest.fixture(scope="module")
def tuned(installed: Installation) -> Iterator[Tuned]:
    """A pipeline with bad settings under load."""
    spec = {"tuning": {"mode": "Off"}, "monitoring": {"allowFrom": [ANYWHERE]}}
    with running(installed, PIPELINE, **spec) as pipeline:
        audio, capacity = asyncio.run(measure(installed.cluster, PIPELINE))
        print(f"\n{capacity:.2f} requests a second untuned")
        pipeline.edit(BADLY_SET)
        with Load(installed.cluster, PIPELINE, SHARE_OF_CAPACITY * capacity, audio) as load:
            yield Tuned(pipeline, load)


def runs(report: dict[str, Any], setting: Setting, stage: str) -> bool:
    """Returns whether a report has a setting's values in force."""
    return live_settings(setting, stage).items() <= report["settings"].items()


def is_in_force(tuned: Tuned, setting: Setting) -> bool:
    """Returns whether all replicas run a setting without overrides, and new ones would start with it."""
    reports = {stage: tuned.report(stage) for stage in ("gateway", *WORKERS)}
    return all("seconds" not in each and each["settings"] == each["base"] for each in reports.values()) and all(
        runs(reports[stage], setting, stage) and reports[stage]["base"] == tuned.configured(stage) for stage in WORKERS
    )


def is_on_trial(tuned: Tuned) -> bool:
    """Returns whether all replicas run a trial's candidate as an override, and requests are labeled."""
    trial = tuned.state.trial
    if trial is None or not runs_candidate(trial):
        return False
    reports = {stage: tuned.report(stage) for stage in ("gateway", *WORKERS)}
    return all("seconds" in each for each in reports.values()) and all(
        runs(reports[stage], trial.candidate, stage) for stage in WORKERS
    )


def plant(tuned: Tuned) -> Trial:
    """Records the start of a trial of eight rows per step. No operator may run."""
    known, now = tuned.state, datetime.now(UTC)
    assert known.requested is not None
    trial = Trial(
        id=known.trial_count + 1,
        candidate=known.requested.with_value(Knob.TALKER_ROWS, 8).with_value(Knob.CODEC_ROWS, 8),
        baseline=known.requested,
        why="planted",
        start_time=now,
        period_seconds=PERIOD_SECONDS,
        period_time=now,
        replicas=tuple(f"{PIPELINE}-{stage}-0" for stage in WORKERS),
        guard=Guard(expected_bad=1.0),
    )
    tuned.record(replace(known, mode="Auto", phase="Trial", trial=trial, trial_count=trial.id))
    return trial


def test_a_better_setting_is_found_and_comes_into_force(tuned):
    before = tuned.starts()
    state = wait_until("a better setting", IS_FOUND, lambda: state if (state := tuned.state).chosen else None)
    print(f"\n{state.forecast}\n{state.chosen}")
    assert state.chosen != state.requested
    wait_until("it to be in force", CONVERGES, lambda: is_in_force(tuned, state.chosen))
    put, tried = (tuned.events(f"{kind} {state.trial_count}") for kind in ("change", "trial"))
    assert put == ["PutInForce"] or tried == ["Promoted", "TrialStarted"]
    assert tuned.starts() == before


def test_switching_off_tuning_returns_to_the_spec(tuned):
    tuned.pipeline.edit({"tuning": {"mode": "Off"}})
    wait_until("the tuner to be off", CONVERGES, lambda: tuned.state.phase == "Off")
    state = tuned.state
    assert (state.trial, state.soak, state.chosen) == (None, None, None)
    assert (state.requested.talker_max_num_seqs, state.requested.codec_max_num_seqs) == (1, 1)
    wait_until("the spec's settings", CONVERGES, lambda: is_in_force(tuned, state.requested))


def test_a_trials_settings_are_overrides(tuned):
    tuned.pipeline.installed.operator.kill()
    trial = plant(tuned)
    tuned.pipeline.edit({"tuning": {"mode": "Auto"}})
    tuned.pipeline.installed.operator.start()
    wait_until("the candidate to run", CONVERGES + 2 * PERIOD_SECONDS, lambda: is_on_trial(tuned))
    status = tuned.pipeline.status
    assert status["tuning"]["trial"]["id"] == trial.id
    for stage in WORKERS:
        seen = tuned.report(stage)
        assert 0 < seen["seconds"] <= LIMIT_SECONDS
        assert seen["base"] == tuned.configured(stage) and runs({"settings": seen["base"]}, trial.baseline, stage)
        assert seen["generation"] == status[stage]["settingsGeneration"]


def test_a_trial_survives_the_operator_but_its_overrides_expire(tuned):
    operator, before = tuned.pipeline.installed.operator, tuned.starts()
    wait_until("the candidate to run", CONVERGES + 2 * PERIOD_SECONDS, lambda: is_on_trial(tuned))
    operator.kill()
    left = tuned.state
    assert all("seconds" in tuned.report(stage) for stage in WORKERS), "without an operator"
    wait_until("them to expire", LIMIT_SECONDS + 5, lambda: is_in_force(tuned, left.trial.baseline))
    assert tuned.state == left
    operator.start()
    goes_on = CONVERGES + 4 * PERIOD_SECONDS
    wait_until("the next period", goes_on, lambda: tuned.state.trial.period > left.trial.period)
    wait_until("the candidate to run again", goes_on, lambda: is_on_trial(tuned))
    trial = tuned.state.trial
    assert (trial.id, trial.start_time) == (left.trial.id, left.trial.start_time)
    assert tuned.starts() == before


def test_switching_off_tuning_during_a_trial_ends_its_overrides(tuned):
    wait_until("the candidate to run", CONVERGES + 2 * PERIOD_SECONDS, lambda: is_on_trial(tuned))
    trial = tuned.state.trial
    tuned.pipeline.edit({"tuning": {"mode": "Off"}})
    wait_until("the overrides to end", CONVERGES, lambda: is_in_force(tuned, trial.baseline))
    wait_until("the trial to be over", CONVERGES, lambda: tuned.state.phase == "Off")
    assert (tuned.state.trial, tuned.state.soak, tuned.state.chosen) == (None, None, None)
    last = tuned.state.history[-1]
    assert (last.id, last.verdict) == (trial.id, "Superseded")
    assert tuned.events(f"trial {trial.id}") == ["Superseded"]


def test_no_stream_failed_and_none_was_changed(tuned):
    assert not tuned.load.errors
    assert len(tuned.load.matches) >= 5 and all(tuned.load.matches)
    served = [outcome for outcome in tuned.load.outcomes if outcome.error is None]
    print(f"\n{len(served)} of {len(tuned.load.outcomes)} were served, {len(tuned.load.matches)} compared")
    assert served
