"""API keys, TLS and fair shares of a whole pipeline of real processes, and the commands that call it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.api_keys import Keys
from support.tls import Authority
from support.up import Up, environment, example

DEADLINE = 240.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ca")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[tuple[Up, str]]:
    """`syrinx up` with TLS and a key, in files beside the resource's."""
    state = tmp_path_factory.mktemp("up")
    certificate, key = authority.server("DNS:localhost", "IP:127.0.0.1")
    (state / "tls.crt").write_bytes(certificate.read_bytes())
    (state / "tls.key").write_bytes(key.read_bytes())
    keys = Keys(state, alice={})
    tls = {"certificateFile": "tls.crt", "keyFile": "tls.key"}
    with Up(state, example(state, apiKeys={"file": "keys.jsonl"}, tls=tls)) as running:
        assert running.url.startswith("https://127.0.0.1:")
        yield running, keys.keys["alice"]
    assert running.process.returncode == 0


def say(state: Path, output: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """`syrinx say` to the running pipeline."""
    inherited = {name: value for name, value in environment(state).items() if name != "SSL_CERT_FILE"}
    command = [sys.executable, "-m", "syrinx_operator", "say", "Hello.", "-o", str(output)]
    return subprocess.run(
        command, env=inherited | variables, capture_output=True, text=True, timeout=DEADLINE, check=False
    )


def test_up_says_what_a_command_needs_to_call_it(up: tuple[Up, str]) -> None:
    running, _ = up
    running.wait_for("logs: ")
    assert "speak: SYRINX_API_KEY=KEY " in running.text
    assert "\n       for a private CA, set SSL_CERT_FILE to the file of its certificate\n" in running.text


def test_say_calls_a_pipeline_with_tls_and_keys(up: tuple[Up, str], authority: Authority, tmp_path: Path) -> None:
    running, key = up
    output, trusted = tmp_path / "speech.wav", str(authority.ca_file)
    done = say(running.state, output, SYRINX_API_KEY=key, SSL_CERT_FILE=trusted)
    assert done.returncode == 0, done.stderr
    assert output.read_bytes().startswith(b"RIFF")
    unverified = say(running.state, output, SYRINX_API_KEY=key)
    assert unverified.returncode == 1 and "set SSL_CERT_FILE" in unverified.stderr, unverified.stderr
    keyless = say(running.state, output, SSL_CERT_FILE=trusted)
    assert keyless.returncode == 1 and "no API key" in keyless.stderr, keyless.stderr


def test_no_key_is_in_logs_and_configurations(up: tuple[Up, str]) -> None:
    running, key = up
    files = [file for file in running.state.rglob("*") if file.is_file()]
    assert len(files) > 5
    assert not [file for file in files if key.encode() in file.read_bytes()]
