"""The measurement of the host's processor time runs on what it measures."""

import support.interpreter  # noqa: F401, I001 (before any kernel)

import re

import pytest

from gpu import host


pytestmark = pytest.mark.bench


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measures as little as possible."""
    small = {"ROWS": (2, 3), "STEPS": 2, "REPEATS": 2, "FRAMES": 12, "BURST": 4, "BURSTS": 1, "BURST_FRAMES": 3}
    for name, value in small.items():
        monkeypatch.setattr(host, name, value)


def test_measures_each_call_of_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    host.measure_engine()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["prepare", *2 * ["admit", "launch", "read"]]
    assert all(float(re.findall(r"([\d.]+) us", line)[0]) > 0 for line in lines)


async def test_measures_steps_and_bursts_of_the_stages(capsys: pytest.CaptureFixture[str]) -> None:
    await host.measure_stages()
    lines = capsys.readouterr().out.splitlines()
    stages = ["talker", "codec"]
    assert [line.split()[0] for line in lines] == [*2 * stages, *stages, "first"]
    # A talker's rows are in one step each time; a few steps are of only some of them.
    assert [1.0 <= float(re.findall(r"a step of +([\d.]+)", line)[0]) <= 3 for line in lines[:4:2]] == [True, True]
