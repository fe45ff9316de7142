"""docs/getting-started.md as it stands: each of its commands runs in a fresh checkout, in its order."""

import contextlib
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import av
import pytest

from support.talker_recipe import VOICE
from support.waiting import DEADLINE, until_blocking

GUIDE = Path(__file__).parents[2] / "docs" / "getting-started.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILES = {"python": "speak.py", "yaml": "mine.yaml"}
"""Where the guide says to save its examples."""
UNTIL_CTRL_C = {"syrinx up": "ready at http", "syrinx tune --watch": r"^\d\d:\d\d:\d\d  "}
"""Commands that run until Ctrl-C, and what they print once they work."""


def commands(script: str) -> list[str]:
    """Returns the commands of a block, each on one line, without comments."""
    joined = re.sub(r"\\\n\s*", " ", script)
    return [line for each in joined.splitlines() if (line := re.sub(r"\s+# .*", "", each).strip())]


class Terminal:
    """A shell in a checkout, and one more for each command that goes on."""

    def __init__(self, checkout: Path, environment: dict[str, str]) -> None:
        self._options = {"cwd": checkout, "env": environment, "shell": True}
        self._checkout = checkout
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, command: str) -> None:
        """Runs a command to its end, or until it works."""
        kind = next((each for each in UNTIL_CTRL_C if each in command), None)
        if kind is None:
            subprocess.run(command, check=True, **self._options)
            return
        self.stop(kind)
        log = self._checkout / f"{kind.split()[1]}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(f"exec {command}", stdout=output, stderr=subprocess.STDOUT, **self._options)
        self._running[kind] = process
        works = UNTIL_CTRL_C[kind]
        until_blocking(
            lambda: re.search(works, log.read_text(), re.MULTILINE) or process.poll() is not None,
            f"{command} works",
        )
        assert process.poll() is None, log.read_text()

    def stop(self, kind: str) -> None:
        """Presses Ctrl-C, if such a command runs."""
        if process := self._running.pop(kind, None):
            process.send_signal(signal.SIGINT)
            assert process.wait(DEADLINE) == 0

    @contextlib.contextmanager
    def open(self) -> Iterator["Terminal"]:
        """Ends all commands at the end."""
        try:
            yield self
            for kind in reversed([*self._running]):
                self.stop(kind)
        finally:
            for process in self._running.values():
                process.kill()


def seconds_of(file: Path) -> float:
    """Returns the duration of an audio file."""
    with av.open(str(file)) as audio:
        return sum(frame.samples / frame.sample_rate for frame in audio.decode(audio=0))


@pytest.fixture(scope="module")
def ran(checkout, environment) -> dict[str, dict[str, float]]:
    """Runs the whole guide. Returns the duration of the audio files that each command has written."""
    with socket.create_server(("127.0.0.1", 8000)):
        pass  # The guide needs this port.
    shutil.copytree(VOICE, checkout / "models" / "Qwen3-TTS-12Hz-0.6B-CustomVoice")
    guide, ran = GUIDE.read_text(), {}
    with Terminal(checkout, environment).open() as terminal:
        for language, text in BLOCK.findall(guide):
            if name := FILES.get(language):
                assert f"`{name}`" in guide, "it says where to save this"
                (checkout / name).write_text(text)
            script = {"sh": text, "python": f".venv/bin/python {FILES['python']}"}.get(language, "")
            for command in commands(script):
                print(f"$ {command}", flush=True)
                terminal.run(command)
                ran[command] = {file.name: seconds_of(file) for file in checkout.glob("speech.*")}
                for name in ran[command]:
                    (checkout / name).unlink()
    return ran


def test_every_command_works(ran):
    assert len(ran) >= 10 and next(iter(ran)) == "make demo"


def test_what_should_speak_speaks(ran):
    speaking = {each: spoken for each, spoken in ran.items() if " -o " in each or each.endswith(FILES["python"])}
    assert len(speaking) == 4
    for command, spoken in {"make demo": ran["make demo"], **speaking}.items():
        assert len(spoken) == 1 and min(spoken.values()) > 1.0, command


def test_git_ignores_what_the_guide_writes(ran, checkout):
    subprocess.run(["git", "init", "--quiet"], cwd=checkout, check=True)
    written = ["speech.wav", "speech.mp3", *FILES.values(), "models/x", "dist/x", ".venv/x"]
    ignored = subprocess.run(["git", "check-ignore", *written], cwd=checkout, capture_output=True, text=True)
    assert ignored.stdout.split() == written
