"""What the parts of a talker's frame take: the time that is missing where a part is left out, frame and all else alike.

Kernels of a frame begin before the ones before them have ended, and fetch weights for the ones after them. So a part's
own time says little; what it costs shows where it is not there. What no part accounts for is the rest: what is common
to all, and, below zero, what parts do for each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor

from gpu.timing import elapsed_ms
from syrinx_stages.kernels import attention
from syrinx_stages.kernels.attention import Heads
from syrinx_stages.talker import frame
from syrinx_stages.talker.cuda_engine import CudaTalkerEngine
from syrinx_stages.talker.packed import PackedLayer, PackedTalker

SAMPLING = "sampling"
REST = "rest"


class Parts:
    """Leaves out launches by what they are for."""

    def __init__(self, weights: PackedTalker) -> None:
        self._names = {weights.head.data_ptr(): "code 0 head"}
        self._names |= {head.data_ptr(): "code heads" for head in weights.code_heads}
        for stack, layers in (("talker", weights.layers), ("predictor", weights.predictor)):
            for layer in layers:
                self._names |= {weight.data_ptr(): f"{stack} {name}" for name, weight in _weights(layer).items()}

    @contextmanager
    def watched(self, left_out: str | None = None) -> Iterator[Counter[str]]:
        """Counts what frames launch meanwhile, by part; one of them is not launched."""
        launched: Counter[str] = Counter()

        def wrapped(launch: Callable[..., None], name_of: Callable[..., str]) -> Callable[..., None]:
            def run(*arguments: Any, **options: Any) -> None:
                name = name_of(*arguments)
                launched[name] += 1
                if name != left_out:
                    launch(*arguments, **options)

            return run

        def product(_: Tensor, weight: Tensor, *__: Any) -> str:
            return self._names[weight.data_ptr()]

        def heads_of(heads: Heads, *_: Any) -> str:
            return self._names[heads.norms.data_ptr()]

        with ExitStack() as patches:
            for owner, name, name_of in (
                (frame, "linear", product),
                (attention, "step", heads_of),
                (frame, "sample_first_code", lambda *_: SAMPLING),
                (frame, "sample_residual_code", lambda *_: SAMPLING),
                (frame, "embed_frame", lambda *_: REST),
                (frame, "norm_last_position", lambda *_: REST),
            ):
                patches.enter_context(patch.object(owner, name, wrapped(getattr(owner, name), name_of)))
            yield launched


def _weights(layer: PackedLayer) -> dict[str, Tensor]:
    return {
        "qkv": layer.qkv,
        "attention": layer.heads.norms,
        "output": layer.output,
        "gate_up": layer.gate_up,
        "down": layer.down,
    }


def breakdown(engine: CudaTalkerEngine, rows: int) -> list[dict[str, Any]]:
    """Of a frame of so many rows that were stepped before: name, launches and milliseconds, the longest first."""
    step, parts = engine._frames[rows][0], Parts(engine._weights)

    def run() -> None:
        step.draw_codes()
        step.advance()

    def without(name: str | None) -> float:
        with engine._recorder.on_stream(), parts.watched(name):
            return elapsed_ms(engine._recorder.capture_graph(run))[0]

    with engine._recorder.on_stream(), parts.watched() as counts:
        run()
    whole = without(None)
    times = {name: whole - without(name) for name in counts if name != REST}
    times = dict(sorted(times.items(), key=lambda part: -part[1])) | {REST: whole - sum(times.values())}
    return [{"name": name, "count": counts[name], "ms": taken} for name, taken in times.items()]
