"""The tuner of `syrinx up`, with the admin and settings servers of stages."""

import contextlib
from datetime import UTC, datetime

import httpx
import msgspec
import pytest
from prometheus_client import CollectorRegistry

from support.tuning import trial
from syrinx_operator.local import tuning_files
from syrinx_operator.local.tuner import LocalTuner, identity_of
from syrinx_operator.resource.fields.tuning import TuningSpec
from syrinx_operator.resource.knobs import Knob, setting_of
from syrinx_operator.resource.resolve import resolve
from syrinx_operator.resource.spec import CodecSpec, PipelineSpec, TalkerSpec, default_pipeline
from syrinx_operator.resource.state.tuning_status import State
from syrinx_operator.tuner.builder import Event
from syrinx_operator.tuner.decide import Decision
from syrinx_stages.contract.metrics import LIVE_STREAMS, MAX_NUM_SEQS
from syrinx_stages.contract.settings import TOKEN_HEADER, CodecSettings, GatewaySettings, TalkerSettings
from syrinx_stages.contract.stages import Stage
from syrinx_stages.runtime.http.admin import create_admin
from syrinx_stages.runtime.http.settings_api import create_settings_api
from syrinx_stages.runtime.settings import LiveSettings
from syrinx_stages.runtime.telemetry.exposition import Exposition
from syrinx_stages.runtime.telemetry.metrics import Metrics

TOKEN = "of-this-run"
NOW = datetime(2026, 3, 4, 12, 0, 0, tzinfo=UTC)


def a_pipeline(mode="Auto", **tuning):
    spec = PipelineSpec(
        talker=TalkerSpec(max_num_seqs=1), codec=CodecSpec(max_num_seqs=1), tuning=TuningSpec(mode=mode, **tuning)
    )
    return msgspec.structs.replace(default_pipeline(), spec=spec)


INITIAL = setting_of(resolve(a_pipeline()))
CHOSEN = INITIAL.with_value(Knob.TALKER_ROWS, 4)
CANDIDATE = INITIAL.with_value(Knob.TALKER_ROWS, 2).with_value(Knob.CODEC_ROWS, 8)


def in_trial(**fields):
    """Returns a turn to a trial."""
    running = trial(CANDIDATE, CHOSEN, NOW, first_label=9, **fields)
    return lambda state: msgspec.structs.replace(state, chosen=CHOSEN, requested=INITIAL, trial=running)


class FakeStage:
    """The part of a stage that its admin and settings servers use."""

    def __init__(self, settings):
        self.live = LiveSettings(settings, 0, 32)

    def ready(self):
        return None

    def warnings(self):
        return ()

    def settings_changed(self):
        pass


class FakeChild:
    """The interface of a stage's process, without a process."""

    def __init__(self, stage, settings, standby=False):
        self.stage, self.is_standby = stage, standby
        self.name = f"{stage}-standby-0" if standby else f"{stage}-0"
        self.admin_url = f"http://{self.name}"
        self.settings_url = f"http://settings.{self.name}/settings/{stage}"
        self.restarts, self.is_ready = 0, True
        self.saved = None
        self.stub = FakeStage(settings)
        self.live = self.stub.live

    def save_settings(self, body):
        self.saved = body

    def transports(self):
        settings = create_settings_api(self.stage, self.stub, TOKEN)
        return {self.admin_url: self._admin(), f"http://settings.{self.name}": httpx.ASGITransport(settings)}

    def _admin(self):
        metrics = Metrics(CollectorRegistry())
        if self.stage is Stage.GATEWAY:
            metrics[LIVE_STREAMS].set(0)
        else:
            metrics[MAX_NUM_SEQS].labels(self.stage.value).set(self.live.current.max_num_seqs)
        return httpx.ASGITransport(create_admin(self.stub.ready, Exposition(metrics)))


class Script:
    """Replaces `decide`: each entry of `turns` maps the state to the next one."""

    def __init__(self, monkeypatch):
        self.turns, self.evidence = [], []
        monkeypatch.setattr("syrinx_operator.tuner.runner.decide", self)

    def __call__(self, policy, state, look, ask, ask_capacity, now):
        evidence = look(now, now)
        self.evidence.append(evidence)
        turn = self.turns.pop(0) if self.turns else (lambda same: same)
        state = msgspec.structs.replace(turn(state), identity=evidence.identity, requested=policy.requested)
        return Decision(state=state, events=(Event(reason="Turned", message="decided"),), requeue_after=2.0)


@pytest.fixture
def script(monkeypatch):
    return Script(monkeypatch)


@pytest.fixture
def children():
    return [
        FakeChild(Stage.TALKER, TalkerSettings(max_num_seqs=1)),
        FakeChild(Stage.CODEC, CodecSettings(max_num_seqs=1)),
        FakeChild(Stage.GATEWAY, GatewaySettings()),
    ]


class SteppedTuner:
    """A tuner of some children, which is stepped by hand."""

    def __init__(self, directory, children, pipeline=None):
        self.events = []
        self.local = LocalTuner(pipeline or a_pipeline(), directory, self.events.append)
        self.children = children
        self.directory = directory

    async def step(self):
        mounts = {url: transport for child in self.children for url, transport in child.transports().items()}
        async with httpx.AsyncClient(mounts=mounts, headers={TOKEN_HEADER: TOKEN}) as http:
            return await self.local._try_step(http, self.children)

    @property
    def state(self):
        return tuning_files.load(self.directory).state

    @property
    def warnings(self):
        return [event.text for event in self.events if event.kind == "warning"]


@pytest.fixture
def tuner(tmp_path, children, script):
    return SteppedTuner(tmp_path, children)


def choose(setting):
    return lambda state: msgspec.structs.replace(state, chosen=setting)


async def test_chosen_settings_are_applied_and_saved_for_a_restarted_stage(tuner, children, script):
    talker, codec, _ = children
    script.turns = [choose(CHOSEN)]
    assert await tuner.step() == 2.0
    assert talker.live.base.max_num_seqs == 4
    assert talker.saved == {"generation": 1, "settings": {"max_num_seqs": 4}}
    assert (codec.live.generation, codec.saved) == (0, None), "the codec already has the chosen setting"
    assert tuner.state.chosen == CHOSEN
    await tuner.step()
    assert talker.live.generation == 1


async def test_a_candidate_is_set_temporarily_and_renewed_by_every_step(tuner, children, script):
    talker, codec, gateway = children
    script.turns = [in_trial()]
    for _ in range(2):
        await tuner.step()
        assert (talker.live.current.max_num_seqs, talker.live.base.max_num_seqs) == (2, 4)
        assert (codec.live.current.max_num_seqs, codec.live.base.max_num_seqs) == (8, 1)
        assert min(talker.live.seconds_left, codec.live.seconds_left) > 59
        assert codec.saved is None and talker.saved["settings"] == {"max_num_seqs": 4}, "a restarted one has the base"
        assert gateway.live.seconds_left is None
    script.turns = [in_trial(of_candidate=False)]
    await tuner.step()
    for child, rows in ((talker, 4), (codec, 1)):
        assert (child.live.seconds_left, child.live.current.max_num_seqs) == (None, rows)


async def test_the_gateway_labels_requests_while_they_are_counted(tuner, children, script):
    gateway = children[2]
    script.turns = [in_trial(counting_time=NOW)]
    for _ in range(2):
        await tuner.step()
        assert gateway.live.current.arm == f"{9 + tuner.state.trial.period:x}" and gateway.live.seconds_left > 59
    assert gateway.live.base == GatewaySettings()
    script.turns = [in_trial()]
    await tuner.step()
    assert gateway.live.seconds_left is None and gateway.live.current == GatewaySettings()


async def test_the_evidence_has_the_settings_in_force_and_the_readiness(tuner, children, script):
    await tuner.step()
    assert [(each.name, each.settings["max_num_seqs"]) for each in script.evidence[-1].replicas] == [
        ("talker-0", 1),
        ("codec-0", 1),
    ]
    assert script.evidence[-1].disruption == ""
    children[1].is_ready, children[1].restarts = False, 1
    script.turns = [choose(CANDIDATE)]
    await tuner.step()
    codec = script.evidence[-1].replicas[1]
    assert (codec.ready, codec.restarts, codec.settings) == (False, 1, None)
    assert script.evidence[-1].disruption == "codec-0 is not ready"
    assert children[1].saved["settings"]["max_num_seqs"] == 8, "it starts with the chosen settings"


async def test_settings_are_applied_only_after_the_state_is_saved(tuner, children, script, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    script.turns = [choose(CHOSEN), choose(CHOSEN), choose(CHOSEN)]
    with monkeypatch.context() as patch:
        patch.setattr(tuning_files, "save", full)
        assert await tuner.step() == await tuner.step() == TuningSpec().interval_seconds
    assert children[0].live.base.max_num_seqs == 1
    assert tuner.warnings == ["this evaluation is skipped: OSError: [Errno 28] No space left on device"], (
        "reported once"
    )
    await tuner.step()
    assert children[0].live.base.max_num_seqs == 4


async def test_errors_of_stages_are_reported_without_stopping_the_tuner(tuner, children, script):
    unavailable = httpx.MockTransport(lambda request: httpx.Response(503))
    children[0].transports = lambda: {"http://talker-0": unavailable, "http://settings.talker-0": unavailable}
    await tuner.step()
    assert "talker-0 reports no settings: " in script.evidence[-1].disruption
    script.turns = [choose(INITIAL.with_value(Knob.CODEC_ROWS, 64))]
    await tuner.step()
    (warning,) = tuner.warnings
    assert warning.startswith("codec-0 did not apply its settings: 422: ") and "max_resident" in warning


async def test_a_standby_gets_the_settings_and_is_no_replica(tuner, children, script):
    """It serves only while its replica does not: the model of the pipeline has one talker."""
    standby = FakeChild(Stage.TALKER, TalkerSettings(max_num_seqs=1), standby=True)
    children.append(standby)
    script.turns = [choose(CHOSEN)]
    await tuner.step()
    assert sorted(each.name for each in script.evidence[-1].replicas) == ["codec-0", "talker-0"]
    assert standby.live.base.max_num_seqs == 4
    standby.is_ready = False
    await tuner.step()
    assert not script.evidence[-1].disruption


async def test_an_error_of_the_tuner_is_reported_in_the_state(tuner, children, script):
    def fault(state):
        raise ZeroDivisionError("by chance")

    script.turns = [fault]
    await tuner.step()
    assert "ZeroDivisionError: by chance" in tuner.state.message
    assert any("ZeroDivisionError" in warning for warning in tuner.warnings)


@pytest.mark.parametrize("tuning", [{"mode": "Recommend"}, {"mode": "Auto", "paused": True}])
async def test_recommend_and_paused_apply_nothing(tmp_path, children, script, tuning):
    children[0].live.base = TalkerSettings(max_num_seqs=7)  # Set by a user.
    script.turns = [choose(CHOSEN)]
    tuner = SteppedTuner(tmp_path, children, a_pipeline(**tuning))
    await tuner.step()
    assert [child.live.generation for child in children] == [0, 0, 0]
    assert children[0].live.current.max_num_seqs == 7


def keep(directory, **fields):
    pipeline = a_pipeline()
    state = State(mode="Auto", requested=INITIAL, chosen=CHOSEN, identity=identity_of(pipeline))
    state = msgspec.structs.replace(state, **fields)
    tuning_files.save(directory, tuning_files.TuningMemory(state=state, observed_at=NOW, requested=INITIAL))


def started(directory, pipeline=None):
    tuner = LocalTuner(pipeline or a_pipeline(), directory, lambda event: None)
    return setting_of(resolve(tuner.with_chosen_settings()))


def test_a_restart_continues_with_the_chosen_settings(tmp_path):
    assert started(tmp_path) == INITIAL
    keep(tmp_path)
    assert started(tmp_path) == CHOSEN


def test_an_edit_or_another_machine_starts_with_the_settings_of_the_resource(tmp_path):
    keep(tmp_path)
    edited = msgspec.structs.replace(a_pipeline().spec, talker=TalkerSpec(max_num_seqs=2))
    pipeline = msgspec.structs.replace(a_pipeline(), spec=edited)
    assert started(tmp_path, pipeline).talker_max_num_seqs == 2
    keep(tmp_path, identity=msgspec.structs.replace(identity_of(a_pipeline()), device="another"))
    assert started(tmp_path) == INITIAL


def test_of_a_state_file_that_is_readable_in_part_the_rest_is_kept(tmp_path):
    state = {"mode": "Auto", "phase": "Trial", "message": "", "trialCount": 3, "trial": {"id": 3}}
    own = {"identity": identity_of(a_pipeline()), "requested": INITIAL, "chosen": CHOSEN}
    memory = {"state": state | own, "observedAt": NOW, "requested": INITIAL}
    (tmp_path / tuning_files.STATE_FILE).write_bytes(msgspec.json.encode(memory))
    events = []
    tuner = LocalTuner(a_pipeline(), tmp_path, events.append)
    assert setting_of(resolve(tuner.with_chosen_settings())) == CHOSEN
    (event,) = events
    assert event.kind == "warning" and "is not readable as a whole: " in event.text and "$.state.trial" in event.text
    found = tuning_files.load(tmp_path).state
    assert (found.trial_count, found.trial) == (3, None)


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"state": {"mode": "Sometimes"}}', b"\xff\x00"])
def test_a_damaged_state_file_is_reported_and_tuning_restarts(tmp_path, damage):
    (tmp_path / tuning_files.STATE_FILE).write_bytes(damage)
    events = []
    tuner = LocalTuner(a_pipeline(), tmp_path, events.append)
    assert setting_of(resolve(tuner.with_chosen_settings())) == INITIAL
    (event,) = events
    assert event.kind == "warning" and event.text.startswith("the saved state of tuning is lost")


def test_the_state_file_survives_a_crash_of_its_writer(tmp_path):
    keep(tmp_path)
    before = (tmp_path / tuning_files.STATE_FILE).read_bytes()
    with contextlib.suppress(TypeError):
        tuning_files.save(tmp_path, tuning_files.TuningMemory(state=object(), observed_at=NOW, requested=INITIAL))
    (tmp_path / f".{tuning_files.STATE_FILE}.part").write_bytes(b"half")  # As after SIGKILL during a write.
    assert (tmp_path / tuning_files.STATE_FILE).read_bytes() == before
    assert tuning_files.load(tmp_path).state.chosen == CHOSEN


async def test_decisions_are_emitted_as_events_and_logged(tuner, children, script, tmp_path):
    await tuner.step()
    assert [event.text for event in tuner.events] == ["decided"]
    (file,) = tuning_files.audit_files(tmp_path)
    (line,) = file.read_text().splitlines()
    assert msgspec.json.decode(line)["reason"] == "Turned"
