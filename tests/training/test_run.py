"""A run: what it learns from, and how many steps it makes where it has to be finished by some time."""

from pathlib import Path

import pytest
import torch
from torch import nn

from training import run as running
from training.run import Deadline, Run


class Clock:
    """Time that passes with steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        monkeypatch.setattr(running.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def new(directory: Path, fit: Deadline | None, steps: int = 5_000) -> Run:
    module = nn.Linear(1, 1)
    made = Run(
        directory / "run.pt", {"it": module}, module.parameters(), peak=1e-3, steps=steps, betas=(0.9, 0.9), decay=0.0,
        fit=fit,
    )  # fmt: skip
    made.resume()
    return made


def go(run: Run, clock: Clock, most: int = 10**6, seconds: float = 0.1) -> None:
    """Steps of a tenth of a second; the first fifty, in which something is compiled, of one."""
    while not run.finished and run.step < most:
        clock.now += 1.0 if run.step < 50 else seconds
        run.step += 1
        if run.step % 50 == 0:
            run.note(lambda line: None, loss=torch.zeros(()))


def test_as_many_steps_as_fit(tmp_path: Path, clock: Clock) -> None:
    began = clock.now
    run = new(tmp_path, Deadline(300))
    go(run, clock)
    assert clock.now - began == pytest.approx(300, abs=0.2)
    assert run.steps == pytest.approx(50 + 2_500, abs=2)


def test_where_steps_become_slower_there_are_fewer(tmp_path: Path, clock: Clock) -> None:
    began = clock.now
    run = new(tmp_path, Deadline(300))
    go(run, clock, most=600)
    go(run, clock, seconds=0.2)
    assert clock.now - began == pytest.approx(300, rel=0.1)


def test_steps_stay_what_they_are_when_the_learning_rate_falls(tmp_path: Path, clock: Clock) -> None:
    run = new(tmp_path, Deadline(300))
    go(run, clock, most=1_900)
    steps = run.steps
    go(run, clock, seconds=5)
    assert run.step == steps


def test_a_run_that_goes_on_keeps_them(tmp_path: Path, clock: Clock) -> None:
    run = new(tmp_path, Deadline(300))
    go(run, clock, most=1_900)
    run.save()
    assert new(tmp_path, Deadline(10)).steps == run.steps
    assert new(tmp_path, None, steps=7_000).steps == 7_000


def test_without_a_time_steps_are_as_they_were_asked_for(tmp_path: Path, clock: Clock) -> None:
    run = new(tmp_path, None, steps=400)
    go(run, clock)
    assert run.step == 400


@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
def test_nothing_is_learnt_from_a_gradient_that_is_not_finite(tmp_path: Path, factor: float) -> None:
    def weights_after(directory: Path, steps: list[int]) -> list[float]:
        weight = nn.Parameter(torch.ones(3))
        run = Run(directory / "w.pt", {}, [weight], peak=0.1, steps=40, betas=(0.9, 0.9), decay=0.0)
        for step in steps:
            run.step = step
            run.learn((weight * (factor if step == 2 else step + 1)).sum())
        return [float(each) for each in weight.detach()]

    assert weights_after(tmp_path, [0, 1, 2, 3]) == weights_after(tmp_path, [0, 1, 3])
    assert weights_after(tmp_path, [0, 1]) != weights_after(tmp_path, [0, 1, 3])
