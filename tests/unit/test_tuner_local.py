"""The tuner beside `syrinx up`, with the stages' own admin servers: what it applies, keeps, and survives."""

import contextlib
from datetime import UTC, datetime

import httpx
import msgspec
import pytest
from prometheus_client import CollectorRegistry

from syrinx_operator.local import tuning_files
from syrinx_operator.local.tuner import LocalTuner, identity_of
from syrinx_operator.resource.knobs import Knob, setting_of
from syrinx_operator.resource.spec import CodecSpec, PipelineSpec, TalkerSpec, TuningSpec, default_pipeline
from syrinx_operator.resource.stage_config import Stage
from syrinx_operator.resource.tuning_status import Period, State, Trial
from syrinx_operator.tuner.decide import Decision, Event
from syrinx_stages.contract.metrics import LIVE_STREAMS, MAX_NUM_SEQS
from syrinx_stages.contract.settings import CodecSettings, TalkerSettings
from syrinx_stages.runtime.admin import create_admin
from syrinx_stages.runtime.metrics import Metrics
from syrinx_stages.runtime.settings import LiveSettings

NOW = datetime(2026, 3, 4, 12, 0, 0, tzinfo=UTC)


def a_pipeline(mode="Auto", **tuning):
    spec = PipelineSpec(
        talker=TalkerSpec(max_num_seqs=1), codec=CodecSpec(max_num_seqs=1), tuning=TuningSpec(mode=mode, **tuning)
    )
    return msgspec.structs.replace(default_pipeline(), spec=spec)


INITIAL = setting_of(a_pipeline().spec)
CHOSEN = INITIAL.with_value(Knob.TALKER_ROWS, 4)
TRIED = CHOSEN.with_value(Knob.CODEC_ROWS, 8)


def trying(state):
    trial = Trial(
        id=1,
        knob=Knob.CODEC_ROWS,
        candidate=TRIED,
        baseline=CHOSEN,
        design="Switchback",
        rationale="why",
        start_time=NOW,
        period_seconds=20,
        period=Period(index=0, start_time=NOW, all_replicas=True),
    )
    return msgspec.structs.replace(state, chosen=CHOSEN, requested=INITIAL, trial=trial)


class SmallStage:
    """What an admin server needs of its stage."""

    def __init__(self, settings):
        self.live = LiveSettings(settings, 0, 32)

    def ready(self):
        return None

    def settings_changed(self):
        pass


class SmallChild:
    """A stage's process, without one."""

    def __init__(self, stage, settings):
        self.stage, self.name = stage, f"{stage}-0"
        self.admin_url = f"http://{self.name}"
        self.restarts, self.is_ready = 0, True
        self.kept = None
        self.small = SmallStage(settings)
        self.live = self.small.live

    def save_settings(self, body):
        self.kept = body

    def transport(self):
        metrics = Metrics(CollectorRegistry())
        if self.stage is Stage.GATEWAY:
            metrics[LIVE_STREAMS].set(0)
        else:
            metrics[MAX_NUM_SEQS].labels(self.stage.value).set(self.live.current.max_num_seqs)
        return httpx.ASGITransport(create_admin(self.small, metrics.registry))


class Script:
    """Decisions in the place of `decide`'s: each turns the state into the next."""

    def __init__(self, monkeypatch):
        self.turns, self.evidence = [], []
        monkeypatch.setattr("syrinx_operator.tuner.runner.decide", self)

    def __call__(self, policy, state, evidence, now):
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
        SmallChild(Stage.TALKER, TalkerSettings(max_num_seqs=1)),
        SmallChild(Stage.CODEC, CodecSettings(max_num_seqs=1)),
        SmallChild(Stage.GATEWAY, TalkerSettings()),
    ]


class Beside:
    """A tuner beside some children, one look at a time."""

    def __init__(self, directory, children, pipeline=None):
        self.told = []
        self.tuner = LocalTuner(pipeline or a_pipeline(), directory, self.told.append)
        self.children = children
        self.directory = directory

    async def look(self):
        mounts = {child.admin_url: child.transport() for child in self.children}
        async with httpx.AsyncClient(mounts=mounts) as http:
            return await self.tuner._try_step(http, self.children)

    @property
    def state(self):
        return tuning_files.load(self.directory).state

    @property
    def warnings(self):
        return [event.text for event in self.told if event.kind == "warning"]


@pytest.fixture
def beside(tmp_path, children, script):
    return Beside(tmp_path, children)


def choose(setting):
    return lambda state: msgspec.structs.replace(state, chosen=setting)


async def test_what_is_chosen_is_in_force_and_what_a_restarted_stage_finds(beside, children, script):
    talker, codec, _ = children
    script.turns = [choose(CHOSEN)]
    assert await beside.look() == 2.0
    assert talker.live.base.max_num_seqs == 4
    assert talker.kept == {"generation": 1, "settings": {"max_num_seqs": 4}}
    assert (codec.live.generation, codec.kept) == (0, None), "what is as wanted is left alone"
    assert beside.state.chosen == CHOSEN
    await beside.look()
    assert talker.live.generation == 1


async def test_a_candidate_is_set_for_a_limited_time_and_renewed_by_every_look(beside, children, script):
    codec = children[1]
    script.turns = [trying]
    for _ in range(2):
        await beside.look()
        assert (codec.live.current.max_num_seqs, codec.live.base.max_num_seqs) == (8, 1)
        assert codec.live.seconds_left > 59
        assert codec.kept is None, "a restarted stage comes up with the base"
    script.turns = [lambda state: msgspec.structs.replace(state, trial=None)]
    await beside.look()
    assert codec.live.seconds_left is None
    assert codec.live.current.max_num_seqs == 1


async def test_the_tuner_sees_what_is_in_force_and_who_is_not_ready(beside, children, script):
    await beside.look()
    assert [(each.name, each.settings["max_num_seqs"]) for each in script.evidence[-1].replicas] == [
        ("talker-0", 1),
        ("codec-0", 1),
    ]
    assert script.evidence[-1].disruption == ""
    children[1].is_ready, children[1].restarts = False, 1
    script.turns = [choose(TRIED)]
    await beside.look()
    codec = script.evidence[-1].replicas[1]
    assert (codec.ready, codec.restarts, codec.settings) == (False, 1, None)
    assert script.evidence[-1].disruption == "codec-0 is not ready"
    assert children[1].kept["settings"]["max_num_seqs"] == 8, "it comes up with what is chosen meanwhile"


async def test_nothing_is_set_before_it_is_remembered(beside, children, script, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    script.turns = [choose(CHOSEN), choose(CHOSEN), choose(CHOSEN)]
    with monkeypatch.context() as patch:
        patch.setattr(tuning_files, "save", full)
        assert await beside.look() == await beside.look() == 30.0
    assert children[0].live.base.max_num_seqs == 1
    assert beside.warnings == ["this evaluation is skipped: OSError: [Errno 28] No space left on device"], "told once"
    await beside.look()
    assert children[0].live.base.max_num_seqs == 4


async def test_what_fails_here_is_told_and_goes_on(beside, children, script):
    children[0].admin_url = "http://nowhere.invalid"
    children[0].transport = lambda: httpx.MockTransport(lambda request: httpx.Response(503))
    await beside.look()
    assert "talker-0 reports no settings: " in script.evidence[-1].disruption
    script.turns = [choose(INITIAL.with_value(Knob.CODEC_ROWS, 64))]
    await beside.look()
    (warning,) = beside.warnings
    assert warning.startswith("codec-0 did not apply its settings: 422: ") and "max_resident" in warning


async def test_a_fault_of_the_tuner_itself_is_in_the_state(beside, children, script):
    def fault(state):
        raise ZeroDivisionError("by chance")

    script.turns = [fault]
    await beside.look()
    assert "ZeroDivisionError: by chance" in beside.state.message
    assert any("ZeroDivisionError" in warning for warning in beside.warnings)


@pytest.mark.parametrize("tuning", [{"mode": "Recommend"}, {"mode": "Auto", "paused": True}])
async def test_in_recommend_and_paused_nothing_is_set(tmp_path, children, script, tuning):
    children[0].live.base = TalkerSettings(max_num_seqs=7)  # By hand.
    script.turns = [choose(CHOSEN)]
    beside = Beside(tmp_path, children, a_pipeline(**tuning))
    await beside.look()
    assert [child.live.generation for child in children] == [0, 0, 0]
    assert children[0].live.current.max_num_seqs == 7


def keep(directory, **fields):
    pipeline = a_pipeline()
    state = State(mode="Auto", requested=INITIAL, chosen=CHOSEN, identity=identity_of(pipeline))
    state = msgspec.structs.replace(state, **fields)
    tuning_files.save(directory, tuning_files.TuningMemory(state=state, observed_at=NOW, requested=INITIAL))


def started(directory, pipeline=None):
    return setting_of(LocalTuner(pipeline or a_pipeline(), directory, lambda event: None).with_chosen_settings().spec)


def test_a_restart_takes_up_what_was_chosen(tmp_path):
    assert started(tmp_path) == INITIAL
    keep(tmp_path)
    assert started(tmp_path) == CHOSEN


def test_an_edit_or_another_machine_starts_with_what_the_resource_asks_for(tmp_path):
    keep(tmp_path)
    edited = msgspec.structs.replace(a_pipeline().spec, talker=TalkerSpec(max_num_seqs=2))
    pipeline = msgspec.structs.replace(a_pipeline(), spec=edited)
    assert started(tmp_path, pipeline).talker_max_num_seqs == 2
    keep(tmp_path, identity=msgspec.structs.replace(identity_of(a_pipeline()), device="another"))
    assert started(tmp_path) == INITIAL


def test_what_was_chosen_for_another_engine_is_no_start(tmp_path):
    keep(tmp_path)
    on_vllm = msgspec.structs.replace(a_pipeline().spec, talker=TalkerSpec(engine="vllm"))
    pipeline = msgspec.structs.replace(a_pipeline(), spec=on_vllm)
    assert started(tmp_path, pipeline) == setting_of(on_vllm)


def test_what_the_resource_no_longer_allows_is_not_taken_up(tmp_path):
    keep(tmp_path)
    smaller = msgspec.structs.replace(a_pipeline().spec, talker=TalkerSpec(max_num_seqs=1, max_resident=2))
    assert started(tmp_path, msgspec.structs.replace(a_pipeline(), spec=smaller)) == INITIAL


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"state": {"mode": "Sometimes"}}', b"\xff\x00"])
def test_a_damaged_memory_is_told_and_tuning_starts_anew(tmp_path, damage):
    (tmp_path / tuning_files.STATE_FILE).write_bytes(damage)
    told = []
    tuner = LocalTuner(a_pipeline(), tmp_path, told.append)
    assert setting_of(tuner.with_chosen_settings().spec) == INITIAL
    (event,) = told
    assert event.kind == "warning" and event.text.startswith("the saved state of tuning is lost")


def test_memory_is_whole_whenever_its_writer_dies(tmp_path):
    keep(tmp_path)
    before = (tmp_path / tuning_files.STATE_FILE).read_bytes()
    with contextlib.suppress(TypeError):
        tuning_files.save(tmp_path, tuning_files.TuningMemory(state=object(), observed_at=NOW, requested=INITIAL))
    (tmp_path / f".{tuning_files.STATE_FILE}.part").write_bytes(b"half")  # What a kill -9 in mid-write leaves.
    assert (tmp_path / tuning_files.STATE_FILE).read_bytes() == before
    assert tuning_files.load(tmp_path).state.chosen == CHOSEN


async def test_decisions_are_told_and_logged(beside, children, script, tmp_path):
    await beside.look()
    assert [event.text for event in beside.told] == ["decided"]
    (file,) = tuning_files.audit_files(tmp_path)
    (line,) = file.read_text().splitlines()
    assert msgspec.json.decode(line)["reason"] == "Turned"
