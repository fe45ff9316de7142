"""The command `syrinx tune`: sources, output formats, live view, plots, and error messages."""

import asyncio
import copy
import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from support.waiting import until
from syrinx_operator.commands.cli import main
from syrinx_operator.commands.tune.command import read_view, watch
from syrinx_operator.commands.tune.plot import read_audit
from syrinx_operator.commands.tune.view import TuneError
from syrinx_operator.local import tuning_files
from syrinx_operator.local.running import claim
from syrinx_operator.local.tuning_files import TuningMemory
from syrinx_operator.resource.knobs import Setting
from syrinx_operator.resource.spec import default_pipeline
from syrinx_operator.resource.state.tuning_status import State

NOW = datetime(2026, 3, 4, 12, 0, 0, tzinfo=UTC)
INITIAL = Setting(talker_max_num_seqs=1, codec_max_num_seqs=1, chunk_ramp=(2, 2, 4))
STATE = State(mode="Auto", phase="Watching", message="the objectives are met", chosen=INITIAL)
RECORDED = Path(__file__).parents[1] / "fixtures" / "tuning"
"""The tuner's state and log after 40 minutes of a simulated pipeline."""
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
        slot.announce("http://127.0.0.1:1", ("http://127.0.0.1:1",), "Auto")
        yield slot


def keep(slot, state=STATE):
    tuning_files.save(slot.directory, TuningMemory(state=state, observed_at=datetime.now(UTC), requested=INITIAL))


async def read_local():
    return await read_view(None, None)


def refusal(capsys, *arguments):
    assert main(["tune", *arguments]) == 1
    return capsys.readouterr().err


def test_shows_the_running_pipeline(up, capsys):
    keep(up)
    assert main(["tune"]) == main(["tune", "demo"]) == 0
    assert "pipeline demo (http://127.0.0.1:1): tuning Auto, phase Watching" in capsys.readouterr().out


def test_prints_the_state_as_json(up, capsys):
    keep(up)
    assert main(["tune", "--json"]) == 0
    assert msgspec.convert(json.loads(capsys.readouterr().out), State) == STATE


def test_answers_what_if(up, capsys):
    keep(up, msgspec.json.decode((RECORDED / "state.json").read_bytes(), type=State))
    assert "the resource of demo cannot be read" in refusal(capsys, "--what-if", "rate=1,mix=Base:1")
    tuning_files.save_resource(up.directory, default_pipeline())
    assert main(["tune", "--what-if", "rate=10,mix=CustomVoice:1,talkers=2,frames=40"]) == 0
    shown = capsys.readouterr().out
    assert "10 requests/s (CustomVoice 100%), Poisson arrivals, 40 frames (3.2 s) of audio a request\n" in shown
    assert "talkers: 2, codecs: 1\n" in shown and "served well" in shown
    assert "--what-if: rate: 'x' is not a number above 0" in refusal(capsys, "--what-if", "rate=x")


def test_errors_name_a_remedy(root, capsys):
    assert "no local pipeline is running: run `syrinx up`" in refusal(capsys)
    with claim(root, "demo") as slot:
        slot.announce("http://127.0.0.1:1", ("http://127.0.0.1:1",), "Off")
        assert "demo is not tuned: its spec.tuning.mode is Off" in refusal(capsys)
        assert "no local pipeline named other is running; running: demo" in refusal(capsys, "other")
        slot.announce("http://127.0.0.1:1", ("http://127.0.0.1:1",), "Auto")
        assert "demo has just started" in refusal(capsys)
        (slot.directory / tuning_files.STATE_FILE).write_text("{")
        assert "tuning.json: " in refusal(capsys)
    assert "--trial and --audit require --plot" in refusal(capsys, "--trial", "3")


def test_reports_a_missing_cluster_configuration(root, capsys, monkeypatch):
    # The client reads KUBECONFIG when it is imported: a developer's may name a cluster.
    location = "kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
    monkeypatch.setattr(location, str(root / "none"))
    assert "set KUBECONFIG to a kubeconfig file" in refusal(capsys, "-n", "speech", "demo")


@pytest.mark.virtual
async def test_watch_without_a_terminal_prints_changes(up):
    keep(up)
    out = io.StringIO()
    watching = asyncio.create_task(watch(read_local, Console(file=out, width=200)))
    await until(lambda: "Watching: the objectives are met" in out.getvalue(), "it is printed")
    keep(up, msgspec.structs.replace(STATE, phase="Paused", message="by request"))
    await until(lambda: "Paused: by request" in out.getvalue(), "it is printed")
    up.announce("")
    await until(lambda: "no local pipeline is running" in out.getvalue(), "it is printed")
    watching.cancel()
    assert len(out.getvalue().splitlines()) == 3


@pytest.mark.virtual
async def test_watch_on_a_terminal_redraws_the_view(up):
    keep(up)
    out = io.StringIO()
    watching = asyncio.create_task(watch(read_local, Console(file=out, width=200, height=40, force_terminal=True)))
    await until(lambda: out.getvalue().count("settings in force") >= 2, "it is printed")
    watching.cancel()


async def test_watch_fails_at_once_without_a_pipeline(root):
    with pytest.raises(TuneError, match="no local pipeline is running"):
        await watch(read_local, Console(file=io.StringIO()))


def audit_lines():
    """Entries of a recorded pipeline with one trial, the same again as trial 2, and of another pipeline."""
    recorded = [json.loads(line) for line in (RECORDED / "audit.jsonl").read_text().splitlines()]
    for number in (1, 2):
        for line in copy.deepcopy(recorded):
            line["pipeline"] = "speech/demo"
            if trial := line["data"].get("trial"):
                trial["id"] = number
                trial["startTime"] = (datetime.fromisoformat(trial["startTime"]) + timedelta(days=number)).isoformat()
            line["time"] = (datetime.fromisoformat(line["time"]) + timedelta(days=number)).isoformat()
            yield line
    yield {"time": NOW, "pipeline": "speech/other", "reason": "Settled", "message": "words"}


def prefixed(line):
    return f"INFO {line}"


def as_json(line):
    """The default format of the operator's log."""
    return json.dumps({"message": line, "timestamp": "2026-03-04T12:00:00+00:00", "severity": "info"})


def write_log(folder, formatted=prefixed):
    """Writes what `kubectl logs` shows, audit entries among other lines, and returns its file."""
    file = folder / "log"
    lines = [msgspec.json.encode(line).decode() for line in audit_lines()]
    file.write_text("\n".join(map(formatted, ["something else", "{not json}", *lines])))
    return file


@pytest.fixture
def log(tmp_path):
    return write_log(tmp_path)


def test_both_formats_of_the_operators_log_have_the_same_entries(tmp_path):
    found = [read_audit([write_log(tmp_path, each)], "speech/demo") for each in (prefixed, as_json)]
    assert found[0] == found[1] != []


def test_plots_trials_from_the_operators_log(root, log, tmp_path):
    file = tmp_path / "all.png"
    assert main(["tune", "-n", "speech", "demo", "--audit", str(log), "--plot", str(file)]) == 0
    assert file.read_bytes().startswith(PNG)
    one = tmp_path / "one.png"
    assert main(["tune", "-n", "speech", "demo", "--audit", str(log), "--plot", str(one), "--trial", "2"]) == 0
    assert len(one.read_bytes()) < len(file.read_bytes())


def test_reports_entries_that_cannot_be_plotted(root, up, log, tmp_path, capsys):
    file = str(tmp_path / "x.png")
    assert "the log has no decisions yet" in refusal(capsys, "--plot", file)
    assert "no trial 7: the log has 1 to 2" in refusal(
        capsys, *("-n", "speech", "demo", "--audit", str(log), "--plot", file, "--trial", "7")
    )
    assert "the log has no decisions about speech/third, only about speech/demo, speech/other" in refusal(
        capsys, *("-n", "speech", "third", "--audit", str(log), "--plot", file)
    )
    assert "the log has no trials yet" in refusal(
        capsys, *("-n", "speech", "other", "--audit", str(log), "--plot", file)
    )
    assert "kubectl logs" in refusal(capsys, "-n", "speech", "demo", "--plot", file)
    assert "nowhere: No such file" in refusal(capsys, "--audit", "nowhere", "--plot", file)


def test_audit_log_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning_files, "AUDIT_BYTES", 100)
    write = tuning_files.audit_log(tmp_path)
    for number in range(50):
        write(f"line {number:03}")
    files = tuning_files.audit_files(tmp_path)
    assert sum(file.stat().st_size for file in files) < 250
    text = "".join(file.read_text() for file in files)
    assert text.endswith("line 048\nline 049\n") and text.count("\n") >= 12
