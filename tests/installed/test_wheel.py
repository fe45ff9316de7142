"""`make dist` makes what a package index and Helm accept; a machine without a checkout needs only the wheel."""

import re
import subprocess
import sys
import wave
from pathlib import Path

import pytest

from syrinx_operator import __version__

WHEEL = f"syrinx-{__version__}-py3-none-any.whl"


@pytest.fixture(scope="session")
def dist(checkout, environment) -> Path:
    """The folder that `make dist` has filled."""
    subprocess.run(["make", "dist", f"PYTHON={sys.executable}"], cwd=checkout, env=environment, check=True)
    return checkout / "dist"


@pytest.fixture(scope="session")
def installed(dist, environment, room) -> Path:
    """The programs of an environment with only the wheel and what it asks for."""
    venv = room / "wheel"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    wheel = f"{dist / WHEEL}[all]"
    subprocess.run([venv / "bin" / "pip", "install", "--quiet", "--no-compile", wheel], env=environment, check=True)
    return venv / "bin"


def test_everything_is_built(dist):
    charts = {f"{chart}-{__version__}.tgz" for chart in ("syrinx", "syrinx-crds")}
    assert {file.name for file in dist.iterdir()} == {WHEEL, f"syrinx-{__version__}.tar.gz", *charts}


def test_the_version_has_its_changes(checkout):
    heading = rf"^## \[{re.escape(__version__)}\] - \d{{4}}-\d\d-\d\d$"
    assert re.search(heading, (checkout / "CHANGELOG.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize(("program", "name"), [("syrinx", "syrinx"), ("kubectl-syrinx", "kubectl syrinx")])
def test_both_programs_are_installed(installed, environment, tmp_path, program, name):
    command = [installed / program, "--help"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"usage: {name} ")


def test_it_speaks(installed, environment, tmp_path):
    subprocess.run([installed / "syrinx", "say", "Good morning."], cwd=tmp_path, env=environment, check=True)
    with wave.open(str(tmp_path / "speech.wav")) as audio:
        assert audio.getnframes() > audio.getframerate() / 2


def test_without_extras_it_says_what_is_missing(dist, environment, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    programs = tmp_path / "venv" / "bin"
    subprocess.run([programs / "pip", "install", "--quiet", dist / WHEEL], env=environment, check=True)
    done = subprocess.run([programs / "syrinx", "up"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.fullmatch(r"syrinx: \w+ is not installed: install Syrinx with its extra `all`\n", done.stderr)
