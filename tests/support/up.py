"""`syrinx up` as a process, for tests of the command line."""

import os
import re
import subprocess
import sys
from pathlib import Path

import yaml

from support.local_pipeline import MAX_QUEUE_SECONDS
from support.waiting import DEADLINE, until_blocking

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline.yaml"


def environment(state: Path) -> dict[str, str]:
    """The environment of a command with its own state directory."""
    own = {"XDG_STATE_HOME": str(state), "COLUMNS": "120", "NO_COLOR": "1"}
    return {name: value for name, value in os.environ.items() if name != "SYRINX_URL"} | own


def example(directory: Path, **gateway: object) -> Path:
    """Writes the example with fields of its gateway changed. A busy machine is no reason to refuse requests."""
    resource = yaml.safe_load(EXAMPLE.read_text())
    resource["spec"]["gateway"] |= {"maxQueueSeconds": MAX_QUEUE_SECONDS, **gateway}
    file = directory / "pipeline.yaml"
    file.write_text(yaml.safe_dump(resource))
    return file


class Up:
    """`syrinx up` in the background. As a context manager it is ready, and ends."""

    def __init__(self, state: Path, file: Path | None = None, *options: str) -> None:
        self.state = state
        self.url = ""
        """Set when it is ready."""
        self.log = state / "up.log"
        with self.log.open("wb") as log:
            command = [sys.executable, "-m", "syrinx_operator", "up", str(file or example(state)), "--port", "0"]
            command += options
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment(state))

    def __enter__(self) -> "Up":
        try:
            self.url = self.wait_for(r"ready at (https?://\S+)")[1]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(DEADLINE)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Waits for a pattern in the output and returns the match."""
        until_blocking(lambda: re.search(pattern, self.text) or self.process.poll() is not None, f"{pattern!r} comes")
        found = re.search(pattern, self.text)
        assert found, f"it ended: {self.text}"
        return found

    @property
    def text(self) -> str:
        return self.log.read_text()

    def pids(self) -> list[int]:
        """Returns the process IDs of the stages and Redis."""
        return [
            int(pid) for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ]


def alive(pid: int) -> bool:
    """Returns whether the process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
