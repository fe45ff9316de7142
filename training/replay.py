"""A training step whose kernels are smaller than what it takes Python to start them: recorded once, then replayed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

_FIRST = 3
"""Times that a kind runs as it is, while what it needs is compiled and searched for; then it is recorded."""

Step = Callable[..., tuple[Tensor, ...]]


class _Recording(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    gradients: list[Tensor | None]


class Replayed:
    """A step: a function whose results are added up and differentiated. On a GPU, as CUDA graphs.

    It must not wait for the GPU, nor draw random numbers; what it changes besides (codebooks), it changes in place.
    """

    def __init__(self, step: Step, weights: Iterable[nn.Parameter], device: torch.device) -> None:
        """step: of a kind, and of inputs whose shapes follow from the kind."""
        self._step, self._weights = step, list(weights)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._runs: dict[Hashable, int] = {}
        self._recordings: dict[Hashable, _Recording] = {}

    def __call__(self, kind: Hashable, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The results, which are overwritten by the next call; the gradients of their sum are in the weights."""
        if self._stream is None:
            return self._run(kind, inputs)
        recording = self._recordings.get(kind)
        if recording is None:
            return self._begin(self._stream, kind, inputs)
        return _replay(recording, self._weights, inputs)

    def _run(self, kind: Hashable, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        for weight in self._weights:
            weight.grad = None
        results = self._step(kind, *inputs)
        torch.stack(results).sum().backward()  # type: ignore[no-untyped-call]
        return tuple(result.detach() for result in results)

    def _begin(self, stream: torch.cuda.Stream, kind: Hashable, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Runs a kind's first calls on the stream that records the one after them."""
        runs = self._runs[kind] = self._runs.get(kind, 0) + 1
        current = torch.cuda.current_stream()
        stream.wait_stream(current)
        if runs <= _FIRST:
            with torch.cuda.stream(stream):
                results = self._run(kind, inputs)
            current.wait_stream(stream)
            return results
        graph, own = torch.cuda.CUDAGraph(), tuple(each.clone() for each in inputs)
        for weight in self._weights:
            weight.grad = None
        with torch.cuda.graph(graph, stream=stream):
            results = self._run(kind, own)
        self._recordings[kind] = made = _Recording(graph, own, results, [weight.grad for weight in self._weights])
        return _replay(made, self._weights, inputs)


def _replay(recording: _Recording, weights: list[nn.Parameter], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    for own, given in zip(recording.inputs, inputs, strict=True):
        own.copy_(given)
    recording.graph.replay()
    for weight, gradient in zip(weights, recording.gradients, strict=True):
        weight.grad = gradient
    return recording.results
