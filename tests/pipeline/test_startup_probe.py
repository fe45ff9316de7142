"""The startup probe of a planned pod, against real stages: one command that ends when they are ready."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from support.cluster_plan import pipeline, planned, pod_template
from support.process import StageProcess
from support.waiting import DEADLINE
from syrinx_operator.cluster.objects.names import COLOCATED, OWN
from syrinx_stages.connector.server import RedisServer
from syrinx_stages.contract.stages import WORKERS, Stage


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def command(stage: Stage, *files: Path, **spec: object) -> list[str]:
    """Returns the command of the probe of a planned pod, with these start configurations."""
    subject = pipeline(spec)
    (container,) = pod_template(planned(subject), subject, stage)["spec"]["containers"]
    translated = {"python": sys.executable}
    translated |= dict(zip([OWN.start_file, COLOCATED.start_file], map(str, files), strict=False))
    return [translated.get(each, each) for each in container["startupProbe"]["exec"]["command"]]


class Probe:
    """A running probe."""

    def __init__(self, words: list[str]) -> None:
        self._process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)

    def result(self) -> tuple[int, str]:
        """Waits for its end; returns the exit status and what the kubelet repeats."""
        _, errors = self._process.communicate(timeout=DEADLINE)
        return self._process.returncode, errors

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def probed(process: StageProcess, file: Path) -> Path:
    """Waits for a process that chose its port; returns its start configuration with it, as a pod's has it."""
    port = urlsplit(process.started().line["admin_url"]).port
    named = file.with_suffix(".probed.json")
    named.write_text(json.dumps(json.loads(file.read_text()) | {"admin_port": port}))
    return named


def hurried(words: list[str]) -> list[str]:
    """Returns the command without patience: with 0 in place of its seconds."""
    module = words.index("-m") + 1
    return [*words[: module + 2], "0", *words[module + 3 :]]


def test_the_probe_of_a_gateway_waits_for_the_other_stages(tmp_path: Path, redis: RedisServer) -> None:
    with contextlib.ExitStack() as running:

        def start(stage: Stage) -> Path:
            process = running.enter_context(StageProcess(stage, tmp_path, redis, host=""))
            return probed(process, tmp_path / f"{stage}.json")

        gateway = start(Stage.GATEWAY)
        probe = running.enter_context(Probe(command(Stage.GATEWAY, gateway)))
        # It waits for them without a limit, as long as it answers.
        unlimited = running.enter_context(Probe(hurried(command(Stage.GATEWAY, gateway))))
        for stage in WORKERS:
            with Probe(command(stage, start(stage))) as other:
                assert other.result() == (0, "")
        assert probe.result() == unlimited.result() == (0, "")


def test_the_probe_of_a_gateway_that_does_not_answer_fails(tmp_path: Path, redis: RedisServer) -> None:
    with StageProcess("gateway", tmp_path, redis) as gateway:
        file = probed(gateway, tmp_path / "gateway.json")
        gateway.process.send_signal(signal.SIGSTOP)
        with Probe(hurried(command(Stage.GATEWAY, file))) as probe:
            assert probe.result() == (1, "not ready after 0 s: no answer\n")


def test_a_probe_that_fails_says_what_the_stage_waits_for(tmp_path: Path, redis: RedisServer) -> None:
    fifo = tmp_path / "model"
    fifo.mkdir()
    os.mkfifo(fifo / "config.json")
    with StageProcess("talker", tmp_path, redis, model=str(fifo)) as talker:
        file = probed(talker, tmp_path / "talker.json")
        with Probe(hurried(command(Stage.TALKER, file))) as probe:
            assert probe.result() == (1, "not ready after 0 s: loading the model\n")


def test_the_probe_of_a_pod_with_two_stages_waits_for_both(tmp_path: Path, redis: RedisServer) -> None:
    with StageProcess("talker", tmp_path, redis) as talker, StageProcess("codec", tmp_path, redis) as codec:
        files = [probed(talker, tmp_path / "talker.json"), probed(codec, tmp_path / "codec.json")]
        words = command(Stage.TALKER, *files, topology="Colocated")
        assert words[-2:] == [*map(str, files)]
        talker.ready()
        codec.process.send_signal(signal.SIGSTOP)
        with Probe(hurried(words)) as probe:
            assert probe.result() == (1, "not ready after 0 s: no answer\n")
