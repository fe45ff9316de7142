"""Ctrl-C of `syrinx up`, with real processes and requests in progress."""

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.up import Up, alive, environment
from support.waiting import DEADLINE

TEXT = "We walked along the beach on a warm day."
FORMATS: dict[str, dict[str, Any]] = {
    "raw": {"stream": True},
    "sse": {"stream_format": "sse"},
    "whole": {"stream": False},
}


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Up]:
    with Up(tmp_path) as it:
        yield it


class Request:
    """A request in a thread of its own."""

    def __init__(self, url: str, text: str, fields: dict[str, Any]) -> None:
        self.first = threading.Event()
        """Set when the first audio arrived, or at the end."""
        self.status = 0
        self.body = bytearray()
        self.result: Future[None] = Future()
        """Fails if the transfer was incomplete."""
        body = {"input": text, "voice": "us", "seed": 1, "response_format": "pcm", **fields}
        threading.Thread(target=self._run, args=(f"{url}/v1/audio/speech", body), daemon=True).start()

    def _run(self, url: str, body: dict[str, Any]) -> None:
        try:
            with httpx.stream("POST", url, json=body, timeout=DEADLINE, trust_env=False) as response:
                self.status = response.status_code
                for piece in response.iter_raw():
                    self.body += piece
                    self.first.set()
            self.result.set_result(None)
        except httpx.HTTPError as error:
            self.result.set_exception(error)
        finally:
            self.first.set()

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(block.removeprefix("data: ")) for block in self.body.decode().split("\n\n") if block]


def send(url: str, text: str) -> dict[str, Request]:
    """Sends one request in each format; returns when the streams have begun."""
    requests = {name: Request(url, text, fields) for name, fields in FORMATS.items()}
    for name in ("raw", "sse"):
        assert requests[name].first.wait(DEADLINE)
    return requests


@pytest.mark.smoke
def test_ctrl_c_finishes_requests_and_stops_all_processes(running: Up, tmp_path: Path) -> None:
    pids = running.pids()
    assert len(pids) == 4
    requests = send(running.url, TEXT)
    running.process.send_signal(signal.SIGINT)
    running.wait_for("gateway-0 +draining")
    for request in requests.values():
        request.result.result(DEADLINE)
        assert request.status == 200
    assert len(requests["raw"].body) > 1.5 * 48_000, "the sentence was finished"
    assert requests["raw"].body == requests["whole"].body
    assert requests["sse"].events[-1]["type"] == "speech.audio.done"
    assert running.process.wait(DEADLINE) == 0
    assert not any(map(alive, pids))
    order = [
        f"{name:<10} {event}" for name in ("gateway-0", "talker-0", "codec-0") for event in ("draining", "stopped")
    ]
    assert re.search(r"(?s)" + ".*".join([*order, "redis +stopped", r"stopped\s*$"]), running.text), running.text
    command = [sys.executable, "-m", "syrinx_operator", "say", "x", "--url", running.url]
    assert subprocess.run(command, capture_output=True, env=environment(tmp_path), check=False).returncode == 1


def test_a_second_ctrl_c_kills(running: Up) -> None:
    pids = running.pids()
    requests = send(running.url, f"{TEXT} " * 12)
    running.process.send_signal(signal.SIGINT)
    running.wait_for("gateway-0 +draining")
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(10) == 130
    assert not any(map(alive, pids))
    with pytest.raises(httpx.HTTPError):
        requests["raw"].result.result(DEADLINE)


def test_the_output_in_json_is_one_object_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOG_LEVEL", "DEBUG")
    with Up(tmp_path, None, "--log-format", "json") as running:
        pass
    assert running.process.returncode == 0
    lines = [json.loads(line) for line in running.text.splitlines()]
    assert {line["replica"] for line in lines if "replica" in line} == {"redis", "gateway-0", "talker-0", "codec-0"}
    stages = {line["logger"] for line in lines if line.get("replica") == "talker-0"}
    assert stages >= {"syrinx.up", "syrinx_stages.runtime.process"}
    assert lines[-1]["message"] == "stopped" and all(line.keys() >= {"ts", "level", "message"} for line in lines)
