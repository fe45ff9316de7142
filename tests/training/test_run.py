"""Training runs: resuming, skipped updates."""

from pathlib import Path

import pytest
import torch
from torch import nn

from training.run import TrainingRun, learning_rate


def new(directory: Path, weight: nn.Parameter) -> TrainingRun:
    return TrainingRun(
        directory / "w.pt", {}, [weight], peak_learning_rate=0.1, steps=40, betas=(0.9, 0.9), weight_decay=0.0
    )


@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
def test_updates_with_non_finite_gradients_are_skipped(tmp_path: Path, factor: float) -> None:
    def weights_after(directory: Path, steps: list[int]) -> list[float]:
        weight = nn.Parameter(torch.ones(3))
        run = new(directory, weight)
        for step in steps:
            run.step = step
            run.update((weight * (factor if step == 2 else step + 1)).sum())
        return [float(each) for each in weight.detach()]

    assert weights_after(tmp_path, [0, 1, 2, 3]) == weights_after(tmp_path, [0, 1, 3])
    assert weights_after(tmp_path, [0, 1]) != weights_after(tmp_path, [0, 1, 3])


def test_new_run_resumes_from_the_saved_step(tmp_path: Path) -> None:
    run = new(tmp_path, nn.Parameter(torch.ones(3)))
    run.step, run.data_position = 7, {"epoch": 2, "first": 5}
    run.save()
    resumed = new(tmp_path, nn.Parameter(torch.ones(3)))
    assert (resumed.step, resumed.data_position) == (7, {"epoch": 2, "first": 5})


def test_learning_rate_does_not_depend_on_the_steps_until_it_decays() -> None:
    assert [learning_rate(1.0, step, 4_000) for step in range(2_800)] == [
        learning_rate(1.0, step, 9_000) for step in range(2_800)
    ]
    assert learning_rate(1.0, 3_400, 4_000) < 0.6
