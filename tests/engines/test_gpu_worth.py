"""The benchmark of each technique: engines in Triton's interpreter, switches, result file and report."""

import support.interpreter  # noqa: F401, I001 (before any kernel)

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from msgspec import structs
from support import small_codec, small_talker

from gpu import ablated_engines, codec, report, talker, worth
from gpu.ablation import AUDIO, Effect, WorthRun, tables
from gpu.gathered import gather, summary
from gpu.switched import SWITCHES
from syrinx_operator.local.machine import Machine
from syrinx_stages.codec import service as codec_service
from syrinx_stages.scheduling.codec_rows import Row as CodecRow
from syrinx_stages.scheduling.codec_rows import Rows as CodecRows
from syrinx_stages.contract.settings import CodecSettings
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.talker import service as talker_service
from syrinx_stages.talker.cuda.engine import CudaTalkerEngine
from syrinx_stages.scheduling.talker import Row as TalkerRow

pytestmark = pytest.mark.bench

MACHINE = Machine(cpu="a processor", cores=16, memory_gib=128, system="Linux", python="3.12", packages={})


@pytest.fixture(autouse=True)
def short_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talker, "PROMPT", 8)


@pytest.fixture
def switched() -> Iterator[None]:
    """Undoes the switches."""
    yield
    patch.stopall()


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> talker.Rig:
    rig = talker.Rig(Checkpoint(str(small_talker.write(tmp_path_factory.mktemp("talker")))), (1,))
    with patch.object(talker, "PROMPT", 8):
        rig.engine.warm_up()
    return rig


def test_talker_techniques_are_switched_off_and_on_again(rig: talker.Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("WARM", 0), ("FRAMES", 2), ("ROUNDS", 1)):
        monkeypatch.setattr(ablated_engines, name, value)
    before = dict(rig.engine.runner.frames)
    effects = list(ablated_engines.talker_effects(rig))
    assert [(each.technique, each.load) for each in effects] == [
        (name, "talker, 1 rows") for name in ablated_engines.TALKER
    ]
    assert all(each.on > 0 and each.off > 0 for each in effects)
    assert rig.engine.runner.frames == before and rig.engine.depth == 2


@torch.inference_mode()
def test_codes_are_the_same_without_a_technique(rig: talker.Rig) -> None:
    [request] = rig.requests(1)

    def codes(off: AbstractContextManager[None]) -> list[object]:
        ids = rig.admit([request])
        with off:
            generated = [rig.engine.read(rig.engine.launch(ids))[ids[0]] for _ in range(2)]
        rig.release(ids)
        return generated

    expected = codes(nullcontext())
    for technique in ("queued-step", "one-replay"):
        assert codes(ablated_engines.TALKER[technique](rig, 1)) == expected, technique


def test_codec_techniques_and_the_state_that_a_call_leaves_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablated_engines, "REPEATS", 1)
    rig = codec.Rig(small_codec.random_decoder(), torch.float32, 2, "cpu")
    for request in rig.ids:
        rig.engine.open(request)
    effects = list(ablated_engines.codec_effects(rig, (2,)))
    assert [(each.technique, each.load) for each in effects] == [
        (name, "codec, 2 rows") for name in ("captured-shapes", "device-state", "codec-batching")
    ]
    assert all(each.on > 0 and each.off > 0 for each in effects)
    state = ablated_engines._HostState(rig, 2)
    kept = rig.engine.states.tails.clone()
    rig.engine.states.tails.fill_(torch.nan)
    state.upload()
    assert torch.equal(rig.engine.states.tails, kept)


def codec_row(name: str, accepted_at: float, first_audio_at: float) -> CodecRow:
    now = time.monotonic()
    return CodecRow(
        id=name,
        accepted_at=accepted_at,
        live=True,
        pending=12,
        first_codes_at=now,
        codes_at=now,
        decoded=24,
        first_audio_at=first_audio_at,
    )


def codec_call(rows: list[CodecRow], captured: tuple[tuple[int, int], ...] = ((1, 12), (2, 12))) -> tuple[str, ...]:
    settings = CodecSettings(max_num_seqs=2, chunk_ramp=(12,), capture_pairs=captured)
    call = vars(codec_service)["schedule"](CodecRows(rows), 100.0, settings, captured, 36).call
    assert call is not None
    return call.ids


@pytest.mark.usefixtures("switched")
def test_the_codec_without_batching_decodes_one_request_a_call() -> None:
    rows = [codec_row("late", 1.0, 99.0), codec_row("early", 2.0, 98.0)]
    assert codec_call(rows) == ("early", "late")
    SWITCHES["codec-batching"]()
    assert codec_call(rows) == ("early",)


@pytest.mark.usefixtures("switched")
def test_without_deadlines_the_older_request_goes_first() -> None:
    rows = [codec_row("late", 1.0, 99.0), codec_row("early", 2.0, 98.0)]
    streams = [
        TalkerRow(id=name, accepted_at=at, live=True, produced=5, first_frame_at=begun, last_feedback_at=99.0)
        for name, at, begun in (("old", 1.0, 99.0), ("urgent", 2.0, 98.0))
    ]

    def talker_rows() -> list[str]:
        return vars(talker_service)["schedule"](streams, 100.0, 1, 8.0).ids

    assert (talker_rows(), codec_call(rows)) == (["urgent"], ("early", "late"))
    SWITCHES["deadline-order"]()
    assert (talker_rows(), codec_call(rows)) == (["old"], ("late", "early"))


@pytest.mark.usefixtures("switched")
def test_without_queued_steps_a_step_waits_for_all_its_work(rig: talker.Rig) -> None:
    SWITCHES["queued-step"]()
    assert CudaTalkerEngine.depth == 1
    ids = rig.admit(rig.requests(1))
    with patch.object(
        rig.engine.runner.recorder, "record_event", wraps=rig.engine.runner.recorder.record_event
    ) as made:
        rig.engine.read(rig.engine.launch(ids))
    # The upload's, the codes', and that of the whole step.
    assert made.call_count == 3


def a_run() -> WorthRun:
    return WorthRun(
        created="2026-11-26",
        command="python -m gpu.worth",
        revision="abc",
        machine=MACHINE,
        gpu="NVIDIA H200",
        driver="580",
        model="1.7B, random weights",
    )


def test_results_continue_those_of_the_same_machine_and_reach_the_report(tmp_path: Path) -> None:
    file = tmp_path / "h200_worth.json"
    first = worth.Results(file, a_run())
    frame = Effect(technique="one-replay", load="talker, 1 rows", figure="ms per frame", on=2.0, off=3.0)
    first.add([frame])
    second = worth.Results(file, a_run())
    audio = Effect(technique="codec-batching", load="8 clients", figure=AUDIO, on=200.0, off=100.0)
    second.add([structs.replace(frame, off=4.0), audio])
    second.close(["change-feed"])
    gathered = gather(tmp_path, "h200")
    assert gathered.worth is not None and not gathered.worth.complete
    assert [each.gain for each in gathered.worth.effects] == [2.0, 2.0]
    text = " ".join(report.report(gathered, summary(gathered), [], "").split())
    assert "| 8 clients | audio s/s | 200 | 100 | 2.00x |" in text
    assert "vllm-omni #3322" in text and "Not measured in the time: a reader follows" in text
    assert "sglang-omni #1997" not in tables(gathered.worth)
    other = worth.Results(file, structs.replace(a_run(), revision="def"))
    assert other.run.effects == ()
