"""Reference audio of voice clones through the public API."""

import base64
import io
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import soundfile
from fastapi import FastAPI, Response

from support.gateway import Gateway, base_checkpoint, gateway
from support.http_server import serve
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.gateway.voices import reference

pytestmark = pytest.mark.virtual


def file(seconds: float, rate: int = FAMILY.sample_rate, channels: int = 1, level: float = 0.3) -> bytes:
    sine = level * np.sin(np.arange(round(seconds * rate)) * 2 * np.pi * 300 / rate)
    out = io.BytesIO()
    soundfile.write(out, np.stack([sine] * channels, 1), rate, format="WAV", subtype="PCM_16")
    return out.getvalue()


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return base_checkpoint(tmp_path)


@pytest.fixture
async def running(checkpoint: str) -> AsyncIterator[Gateway]:
    async with gateway(model=checkpoint) as it:
        yield it


async def clone(running: Gateway, ref_audio: str) -> httpx.Response:
    return await running.say(ref_audio=ref_audio, ref_text="What it says.")


async def test_stereo_at_8_khz_reaches_the_talker_as_mono_at_24_khz(running: Gateway):
    response = await clone(running, "data:audio/wav;base64," + text(file(2, rate=8000, channels=2)))
    assert response.status_code == 200, response.text
    [pcm] = running.stages.references
    assert pcm is not None
    assert len(pcm) == 4 * 2 * FAMILY.sample_rate
    [request] = running.stages.seen
    assert (request.task_type, request.has_reference, request.reference_text) == ("Base", True, "What it says.")


@pytest.mark.parametrize(
    ("data", "status", "words"),
    [
        (file(2)[:1000], 400, "truncated"),
        (bytes(17 * 2**20), 413, "16 MB"),
    ],
)
async def test_unusable_reference_is_refused(running: Gateway, data: bytes, status: int, words: str):
    response = await clone(running, text(data))
    assert response.status_code == status
    assert response.json()["error"]["param"] == "ref_audio"
    assert words in response.json()["error"]["message"]
    assert running.stages.seen == []
    assert (await clone(running, text(file(2)))).status_code == 200


async def test_urls_are_fetched_from_allowed_hosts_only(checkpoint: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reference, "MAX_FILE", 2**20)
    files, fetched = FastAPI(), []

    @files.get("/{name}")
    async def get(name: str) -> Response:
        fetched.append(name)
        if name == "moved":
            return Response(status_code=302, headers={"Location": "/good.wav"})
        if name == "missing":
            return Response(status_code=404)
        return Response(bytes(2 * 2**20) if name == "large" else file(2))

    async with serve(files) as url:
        host = url.removeprefix("http://")
        async with gateway(model=checkpoint, reference_hosts=(host, "127.0.0.1:1")) as running:
            assert (await clone(running, f"{url}/good.wav")).status_code == 200
            assert fetched == ["good.wav"]
            for name, status in (("moved", 400), ("missing", 400), ("large", 413)):
                response = await clone(running, f"{url}/{name}")
                assert (response.status_code, response.json()["error"]["param"]) == (status, "ref_audio")
            assert fetched == ["good.wav", "moved", "missing", "large"]
            unreachable = await clone(running, "http://127.0.0.1:1/a.wav")
            assert "cannot be fetched: All connection attempts failed" in unreachable.json()["error"]["message"]
            monkeypatch.setattr(reference, "FETCH_SECONDS", 0.0)
            late = await clone(running, f"{url}/good.wav")
            assert late.json()["error"]["message"] == "ref_audio: cannot be fetched: TimeoutError"
        async with gateway(model=checkpoint) as running:
            response = await clone(running, f"{url}/good.wav")
            assert response.status_code == 400
            assert "is not allowed" in response.json()["error"]["message"]
    assert len(fetched) == 4
