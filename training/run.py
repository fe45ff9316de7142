"""A resumable training run: learning-rate schedule, optimizer, state file and metrics log.

All random numbers of a step derive from (seed, step). The saved state is therefore only weights, optimizer and step,
and a resumed run sees the same data as an uninterrupted one.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn

from training.config import TrainingConfig

Log = Callable[[str], None]
ShouldStop = Callable[[], bool]
"""Asked before each step; True ends training early."""
_Callable = TypeVar("_Callable", bound=Callable[..., Any])

_WARMUP_STEPS = 200
_DECAY_SHARE = 0.3
_MAX_GRADIENT_NORM = 1.0


class Losses(Protocol):
    """A NamedTuple of a step's metrics."""

    def total(self) -> Tensor:
        """Returns the loss to minimize."""

    def _asdict(self) -> dict[str, Tensor]: ...


def learning_rate(peak: float, step: int, steps: int) -> float:
    """Returns the learning rate: linear warm-up (200 steps, or a tenth of a short run), constant, linear decay to 0.

    It does not depend on `steps` until the decay begins, so `steps` can change when a run is resumed before that.
    """
    warmup = (step + 1) / min(_WARMUP_STEPS, max(1, steps // 10))
    decay = (steps - step) / max(1.0, steps * _DECAY_SHARE)
    return peak * min(1.0, warmup, decay)


def compiled(function: _Callable, config: TrainingConfig, device: torch.device) -> _Callable:
    """Returns a function or a module compiled, on a GPU if the config wants that; else as it is."""
    if not config.compile or device.type != "cuda":
        return function
    return cast(_Callable, torch.compile(function))


def seeded_generator(device: torch.device, *seeds: int) -> torch.Generator:
    """Returns a random generator that depends on `seeds` alone."""
    mixed = 0
    for seed in seeds:
        mixed = (mixed * 1_000_003 + seed + 1) % (1 << 62)
    return torch.Generator(device).manual_seed(mixed)


class _SkippingAdamW(torch.optim.AdamW):
    """AdamW that skips the update on the device where `found_inf` is 1, without a host sync (like `GradScaler`)."""

    found_inf: Tensor


def is_finished(path: Path) -> bool:
    """Returns True if the run with the state file `path` exists and did all of its steps."""
    if not path.exists():
        return False
    state = torch.load(path, map_location="cpu", weights_only=True)
    return bool(state["step"] >= state["steps"])


class TrainingRun:
    """One model's training state: steps, optimizer, state file and metrics log."""

    def __init__(
        self,
        path: Path,
        modules: Mapping[str, nn.Module],
        parameters: Iterable[nn.Parameter],
        *,
        peak_learning_rate: float,
        steps: int,
        betas: tuple[float, float],
        weight_decay: float,
    ) -> None:
        """Resumes from the state file `path`, if it exists; the metrics log is beside it, as `.jsonl`.

        modules: saved with the state, by name.
        """
        self.path, self.steps = path, steps
        self.step = 0
        """The next step."""
        self.data_position: dict[str, int] = {}
        """Position of the data iterator; saved with the state."""
        self._modules = modules
        self._parameters = list(parameters)
        self._peak = peak_learning_rate
        decayed = [weight for weight in self._parameters if weight.dim() > 1]
        others = [weight for weight in self._parameters if weight.dim() <= 1]
        groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
        self._optimizer = _SkippingAdamW(groups, lr=peak_learning_rate, betas=betas, fused=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            state = torch.load(path, map_location="cpu", weights_only=True)
            for name, module in modules.items():
                module.load_state_dict(state[name])
            self._optimizer.load_state_dict(state["optimizer"])
            self.step, self.data_position = state["step"], state["data_position"]
        self._logged_at = time.monotonic(), self.step

    @property
    def finished(self) -> bool:
        """True when all steps are done."""
        return self.step >= self.steps

    def train(
        self, compute_losses: Callable[[int], Losses], config: TrainingConfig, should_stop: ShouldStop, log: Log
    ) -> bool:
        """Trains and saves the state; returns True if all steps are done. compute_losses: by step."""
        while not self.finished and not should_stop():
            losses = compute_losses(self.step)
            self.update(losses.total())
            if self.step % config.log_every == 0:
                self._log_metrics(log, losses._asdict())
            if self.step % config.save_every == 0:
                self.save()
        self.save()
        return self.finished

    def save(self) -> None:
        """Writes the state file atomically."""
        unfinished = self.path.with_suffix(".unfinished")
        state: dict[str, Any] = {name: module.state_dict() for name, module in self._modules.items()}
        state |= {"optimizer": self._optimizer.state_dict(), "step": self.step, "steps": self.steps}
        state |= {"data_position": self.data_position}
        torch.save(state, unfinished)
        unfinished.replace(self.path)

    def update(self, loss: Tensor) -> None:
        """Does one optimizer step; the step is skipped if the gradient norm is not finite."""
        rate = learning_rate(self._peak, self.step, self.steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self._parameters, _MAX_GRADIENT_NORM)
        self._optimizer.found_inf = (~norm.isfinite()).float()
        self._optimizer.step()
        self.step += 1

    def _log_metrics(self, log: Log, values: Mapping[str, Tensor]) -> None:
        """Appends the last step's metrics to the `.jsonl` file and logs them with the step time and time left."""
        since, first = self._logged_at
        self._logged_at = time.monotonic(), self.step
        step_seconds = (self._logged_at[0] - since) / max(1, self.step - first)
        metrics = {"step": self.step, **{name: round(float(value.detach()), 4) for name, value in values.items()}}
        with self.path.with_suffix(".jsonl").open("a") as file:
            file.write(json.dumps({**metrics, "ms": round(step_seconds * 1e3, 1)}) + "\n")
        formatted = " ".join(f"{name} {value}" for name, value in metrics.items())
        left = (self.steps - self.step) * step_seconds
        log(f"{self.path.stem}: {formatted}, {step_seconds * 1e3:.1f} ms per step, {left:.0f} s left")
