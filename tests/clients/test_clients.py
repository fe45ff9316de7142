"""People's programs, unmodified and on their defaults, with the bundled voice. Writes docs/clients.md."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

from clients.audio import RATE, Samples, difference, load
from clients.clients import Client, clients
from clients.document import row_of
from clients.environments import own_environment
from clients.tap import Exchange, Tap, tapped
from support.up import Up, example

pytestmark = pytest.mark.clients

TEXT = (
    "The old teacher found two heavy bags near the river. She carried them home before the rain began. "
    "In the evening her brother opened both, and they were full of letters."
)
DRIVER_SECONDS = 700
SPEECH, BATCH = "POST /v1/audio/speech", "POST /v1/audio/speech/batch"
NAMES = {
    "modelAliases": ["Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice"],
    "voiceAliases": {"vivian": "us_f", "ryan": "us_m"},
}
"""Names that clients made for Qwen3-TTS send by default."""
RAW = ("wav", "pcm", "flac")
"""Formats without loss."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    state = tmp_path_factory.mktemp("up")
    with Up(state, example(state, api=NAMES)) as up:
        yield up.url


@pytest.fixture(scope="module")
def tap(gateway: str) -> Iterator[Tap]:
    with tapped(urlsplit(gateway).port) as tap:
        yield tap


@pytest.mark.parametrize("client", clients(), ids=lambda client: client.name)
def test_client(client: Client, gateway: str, tap: Tap, tmp_path: Path) -> None:
    with row_of(client) as row:
        client.environment.prepare()
        row.version = client.environment.version()
        environment = own_environment() | {"BASE_URL": tap.url, "TEXT": TEXT, "OUT": str(tmp_path)}
        run(client.environment.command(client.driver), environment)
        report = json.loads((tmp_path / "report.json").read_text())
        row.version = report["version"] or row.version
        assert report["cases"]
        for case in report["cases"]:
            with row.case(case["name"]):
                row.streamed |= check(case, tap.since(case["started"], case["ended"]), gateway, tmp_path)


def run(command: list[str], environment: dict[str, str]) -> None:
    """Runs a driver. Raises `RuntimeError` with the end of its output if it fails."""
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=DRIVER_SECONDS, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        raise RuntimeError((done.stdout + done.stderr).strip()[-2000:])


def check(case: dict, exchanges: list[Exchange], gateway: str, folder: Path) -> bool:
    """Compares a case's audio with the gateway's for the same requests and seeds. Returns whether it was streamed."""
    if case.get("fields"):
        spoken, requests = [], [case["fields"]]
    else:
        spoken = [each for each in exchanges if each.request()[0] in (SPEECH, BATCH)]
        assert spoken, "it asked for no speech"
        requests = [request for each in spoken for request in requests_of(each)]
    reference = np.concatenate([generate(each, gateway) for each in requests])
    actual = load(folder / case["file"], case["rate"])
    if not case["whole"]:
        assert len(actual) < len(reference), "it took the whole response"
        reference = reference[: len(actual)]
    lossy = [each.get("response_format", "wav") not in RAW for each in requests]
    assert (wrong := difference(actual, reference, sum(lossy))) is None, wrong
    streams = bool(spoken) and all("content-length" not in each.response()[1] for each in spoken)
    if streams and case["heard"] is not None:
        assert case["heard"] < spoken[-1].ended, "the first audio came when the last was generated"
    return streams and case["heard"] is not None


def requests_of(exchange: Exchange) -> list[dict]:
    """The fields of the requests in an exchange, each with the seed that was used."""
    name, fields = exchange.request()
    status, headers, body = exchange.response()
    assert status == 200, f"status {status}"
    if name == SPEECH:
        return [fields | {"seed": int(headers["x-seed"])}]
    results = zip(fields.pop("items"), json.loads(body)["results"], strict=True)
    return [fields | item | {"seed": result["seed"]} for item, result in results]


def generate(fields: dict, gateway: str) -> Samples:
    """The audio of a request, generated again as a whole."""
    whole = fields | {"stream": False, "response_format": "pcm", "sample_rate": RATE}
    whole.pop("stream_format", None)
    response = httpx.post(f"{gateway}/v1/audio/speech", json=whole, timeout=120)
    response.raise_for_status()
    return np.frombuffer(response.content, "<i2") / 32768
