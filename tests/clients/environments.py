"""The environments of clients, in .clients/: each has one of its own, which later runs reuse."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

HERE = Path(__file__).parent
DRIVERS = HERE / "drivers"
FOLDER = HERE.parents[1] / ".clients"
INSTALL_SECONDS = 900


class Python(Struct, frozen=True):
    """Packages of PyPI: `requirements/NAME.txt` lists them all."""

    name: str
    package: str | None
    """The one whose version is the client's; None: the driver reports it."""
    minimum: tuple[int, int] = (3, 11)
    """The oldest Python that the client accepts."""
    source: str | None = None
    """A source distribution to unpack beside them, with its version: for programs that are in no wheel."""

    @property
    def _folder(self) -> Path:
        return FOLDER / self.name

    def prepare(self) -> None:
        """Installs what is not yet installed. Raises `RuntimeError`."""
        requirements = HERE / "requirements" / f"{self.name}.txt"
        with _once(self._folder, f"{requirements.read_text()}{self.source}{self.minimum}") as due:
            if not due:
                return
            _run([*_python(self.minimum), "-m", "venv", str(self._folder)])
            pip = [str(self._folder / "bin" / "pip"), "--quiet"]
            _run([*pip, "install", "--no-deps", "--requirement", str(requirements)])
            if self.source is not None:
                download = ["download", "--no-deps", "--no-binary", ":all:", "--dest", str(self._folder / "source")]
                _run([*pip, *download, self.source])
                (archive,) = (self._folder / "source").glob("*.tar.gz")
                shutil.unpack_archive(archive, self._folder / "source", filter="data")

    def command(self, driver: str) -> list[str]:
        """The command that runs a driver."""
        return [str(self._folder / "bin" / "python"), str(DRIVERS / f"{driver}.py")]

    def version(self) -> str:
        """The client's version."""
        if self.source is not None:
            return self.source.partition("==")[2]
        code = f"from importlib.metadata import version; print(version({self.package!r}))"
        return _run([str(self._folder / "bin" / "python"), "-c", code]).strip() if self.package else "unknown"


class Node(Struct, frozen=True):
    """Packages of npm: `node/NAME/package-lock.json` lists them all."""

    name: str
    package: str

    def prepare(self) -> None:
        """Installs what is not yet installed. Raises `RuntimeError`."""
        folder = FOLDER / self.name
        with _once(folder, (HERE / "node" / self.name / "package-lock.json").read_text()) as due:
            if due:
                shutil.copytree(HERE / "node" / self.name, folder, dirs_exist_ok=True)
                _run(["npm", "ci", "--silent", "--prefix", str(folder)])
        # Node.js looks for packages beside the file that imports them.
        for driver in DRIVERS.glob("*.mjs"):
            shutil.copy(driver, folder)

    def command(self, driver: str) -> list[str]:
        """The command that runs a driver."""
        return ["node", str(FOLDER / self.name / f"{driver}.mjs")]

    def version(self) -> str:
        """The client's version."""
        package = json.loads((FOLDER / self.name / "node_modules" / self.package / "package.json").read_text())
        return str(package["version"])


class Debian(Struct, frozen=True):
    """Programs of Debian, for drivers that run in this environment."""

    program: str
    packages: tuple[str, ...]
    version_option: str = "--version"

    def prepare(self) -> None:
        """Installs what is missing if this is root's process. Raises `RuntimeError`."""
        if shutil.which(self.program) and shutil.which("curl"):
            return
        packages = ["curl", *self.packages]
        if os.geteuid() != 0:
            raise RuntimeError(f"{self.program} is missing: apt-get install {' '.join(packages)}")
        _run(["apt-get", "-qq", "update"])
        _run(["apt-get", "-qq", "--no-install-recommends", "install", "--yes", *packages])

    def command(self, driver: str) -> list[str]:
        """The command that runs a driver, which gets the program's name."""
        return [sys.executable, str(DRIVERS / f"{driver}.py"), self.program]

    def version(self) -> str:
        """The program's version."""
        found = re.search(r"\d+(\.\d+)+", _run([self.program, self.version_option]))
        return found[0] if found else "unknown"


class Project(Struct, frozen=True):
    """The project's own environment, for a driver that gets an argument."""

    client_version: str
    argument: str

    def prepare(self) -> None:
        """Nothing is missing."""

    def command(self, driver: str) -> list[str]:
        """The command that runs a driver."""
        return [sys.executable, str(DRIVERS / f"{driver}.py"), self.argument]

    def version(self) -> str:
        """The version of the client whose requests are replayed."""
        return self.client_version


Environment = Python | Node | Debian | Project


@contextmanager
def _once(folder: Path, content: str) -> Iterator[bool]:
    """Yields whether a folder has to be made from this content, after removing an older one."""
    stamp = folder / "made-from"
    if stamp.is_file() and stamp.read_text() == content:
        yield False
        return
    shutil.rmtree(folder, ignore_errors=True)
    yield True
    stamp.write_text(content)


def _python(minimum: tuple[int, int]) -> list[str]:
    """A Python of at least this version: this one, one in PATH or one of pyenv's."""
    names = [f"python3.{minor}" for minor in range(minimum[1], minimum[1] + 4)]
    versions = sorted(Path.home().glob(".pyenv/versions/*/bin/python"))
    for candidate in (sys.executable, *names, *map(str, versions)):
        code = f"import sys, venv; sys.exit(sys.version_info < {minimum})"
        if shutil.which(candidate) and subprocess.run([candidate, "-c", code], capture_output=True).returncode == 0:
            return [candidate]
    raise RuntimeError(f"this client needs Python {minimum[0]}.{minimum[1]} or newer, which is not in PATH")


def _run(command: list[str]) -> str:
    """The output of a command. Raises `RuntimeError` if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, env=own_environment())
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:4])} ...: {(done.stderr or done.stdout).strip()[-800:]}")
    return done.stdout


def own_environment() -> dict[str, str]:
    """The environment of a client: without this project's Python path."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
