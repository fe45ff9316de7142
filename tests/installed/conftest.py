"""A newcomer's machine: an environment without this checkout, and a fresh copy of it."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_OURS = ("PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS", "SYRINX_URL", "SYRINX_API_KEY", "KUBECONFIG")


@pytest.fixture(scope="session")
def environment(tmp_path_factory) -> dict[str, str]:
    """Environment variables of a user who has no pipeline running, and no Syrinx on the path."""
    programs = os.pathsep.join(
        each for each in os.environ["PATH"].split(os.pathsep) if not (Path(each) / "syrinx").exists()
    )
    kept = {name: value for name, value in os.environ.items() if name not in _OURS}
    return kept | {"PATH": programs, "XDG_STATE_HOME": str(tmp_path_factory.mktemp("state")), "NO_COLOR": "1"}


@pytest.fixture(scope="session")
def room(tmp_path_factory) -> Iterator[Path]:
    """A directory for environments, which are gigabytes: nothing of it is kept."""
    directory = tmp_path_factory.mktemp("room")
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def checkout(room) -> Path:
    """A copy of the files that git has or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).exists():
            (room / "checkout" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, room / "checkout" / name)
    return room / "checkout"
