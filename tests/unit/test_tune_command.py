"""`syrinx tune` on the command line: what it finds, prints, follows and draws, and what it says if it cannot."""

import asyncio
import io
import json
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from rich.console import Console

from syrinx_operator.commands.cli import main
from syrinx_operator.commands.tune.source import Local, TuneError
from syrinx_operator.commands.tune.watch import watch
from syrinx_operator.local import tuning_files
from syrinx_operator.local.running import claim
from syrinx_operator.local.tuning_files import TuningMemory
from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.resource.tuning_status import Counts, PairedTest, Period, State, Stratum, Trial

NOW = datetime(2026, 3, 4, 12, 0, 0, tzinfo=UTC)
INITIAL = Setting(talker_max_num_seqs=1, codec_max_num_seqs=1, chunk_ramp=(2, 2, 4))
STATE = State(mode="Auto", phase="Watching", message="the objectives are met", chosen=INITIAL)
PNG = b"\x89PNG\r\n"


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    return tmp_path / "syrinx"


@pytest.fixture
def up(root):
    """A pipeline named demo that is up, in Auto."""
    with claim(root, "demo") as slot:
        slot.announce("http://127.0.0.1:1", "http://127.0.0.1:1", "Auto")
        yield slot


def keep(slot, state=STATE):
    tuning_files.save(slot.directory, TuningMemory(state=state, observed_at=datetime.now(UTC), requested=INITIAL))


def refusal(capsys, *arguments):
    assert main(["tune", *arguments]) == 1
    return capsys.readouterr().err


def test_it_tells_of_the_pipeline_that_is_up(up, capsys):
    keep(up)
    assert main(["tune"]) == main(["tune", "demo"]) == 0
    assert "pipeline demo (http://127.0.0.1:1): tuning Auto, phase Watching" in capsys.readouterr().out


def test_the_state_is_there_as_json(up, capsys):
    keep(up)
    assert main(["tune", "--json"]) == 0
    assert msgspec.convert(json.loads(capsys.readouterr().out), State) == STATE


def test_what_would_help_is_said(root, capsys):
    assert "no pipeline is up here: start one with `syrinx up`" in refusal(capsys)
    with claim(root, "demo") as slot:
        slot.announce("http://127.0.0.1:1", "http://127.0.0.1:1", "Off")
        assert "demo is not tuned: its spec.tuning.mode is Off" in refusal(capsys)
        assert "no pipeline named other is up here; up: demo" in refusal(capsys, "other")
        slot.announce("http://127.0.0.1:1", "http://127.0.0.1:1", "Auto")
        assert "demo has just started" in refusal(capsys)
        (slot.directory / tuning_files.STATE_FILE).write_text("{")
        assert "tuning.json: " in refusal(capsys)
    assert "which pipeline of namespace speech?" in refusal(capsys, "-n", "speech")
    assert "--trial and --audit belong to --plot" in refusal(capsys, "--trial", "3")


def test_a_cluster_that_is_not_there_is_said(root, capsys, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(root / "none"))
    assert "set KUBECONFIG to a kubeconfig file" in refusal(capsys, "-n", "speech", "demo")


async def test_watching_without_a_terminal_prints_what_changes(up, monkeypatch):
    monkeypatch.setattr("syrinx_operator.commands.tune.watch.SECONDS", 0.01)
    keep(up)
    out = io.StringIO()
    watching = asyncio.create_task(watch(Local(None), Console(file=out, width=200)))
    await until(lambda: "Watching: the objectives are met" in out.getvalue())
    keep(up, msgspec.structs.replace(STATE, phase="Paused", message="as asked for"))
    await until(lambda: "Paused: as asked for" in out.getvalue())
    up.announce("")
    await until(lambda: "no pipeline is up here" in out.getvalue())
    watching.cancel()
    assert len(out.getvalue().splitlines()) == 3


async def test_watching_on_a_terminal_redraws_all_of_it(up, monkeypatch):
    monkeypatch.setattr("syrinx_operator.commands.tune.watch.SECONDS", 0.01)
    keep(up)
    out = io.StringIO()
    watching = asyncio.create_task(watch(Local(None), Console(file=out, width=200, height=40, force_terminal=True)))
    await until(lambda: out.getvalue().count("knobs now") >= 2)
    watching.cancel()


async def test_watching_nothing_says_so_at_once(root):
    with pytest.raises(TuneError, match="no pipeline is up here"):
        await watch(Local(None), Console(file=io.StringIO()))


def audit_lines():
    """Two trials of one pipeline and one of another, with the setting in force after each line."""
    chosen = INITIAL.with_value(Knob.TALKER_ROWS, 4)
    for number, knob, value in ((1, Knob.TALKER_ROWS, 4), (2, Knob.CODEC_ROWS, 8)):
        base = INITIAL if number == 1 else chosen
        since = NOW + timedelta(minutes=10 * number)
        for pairs in range(4):
            cell = Stratum(
                task_type="all",
                candidate=Counts(requests=30 * pairs, good=25 * pairs),
                baseline=Counts(requests=30 * pairs, good=20 * pairs),
                test=PairedTest(pairs=pairs, mean=0.15, mean_square=0.03),
            )
            trial = Trial(
                id=number,
                knob=knob,
                candidate=base.with_value(knob, value),
                baseline=base,
                design="Switchback",
                rationale="why",
                start_time=since,
                period_seconds=20,
                period=Period(index=2 * pairs, start_time=since),
                strata=(cell,),
            )
            reason = ("TrialStarted", "Compared", "Compared", "Promoted" if number == 1 else "RolledBack")[pairs]
            setting = chosen if number == 2 or reason == "Promoted" else INITIAL
            yield {
                "time": since + timedelta(minutes=pairs),
                "pipeline": "speech/demo",
                "reason": reason,
                "message": "words",
                "after": {"base": setting, "candidate": None},
                "data": {"trial": trial},
            }
    yield {"time": NOW, "pipeline": "speech/other", "reason": "Settled", "message": "words"}


def in_front(line):
    return f"INFO {line}"


def as_json(line):
    """As the operator's log is by default."""
    return json.dumps({"message": line, "timestamp": "2026-03-04T12:00:00+00:00", "severity": "info"})


@pytest.fixture(params=[in_front, as_json])
def log(tmp_path, request):
    """What `kubectl logs` prints: the audit's lines among others."""
    file = tmp_path / "log"
    lines = [msgspec.json.encode(line).decode() for line in audit_lines()]
    file.write_text("\n".join(map(request.param, ["something else", "{not json}", *lines])))
    return file


def test_trials_are_drawn_from_the_operators_log(root, log, tmp_path, capsys):
    file = tmp_path / "all.png"
    assert main(["tune", "-n", "speech", "demo", "--audit", str(log), "--plot", str(file)]) == 0
    assert file.read_bytes().startswith(PNG)
    one = tmp_path / "one.png"
    assert main(["tune", "-n", "speech", "demo", "--audit", str(log), "--plot", str(one), "--trial", "2"]) == 0
    assert len(one.read_bytes()) < len(file.read_bytes())


def test_trials_of_a_pipeline_that_was_up_are_drawn_from_its_directory(root, log, tmp_path, capsys):
    with claim(root, "demo") as slot:
        write = tuning_files.audit_log(slot.directory)
        for line in audit_lines():
            write(msgspec.json.encode(line).decode())
    file = tmp_path / "all.png"
    assert main(["tune", "demo", "--plot", str(file)]) == 0
    assert file.read_bytes().startswith(PNG)


def test_what_cannot_be_drawn_is_said(root, up, log, tmp_path, capsys):
    file = str(tmp_path / "x.png")
    assert "nothing was decided yet" in refusal(capsys, "--plot", file)
    assert "no trial 7: there are 1 to 2" in refusal(
        capsys, *("-n", "speech", "demo", "--audit", str(log), "--plot", file, "--trial", "7")
    )
    assert "nothing was decided about speech/third there, only about speech/demo, speech/other" in refusal(
        capsys, *("-n", "speech", "third", "--audit", str(log), "--plot", file)
    )
    assert "no trial was made yet" in refusal(capsys, *("-n", "speech", "other", "--audit", str(log), "--plot", file))
    assert "kubectl logs" in refusal(capsys, "-n", "speech", "demo", "--plot", file)
    assert "nowhere: No such file" in refusal(capsys, "--audit", "nowhere", "--plot", file)


def test_the_log_of_decisions_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning_files, "AUDIT_BYTES", 100)
    write = tuning_files.audit_log(tmp_path)
    for number in range(50):
        write(f"line {number:03}")
    files = tuning_files.audit_files(tmp_path)
    assert sum(file.stat().st_size for file in files) < 250
    text = "".join(file.read_text() for file in files)
    assert text.endswith("line 048\nline 049\n") and text.count("\n") >= 12


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)
