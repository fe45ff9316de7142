"""LiveKit Agents and Pipecat with the adapters of examples/agents and the bundled voice. Adds to docs/clients.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.clients import Client, agents
from clients.document import row_of
from clients.environments import own_environment
from clients.test_clients import generate, run
from support.up import Up

pytestmark = pytest.mark.clients

ADAPTERS = Path(__file__).parents[2] / "examples" / "agents"
TEXT = "The old teacher carried two heavy bags of letters home, before the rain began."
"""One sentence: a request with the whole text divides several."""
SEED = 5
MARKER = bytes(480)
"""10 ms of silence with which LiveKit may end a segment."""
ERRORS = {
    "wrong voice": ("APIStatusError", "INVALID_REQUEST", "voice: 'nobody' is unknown; accepted: us, "),
    "too much text": ("APIStatusError", "UNKNOWN", "text: an utterance has at most 4,096 characters"),
    "no gateway": ("APIConnectionError", "CONNECTIVITY", "there is no connection to http://127.0.0.1:9/v1/"),
}
"""By case: LiveKit's error, Pipecat's category, and the message."""
MOST_WORDS = 20
"""In two seconds of audio, or a little more that came meanwhile."""
STOP_SECONDS, FREE_SECONDS = 0.1, 0.5
"""Deadlines after an interruption: for the last audio, and until the talker holds no row."""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(tmp_path_factory.mktemp("up")) as running:
        yield running


@pytest.mark.parametrize("client", agents(), ids=lambda client: client.name)
def test_agent(client: Client, up: Up, tmp_path: Path) -> None:
    with row_of(client) as row:
        client.environment.prepare()
        row.version = client.environment.version()
        talker = re.search(r"talker-0 +ready after .* at (\S+)", up.text)
        assert talker is not None
        environment = {"BASE_URL": up.url, "TALKER_URL": talker[1], "TEXT": TEXT, "OUT": str(tmp_path)}
        environment |= {"PYTHONPATH": str(ADAPTERS), "SEED": str(SEED)}
        run(client.environment.command(client.driver), own_environment() | environment)
        report = json.loads((tmp_path / "report.json").read_text())
        fields = {"input": TEXT, "voice": "us", "seed": SEED, "non_streaming_mode": False}
        reference = pcm(fields, up.url)
        for name, case in report.items():
            with row.case(name):
                check(case, tmp_path, reference)
                if name in ERRORS:
                    check_error(name, case)
        row.streamed = report["words of an LLM"]["heard"] < report["words of an LLM"]["written"]
        assert row.streamed, "the first audio came after the last word"


def pcm(fields: dict, gateway: str) -> bytes:
    """The audio of a request with the whole text."""
    return (generate(fields, gateway) * 32768).astype("<i2").tobytes()


def check(case: dict, folder: Path, reference: bytes) -> None:
    """Checks what a case says of its audio and of its interruption."""
    if "file" in case:
        audio = (folder / case["file"]).read_bytes()
        assert audio in (reference, reference + MARKER), "its audio is not that of the whole text"
    if "connections" in case:
        assert case["connections"] == 2, "it did not connect again"
    if "closed" in case:
        assert case["closed"] < STOP_SECONDS, f"audio went on for {case['closed']:.3f} s"
        spoken = case["text"][: case["spoken_characters"]]
        assert 2 <= len(spoken.split()) <= MOST_WORDS, f"the audio has these words: {spoken}"
    if "free" in case:
        assert case["free"] < FREE_SECONDS, f"the row was held for {case['free']:.3f} s"
    if "spoken" in case:
        assert case["spoken"] == TEXT, "the text for the context of the LLM is another"


def check_error(name: str, case: dict) -> None:
    """Checks the framework's error and its message."""
    livekit, pipecat, message = ERRORS[name]
    assert case["error"] in (livekit, pipecat), case["error"]
    assert message in case["message"], case["message"]
