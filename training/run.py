"""A training run in a directory: its log, its state, and when to stop.

Everything random of a step follows from (seed, step), so that a state is weights, optimiser and step alone, and a run
that was stopped goes on with the same data.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Say = Callable[[str], None]

_WARMUP_STEPS = 200
_DECAY_SHARE = 0.3
_CLIP = 1.0
_FITTED_UNTIL = 0.65
"""Of the steps: soon after it the learning rate falls, and they stay what they are."""


def learning_rate(peak: float, step: int, steps: int) -> float:
    """Up in `_WARMUP_STEPS` (of short runs, a tenth), level, and down to nothing in the last `_DECAY_SHARE`.

    Until the way down begins it does not depend on `steps`, so that these can be chosen anew while a run is stopped.
    """
    up = (step + 1) / min(_WARMUP_STEPS, max(1, steps // 10))
    left = (steps - step) / max(1.0, steps * _DECAY_SHARE)
    return peak * min(1.0, up, left)


class Deadline:
    """A time budget in seconds; `math.inf` for none."""

    def __init__(self, seconds: float = math.inf) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds."""
        return self._end - time.monotonic()


def generator(device: torch.device, *seeds: int) -> torch.Generator:
    """A source of random numbers that depends on `seeds` alone."""
    mixed = 0
    for seed in seeds:
        mixed = (mixed * 1_000_003 + seed + 1) % (1 << 62)
    return torch.Generator(device).manual_seed(mixed)


class _Guarded(torch.optim.AdamW):
    """As `torch.amp.GradScaler` has it: where `found_inf` is 1, a step changes nothing, and nobody waits to know."""

    found_inf: Tensor


class Run:
    """One model's training: `step` after `step`, until all are done or the time is over."""

    def __init__(
        self,
        path: Path,
        modules: Mapping[str, nn.Module],
        weights: Iterable[nn.Parameter],
        *,
        peak: float,
        steps: int,
        betas: tuple[float, float],
        decay: float,
        fit: Deadline | None = None,
    ) -> None:
        """path: where the state is kept, beside a log of the same name; modules: what belongs to it, by name.

        fit: when to be finished: `steps` follow from it, as far as that is known when the learning rate begins to fall.
        """
        self.path, self.steps = path, steps
        self.step = 0
        """The next one."""
        self.place: dict[str, int] = {}
        """Where in its data the run is, for whoever gives it the data; kept with the state."""
        self._modules = modules
        self._weights = list(weights)
        self._peak = peak
        decayed = [weight for weight in self._weights if weight.dim() > 1]
        others = [weight for weight in self._weights if weight.dim() <= 1]
        groups = [{"params": decayed, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
        self._optimizer = _Guarded(groups, lr=peak, betas=betas, fused=True)
        self._fit = fit
        self._noted = time.monotonic(), 0
        self._begun = 0
        self._measured: tuple[float, int] | None = None
        path.parent.mkdir(parents=True, exist_ok=True)

    @property
    def finished(self) -> bool:
        """Whether all steps are done."""
        return self.step >= self.steps

    def resume(self) -> None:
        """Goes on from the state in the directory, if there is one."""
        if self.path.exists():
            state = torch.load(self.path, map_location="cpu", weights_only=True)
            for name, module in self._modules.items():
                module.load_state_dict(state[name])
            self._optimizer.load_state_dict(state["optimizer"])
            self.step = state["step"]
            self._noted, self._begun = (time.monotonic(), self.step), self.step
            if self._fit is not None:
                self.steps = state["steps"]
            self.place = state["place"]

    def save(self) -> None:
        """Writes the state; the old one is there until the new one is whole."""
        unfinished = self.path.with_suffix(".unfinished")
        state: dict[str, Any] = {name: module.state_dict() for name, module in self._modules.items()}
        state |= {
            "optimizer": self._optimizer.state_dict(),
            "step": self.step,
            "steps": self.steps,
            "place": self.place,
        }
        torch.save(state, unfinished)
        unfinished.replace(self.path)

    def learn(self, loss: Tensor) -> None:
        """One step down the gradient of `loss`; from one that is not finite, nothing is learnt."""
        rate = learning_rate(self._peak, self.step, self.steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self._weights, _CLIP)
        self._optimizer.found_inf = (~norm.isfinite()).float()
        self._optimizer.step()
        self.step += 1

    def note(self, say: Say, **values: Tensor) -> None:
        """Writes numbers of the last step to the log, for the curves, and says them."""
        since, first = self._noted
        self._noted = time.monotonic(), self.step
        spent = (self._noted[0] - since) / max(1, self.step - first)
        line = {"step": self.step, **{name: round(float(value.detach()), 4) for name, value in values.items()}}
        with self.path.with_suffix(".jsonl").open("a") as log:
            log.write(json.dumps({**line, "ms": round(spent * 1e3, 1)}) + "\n")
        self._refit()
        told = " ".join(f"{name} {value}" for name, value in line.items())
        left = (self.steps - self.step) * spent
        say(f"{self.path.stem}: {told}, {spent * 1e3:.1f} ms a step, {left:.0f} s to go")

    def _refit(self) -> None:
        """As many steps as fit, by the time of those so far; but for the first ones, in which much is compiled."""
        if self._fit is None or self.step > _FITTED_UNTIL * self.steps or self.step - self._begun < _WARMUP_STEPS:
            return
        if self._measured is None:
            self._measured = self._noted
            return
        (since, first), (now, step) = self._measured, self._noted
        self.steps = step + max(1, int(self._fit.left() * (step - first) / (now - since)))
