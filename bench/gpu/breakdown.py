"""Measures the parts of a talker's frame: a part costs the time that the frame saves without it.

The kernels of a frame overlap and prefetch weights for each other, so the time of a part alone is not its cost. The
rest is the time that no part accounts for: what they have in common, or, below zero, the time that overlap saves.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor

from gpu.timing import elapsed_ms
from syrinx_stages.kernels import attention
from syrinx_stages.kernels.attention import AttentionParams
from syrinx_stages.talker.cuda import frame, layers
from syrinx_stages.talker.cuda.engine import CudaTalkerEngine
from syrinx_stages.talker.cuda.packed import PackedLayer, PackedTalker

SAMPLING = "sampling"
AROUND = "norm and gate, beside cuBLAS"
REST = "rest"


class Parts:
    """Counts and omits launches by part."""

    def __init__(self, weights: PackedTalker) -> None:
        self._names = {weights.head.data_ptr(): "code 0 head"}
        self._names |= {head.data_ptr(): "code heads" for head in weights.code_heads}
        for stack, packed in (("talker", weights.layers), ("predictor", weights.predictor)):
            for layer in packed:
                self._names |= {weight.data_ptr(): f"{stack} {name}" for name, weight in _weights(layer).items()}

    @contextmanager
    def watched(self, omitted: str | None = None) -> Iterator[Counter[str]]:
        """Returns a context that counts the launches of frames by part, and omits those of one part."""
        launched: Counter[str] = Counter()

        def wrapped(launch: Callable[..., None], name_of: Callable[..., str]) -> Callable[..., None]:
            def run(*arguments: Any, **options: Any) -> None:
                name = name_of(*arguments)
                launched[name] += 1
                if name != omitted:
                    launch(*arguments, **options)

            return run

        def product(_: Tensor, weight: Tensor, *__: Any) -> str:
            return self._names[weight.data_ptr()]

        def layer_of(params: AttentionParams, *_: Any) -> str:
            return self._names[params.norms.data_ptr()]

        with ExitStack() as patches:
            for owner, name, name_of in (
                (frame, "linear", product),
                (layers, "linear", product),
                (layers, "multiply", product),
                (attention, "decode_attention", layer_of),
                (frame, "sample_first_code", lambda *_: SAMPLING),
                (frame, "sample_residual_code", lambda *_: SAMPLING),
                (layers, "norm_rows", lambda *_: AROUND),
                (layers, "gate_rows", lambda *_: AROUND),
                (layers, "copy_rows", lambda *_: AROUND),
                (frame, "embed_prompts", lambda *_: AROUND),
                (frame, "embed_frame", lambda *_: REST),
                (frame, "norm_last_position", lambda *_: REST),
            ):
                patches.enter_context(patch.object(owner, name, wrapped(getattr(owner, name), name_of)))
            yield launched


def _weights(layer: PackedLayer) -> dict[str, Tensor]:
    return {
        "qkv": layer.qkv,
        "attention": layer.attention.norms,
        "output": layer.output,
        "gate_up": layer.gate_up,
        "down": layer.down,
    }


def breakdown(engine: CudaTalkerEngine, rows: int) -> list[dict[str, Any]]:
    """Returns name, launches and milliseconds of each part of a frame, the longest first; the frame must have run."""
    runner = engine.runner
    step, parts, recorder = runner.frames[rows][0], Parts(runner.weights), runner.recorder

    def run() -> None:
        step.sample_codes()
        step.decode()

    def without(name: str | None) -> float:
        with recorder.on_stream(), parts.watched(name):
            return elapsed_ms(recorder.capture_graph(run))[0]

    with recorder.on_stream(), parts.watched() as counts:
        run()
    whole = without(None)
    times = {name: whole - without(name) for name in counts if name != REST}
    times = dict(sorted(times.items(), key=lambda part: -part[1])) | {REST: whole - sum(times.values())}
    return [{"name": name, "count": counts[name], "ms": taken} for name, taken in times.items()]
