"""The command line with real processes and the bundled voice."""

import json
import os
import re
import socket
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest

from support.up import EXAMPLE, Up, environment, example
from support.waiting import DEADLINE
from syrinx_operator.commands.bench.report import Report, load
from syrinx_operator.commands.cli import main
from syrinx_stages.contract.silence import AUDIBLE_PEAK


def syrinx(state, *arguments, **options):
    command = [sys.executable, "-m", "syrinx_operator", *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, timeout=DEADLINE, env=environment(state), check=False, **options
    )
    return done.returncode, done.stdout, done.stderr.decode()


@pytest.fixture
def here(capfdbinary, tmp_path, monkeypatch):
    """Runs a command that starts no processes within this process, which is faster."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("signal.signal", lambda number, handler: None)

    def run(*arguments, state=tmp_path):
        for name, value in environment(state).items():
            monkeypatch.setenv(name, value)
        try:
            code = main([*map(str, arguments)])
        except SystemExit as leave:
            code = leave.code
        out, stderr = capfdbinary.readouterr()
        return code, out, stderr.decode()

    return run


def read_wav(file):
    with wave.open(str(file)) as audio:
        assert (audio.getnchannels(), audio.getsampwidth(), audio.getframerate()) == (1, 2, 24_000)
        return np.frombuffer(audio.readframes(audio.getnframes()), dtype="<i2").astype(int)


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    with Up(tmp_path_factory.mktemp("state")) as running:
        yield running


def test_say_starts_a_pipeline_if_none_is_running(tmp_path):
    code, _, stderr = syrinx(tmp_path, "say", "The farmer opened the garden gate.", "-o", "out.wav", cwd=tmp_path)
    assert code == 0, stderr
    samples = read_wav(tmp_path / "out.wav")
    assert 1.0 < len(samples) / 24_000 < 5.0
    assert np.abs(samples).max() > 10 * AUDIBLE_PEAK
    summary = re.search(r"out\.wav: ([\d.]+) s of audio, TTFA (\d+) ms, RTF ([\d.]+)", stderr)
    assert float(summary[1]) == pytest.approx(len(samples) / 24_000, abs=0.01)
    assert "redis      stopped" in stderr


def test_up_prints_plain_lines_without_a_terminal(up):
    for name in ("redis", "talker-0", "codec-0", "gateway-0"):
        assert re.search(rf"^{name} +ready after [\d.]+ s at ", up.text, re.MULTILINE)
    assert "\x1b" not in up.text
    assert "pipeline demo: model syrinx-us\n" in up.text
    up.wait_for("logs: ")
    assert max(map(len, up.text.splitlines())) < 200, "no line needs to be read twice"


def test_up_says_where_it_listens_how_to_speak_and_where_the_logs_are(up, tmp_path):
    """The command works as it is printed."""
    up.wait_for("logs: ")
    command = re.search(r"^speak: (.+)$", up.text, re.MULTILINE)[1]
    done = subprocess.run(command, shell=True, cwd=tmp_path, env=environment(up.state), timeout=DEADLINE)
    assert done.returncode == 0
    assert len(read_wav(tmp_path / "speech.wav")) > 24_000
    logs = Path(re.search(r"^logs: +(.+)$", up.text, re.MULTILINE)[1])
    assert {file.name for file in logs.glob("*.log")} == {"talker-0.log", "codec-0.log", "gateway-0.log"}


def test_a_second_pipeline_runs_with_another_name_and_port(up):
    with Up(up.state, None, "--name", "second", "--host", "0.0.0.0") as second:
        assert "pipeline second: " in second.text and second.url != up.url
        assert (
            "gateway    the API listens at 0.0.0.0 without API keys: everyone who reaches it can use it" in second.text
        )
        inspected = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
        listening = {local for _, local, _, state, *_ in inspected if state == "0A"}
        assert f"00000000:{int(second.url.rpartition(':')[2]):04X}" in listening


def test_say_uses_the_running_pipeline_and_the_seed(up, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        code, _, stderr = syrinx(up.state, "say", "Good morning.", "-o", tmp_path / f"{name}.wav", "--seed", seed)
        assert code == 0, stderr
        assert "ready" not in stderr, "nothing was started"
    a, b, c = ((tmp_path / f"{name}.wav").read_bytes() for name in "abc")
    assert a == b != c


def test_say_streams_raw_audio_to_standard_output(up, tmp_path):
    code, audio, stderr = syrinx(up.state, "say", "Come in.", "-o", "-", "--stream", "--url", up.url, "--seed", 5)
    assert code == 0, stderr
    assert len(audio) > 24_000
    syrinx(up.state, "say", "Come in.", "-o", tmp_path / "whole.wav", "--seed", 5)
    assert np.array_equal(np.frombuffer(audio, dtype="<i2"), read_wav(tmp_path / "whole.wav"))


@pytest.mark.parametrize("form", ["{0}/", "{0}/v1", "{0}/v1/", "127.0.0.1:{1}", " {0}\n"])
def test_say_accepts_urls_as_people_write_them(up, here, tmp_path, form):
    code, _, stderr = here("say", "Come in.", "--url", form.format(up.url, up.url.rpartition(":")[2]), state=up.state)
    assert code == 0, stderr
    assert len(read_wav(tmp_path / "speech.wav")) > 12_000


def test_say_finds_the_format_in_any_spelling(up, here, tmp_path):
    for arguments in (["-o", "a.ogg"], ["-o", "b.WAVE"], ["-o", "c", "--format", "OPUS"]):
        code, _, stderr = here("say", "Come in.", *arguments, state=up.state)
        assert code == 0, stderr
    found = [(tmp_path / name).read_bytes()[:4] for name in ("a.ogg", "b.WAVE", "c")]
    assert found == [b"OggS", b"RIFF", b"OggS"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hello", "--voice", "nobody"], "'nobody' is unknown; accepted: us, "),
        (["hello", "--language", "Klingon"], "language"),
        (["   "], "input: is empty"),
        (["hello", "-o", "x.txt"], "unknown format; use the extension .wav"),
        (["hello", "-o", "x.mp3", "--stream"], "--stream writes wav or pcm, not mp3; use one of them"),
        (["hello", "-o", "-", "--stream", "--format", "wav"], "use --format pcm"),
        (["hello", "-o", "/no/such/folder/x.wav"], "cannot write /no/such/folder/x.wav"),
        (["hello", "-o", "/no/such/folder/x.wav", "--stream"], "cannot write /no/such/folder/x.wav"),
        (["hello", "-o", "/dev/full", "--format", "wav", "--stream"], "cannot write /dev/full"),
        (["hell\udcf6"], "text: character 5 is not UTF-8"),
        (["hello", "--voice", "\udcf6"], "voice: character 1 is not UTF-8"),
        (["hello", "--url", "http://127.0.0.1:1"], "cannot connect to http://127.0.0.1:1"),
        (
            ["hello", "--url", "h:port"],
            "http://h:port is not the URL of a gateway; an example is http://127.0.0.1:8000",
        ),
        (["hello", "--url", "ftp://h"], "ftp://h is not the URL of a gateway"),
        (["hello", "--file", "/no/such/file.yaml"], "/no/such/file.yaml: No such file"),
    ],
)
def test_errors_of_say_are_one_line(up, here, arguments, message):
    code, _, stderr = here("say", *arguments, state=up.state)
    assert (code, message in stderr) == (1, True), stderr
    assert stderr.startswith("syrinx say: ") and "Traceback" not in stderr


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_bench_checks_that_files_are_writable_before_it_measures(here, tmp_path, option):
    (tmp_path / "file").touch()
    code, _, stderr = here("bench", "--url", "http://127.0.0.1:1", option, tmp_path / "file" / "x")
    assert code == 1
    assert stderr.startswith(f"syrinx bench: cannot write {tmp_path}/file/x: ")


def test_up_reports_an_unwritable_state_directory(here, tmp_path):
    (tmp_path / "file").touch()
    code, _, stderr = here("up", EXAMPLE, state=tmp_path / "file")
    assert code == 1 and "cannot write logs to" in stderr and "set XDG_STATE_HOME" in stderr, stderr


def test_a_running_pipeline_cannot_be_started_twice(up, here):
    code, _, stderr = here("up", EXAMPLE, state=up.state)
    assert code == 1
    running = f"a pipeline named demo is already running: process {up.process.pid} serves {up.url}"
    assert f"{running}; run another one with --name OTHER --port 0 (any free port)" in stderr


@pytest.mark.smoke
@pytest.mark.parametrize("replicas", [1, 2])
def test_an_occupied_port_is_noticed_before_anything_starts(here, tmp_path, replicas):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, stderr = here("up", example(tmp_path, port=port, replicas=replicas))
    advice = "choose another port with --port (0: any free one)"
    assert code == 1
    assert stderr == f"syrinx up: cannot listen on 127.0.0.1:{port}: Address already in use; {advice}\n"
    assert out.decode() == "pipeline demo: model syrinx-us\n"


@pytest.mark.smoke
def test_an_address_of_another_machine_is_refused(here):
    code, _, stderr = here("up", "--host", "192.0.2.1")
    assert code == 1
    assert "cannot listen on 192.0.2.1:8000: Cannot assign requested address; --host takes an address of" in stderr


def test_bench_writes_its_table_file_and_plot(up, here, tmp_path):
    results = ["--json", tmp_path / "r.json", "--plot", tmp_path / "r.png"]
    load_options = ["--concurrency", "1,2", "--rate", "2", "--requests", "2", "--warmup", "1"]
    code, table, stderr = syrinx(up.state, "bench", "--url", up.url, *load_options, *results)
    assert code == 0, stderr
    report = load(tmp_path / "r.json", Report)
    measured = [(point.loop, point.load, point.requests) for point in report.points]
    assert measured == [("closed", 1, 2), ("closed", 2, 2), ("open", 2, 2)]
    for point in report.points:
        assert not point.errors
        assert point.ttfa.p50 >= point.first_playable.p50 * 0.999
        assert point.audio_seconds > 1
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    text = table.decode()
    assert "TTFA" in text and "2 req/s" in text
    assert "\x1b" not in text and "…" not in text, "no number is cut"
    raw = (tmp_path / "r.json").read_text()
    assert not any(secret in raw for secret in (str(tmp_path), up.url, os.uname().nodename)), "paths or hosts"
    code, markdown, _ = here("bench", "--table", tmp_path / "r.json")
    rows = markdown.decode().splitlines()
    assert code == 0
    assert [cell.strip() for cell in rows[0].split("|")[1:3]] == ["load", "requests"]
    assert [row.split("|")[1].strip() for row in rows[2:5]] == ["1 concurrent", "2 concurrent", "2 req/s"]


def test_check_reports_all_problems_and_its_status(here, tmp_path):
    code, out, _ = here("check", EXAMPLE)
    assert (code, out.decode()) == (0, f"{EXAMPLE}: TTSPipeline demo is valid\n")
    file = tmp_path / "bad.yaml"
    file.write_text(EXAMPLE.read_text().replace("maxNumSeqs: 8", "maxNumSeq: 8"))
    code, out, _ = here("check", EXAMPLE, file)
    lines = out.decode().splitlines()
    assert code == 1
    assert [line.partition("bad.yaml")[2] for line in lines[1:]] == [
        ":16:5: spec.talker.maxNumSeq: unknown field; did you mean maxNumSeqs?",
        ":21:5: spec.codec.maxNumSeq: unknown field; did you mean maxNumSeqs?",
    ]
    assert syrinx(tmp_path, "check", "-", input=b"kind: Pod")[0] == 1


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "sing",
        "bench --rate 0",
        "bench --concurrency 1,x",
        "bench --requests 3 --duration 1",
        "bench --warmup -1",
        "up f --port 70000",
        "up --name Demo",
        "up --name ../demo",
    ],
)
def test_usage_errors_exit_with_status_2(here, arguments):
    code, _, stderr = here(*arguments.split())
    assert code == 2 and "usage: syrinx" in stderr


def test_an_invalid_report_is_refused(here, tmp_path):
    (tmp_path / "x.json").write_text(json.dumps({"points": 3}))
    code, _, stderr = here("bench", "--table", tmp_path / "x.json")
    assert code == 1 and "not a bench report" in stderr
