"""The startup probe of a planned pod, against real stages: one command that ends when they are ready."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cluster_plan import pipeline, planned, pod_template
from support.process import StageProcess
from support.waiting import DEADLINE
from syrinx_operator.cluster.objects.names import COLOCATED, OWN
from syrinx_stages.connector.server import RedisServer, free_port
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


def hurried(words: list[str]) -> list[str]:
    """Returns the command without patience: with 0 in place of its seconds."""
    module = words.index("-m") + 1
    return [*words[: module + 2], "0", *words[module + 3 :]]


def test_the_probe_of_a_gateway_waits_for_the_other_stages(tmp_path: Path, redis: RedisServer) -> None:
    files = {stage: tmp_path / f"{stage}.json" for stage in Stage}
    with contextlib.ExitStack() as running:

        def start(stage: Stage) -> StageProcess:
            process = StageProcess(stage, tmp_path, redis, admin_port=free_port(), host="")
            return running.enter_context(process)

        gateway = start(Stage.GATEWAY)
        probe = running.enter_context(Probe(command(Stage.GATEWAY, files[Stage.GATEWAY])))
        gateway.started()
        # It waits for them without a limit, as long as it answers.
        unlimited = running.enter_context(Probe(hurried(command(Stage.GATEWAY, files[Stage.GATEWAY]))))
        for stage in WORKERS:
            start(stage)
            with Probe(command(stage, files[stage])) as other:
                assert other.result() == (0, "")
        assert probe.result() == unlimited.result() == (0, "")


@pytest.mark.parametrize("stage", Stage)
def test_the_probe_of_a_stage_that_does_not_answer_fails(tmp_path: Path, redis: RedisServer, stage: Stage) -> None:
    with StageProcess(stage, tmp_path, redis, admin_port=free_port()) as process:
        process.process.kill()
        with Probe(hurried(command(stage, tmp_path / f"{stage}.json"))) as probe:
            assert probe.result() == (1, "not ready after 0 s: no answer\n")


def test_a_probe_that_fails_says_what_the_stage_waits_for(tmp_path: Path, redis: RedisServer) -> None:
    fifo = tmp_path / "model"
    fifo.mkdir()
    os.mkfifo(fifo / "config.json")
    with (
        StageProcess("talker", tmp_path, redis, admin_port=free_port(), model=str(fifo)).started(),
        Probe(hurried(command(Stage.TALKER, tmp_path / "talker.json"))) as probe,
    ):
        assert probe.result() == (1, "not ready after 0 s: loading the model\n")


def test_the_probe_of_a_pod_with_two_stages_waits_for_both(tmp_path: Path, redis: RedisServer) -> None:
    files = [tmp_path / f"{stage}.json" for stage in WORKERS]
    words = command(Stage.TALKER, *files, topology="Colocated")
    assert words[-2:] == [*map(str, files)]
    with (
        StageProcess("talker", tmp_path, redis, admin_port=free_port()).started().ready(),
        StageProcess("codec", tmp_path, redis, admin_port=free_port()) as codec,
    ):
        codec.process.kill()
        with Probe(hurried(words)) as probe:
            assert probe.result() == (1, "not ready after 0 s: no answer\n")
