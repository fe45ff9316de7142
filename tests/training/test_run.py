"""Skipped updates, and fitting the number of steps to a deadline."""

from pathlib import Path

import pytest
import torch
from torch import nn

from training import run as running
from training.run import Deadline, TrainingRun


class Clock:
    """A fake monotonic clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        monkeypatch.setattr(running.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def new(directory: Path, finish_by: Deadline | None, steps: int = 5_000) -> TrainingRun:
    module = nn.Linear(1, 1)
    run = TrainingRun(
        directory / "run.pt",
        {"it": module},
        module.parameters(),
        peak_learning_rate=1e-3,
        steps=steps,
        betas=(0.9, 0.9),
        weight_decay=0.0,
        finish_by=finish_by,
    )
    run.resume()
    return run


def advance(run: TrainingRun, clock: Clock, max_steps: int = 10**6, seconds: float = 0.1) -> None:
    """Advances steps of `seconds` each; the first fifty take a second, as with compilation."""
    while not run.finished and run.step < max_steps:
        clock.now += 1.0 if run.step < 50 else seconds
        run.step += 1
        if run.step % 50 == 0:
            run.log_metrics(lambda line: None, loss=torch.zeros(()))


def test_steps_are_fitted_to_the_deadline(tmp_path: Path, clock: Clock) -> None:
    began = clock.now
    run = new(tmp_path, Deadline(300))
    advance(run, clock)
    assert clock.now - began == pytest.approx(300, abs=0.2)
    assert run.steps == pytest.approx(50 + 2_500, abs=2)


def test_slower_steps_reduce_their_number(tmp_path: Path, clock: Clock) -> None:
    began = clock.now
    run = new(tmp_path, Deadline(300))
    advance(run, clock, max_steps=600)
    advance(run, clock, seconds=0.2)
    assert clock.now - began == pytest.approx(300, rel=0.1)


def test_steps_are_fixed_when_the_learning_rate_decays(tmp_path: Path, clock: Clock) -> None:
    run = new(tmp_path, Deadline(300))
    advance(run, clock, max_steps=1_900)
    steps = run.steps
    advance(run, clock, seconds=5)
    assert run.step == steps


def test_resumed_run_keeps_its_fitted_steps(tmp_path: Path, clock: Clock) -> None:
    run = new(tmp_path, Deadline(300))
    advance(run, clock, max_steps=1_900)
    run.save()
    assert new(tmp_path, Deadline(10)).steps == run.steps
    assert new(tmp_path, None, steps=7_000).steps == 7_000


def test_without_a_deadline_the_steps_are_as_configured(tmp_path: Path, clock: Clock) -> None:
    run = new(tmp_path, None, steps=400)
    advance(run, clock)
    assert run.step == 400


@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
def test_updates_with_non_finite_gradients_are_skipped(tmp_path: Path, factor: float) -> None:
    def weights_after(directory: Path, steps: list[int]) -> list[float]:
        weight = nn.Parameter(torch.ones(3))
        run = TrainingRun(
            directory / "w.pt", {}, [weight], peak_learning_rate=0.1, steps=40, betas=(0.9, 0.9), weight_decay=0.0
        )
        for step in steps:
            run.step = step
            run.update((weight * (factor if step == 2 else step + 1)).sum())
        return [float(each) for each in weight.detach()]

    assert weights_after(tmp_path, [0, 1, 2, 3]) == weights_after(tmp_path, [0, 1, 3])
    assert weights_after(tmp_path, [0, 1]) != weights_after(tmp_path, [0, 1, 3])
