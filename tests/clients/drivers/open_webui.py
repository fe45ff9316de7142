"""Open WebUI as a server, asked as its page asks it: the list of voices, and reading a message aloud."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from report import API_URL, OUT, TEXT, Report

READY_SECONDS = 240


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    settings = {"AUDIO_TTS_ENGINE": "openai", "AUDIO_TTS_OPENAI_API_BASE_URL": API_URL}
    # Without accounts, a download of models or calls to the outside.
    local = {"USE_SLIM_DOCKER": "true", "WEBUI_AUTH": "false", "OFFLINE_MODE": "true", "DATA_DIR": str(OUT / "data")}
    command = [str(Path(sys.executable).with_name("open-webui")), "serve", "--host", "127.0.0.1", "--port", str(port)]
    secret = {"WEBUI_SECRET_KEY": "none"}
    with (OUT / "server.log").open("wb") as log:
        server = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | settings | local | secret, cwd=OUT
        )
    try:
        converse(server, f"http://127.0.0.1:{port}")
    finally:
        server.terminate()
        server.wait()


def converse(server: subprocess.Popen, url: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5)
            break
        except OSError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit((OUT / "server.log").read_text()[-2000:]) from None
            time.sleep(0.5)
    token = json.loads(ask(f"{url}/api/v1/auths/signin", {"email": "", "password": ""}))["token"]
    voices = json.loads(ask(f"{url}/api/v1/audio/voices", token=token))["voices"]
    assert {"id": "us", "name": "us"} in voices, voices
    report = Report()
    for name, request in (
        ("read aloud with the configured voice", {"input": TEXT}),
        ("read aloud with a voice of the list", {"input": TEXT, "voice": voices[-1]["id"]}),
    ):
        with report.case(name) as case:
            case.save(ask(f"{url}/api/v1/audio/speech", request, token), "wav")
    report.write()


def ask(url: str, body: dict | None = None, token: str | None = None) -> bytes:
    """The response of Open WebUI."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=120) as response:
            return response.read()
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{url}: {error.code} {error.read().decode()}") from None


main()
