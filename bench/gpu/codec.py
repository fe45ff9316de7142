"""What a codec call takes, by shape: `python -m gpu.codec` on a GPU.

Timed twice: from codes in this machine's memory to PCM in it (what a service sees), and the CUDA graph alone. Beside
it the floor: what the arithmetic of the fresh frames takes at the tensor cores' rate, or reading each weight and each
row's state once at the memory's, whichever is longer. And the error of each number format against the float32 decoder.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from gpu.checkpoint import codec_deviation, codec_settings, draw
from gpu.options import RESULTS
from gpu.timing import MEMORY_BYTES, REPEATS, TENSOR_FLOPS, elapsed_ms
from syrinx_operator.local.files import write_atomically
from syrinx_stages.codec.cuda_engine import CudaCodecEngine
from syrinx_stages.codec.program import Program
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.codec_decoder import CodecDecoder
from syrinx_stages.model.config import SpeechTokenizerConfig
from syrinx_stages.model.layers import checkpoint_tensors

FRAMES = (1, 2, 4, 8, 12, 25)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
PROFILED = ((1, 4), (32, 4))


def random_decoder(seed: int = 0) -> CodecDecoder:
    """The official shape with random weights, on the CPU."""
    config = msgspec.convert(codec_settings(), SpeechTokenizerConfig).decoder_config
    decoder = CodecDecoder(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, slot in checkpoint_tensors(decoder, "decoder"):
            slot.target.copy_(draw(codec_deviation(name, slot.shape), slot.shape, generator))
    return decoder.eval().requires_grad_(False)


class Rig:
    """An engine with requests that have been heard for a while."""

    def __init__(self, decoder: CodecDecoder, kind: torch.dtype, rows: int) -> None:
        self.engine = CudaCodecEngine(decoder, rows, torch.device("cuda"), kind)
        self.ids = [f"request {row}" for row in range(rows)]
        self._codes = np.random.default_rng(0)
        self._size = decoder.config.codebook_size

    def begin(self) -> None:
        """Opens every request and decodes more frames than the attention window has, of all at once."""
        for request in self.ids:
            self.engine.open(request)
        for _ in range(3):
            self.engine.read(self.engine.launch(self.ids, self.codes(len(self.ids), 25), (len(self.ids), 25)))

    def codes(self, rows: int, frames: int) -> list[list[bytes]]:
        """Random frames of each row."""
        values = self._codes.integers(0, self._size, (rows, frames, 16)).astype("<i2")
        return [[frame.tobytes() for frame in row] for row in values]

    def call_ms(self, rows: int, frames: int) -> float:
        """From codes to PCM, one call at a time: the median."""
        codes, shape = self.codes(rows, frames), (rows, frames)
        times = []
        for _ in range(REPEATS):
            begin = time.perf_counter()
            self.engine.read(self.engine.launch(self.ids[:rows], codes, shape))
            times.append(time.perf_counter() - begin)
        return statistics.median(times) * 1000

    def graph_ms(self, rows: int, frames: int) -> float:
        """The graph of a captured shape alone, by events on the device: the median."""
        return elapsed_ms(self.engine._graphs[rows, frames][0])[0]


def floor_ms(program: Program, rows: int, frames: int, width: int) -> float:
    """What a call takes at least, from the products that its launches make."""
    operations, weights = 0.0, 0.0
    for launch in program.launches:
        constants, arguments = launch.constants, launch.arguments
        if "SPLITS" in constants:
            outer = constants["N"] * (2 if constants["GATED"] else 1)
            size, count = outer * constants["TAPS"] * constants["IN"], arguments[10]
        elif "A" in constants:
            size, count = constants["C"] ** 2 * (constants["TAPS"] + 1), arguments[12]
        else:
            continue
        operations += 2.0 * size * count
        weights += size * arguments[1].element_size()
    state = 2 * rows * width * 2
    return max(operations / TENSOR_FLOPS, (weights + state) / MEMORY_BYTES) * 1000


def kernels(launches: Sequence[Callable[[], None]], names: Sequence[str]) -> list[dict[str, Any]]:
    """What each kind of launch takes: many of one after the other, so that starting them is hidden as in a call."""
    taken: dict[str, list[float]] = defaultdict(list)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    for name, launch in zip(names, launches, strict=True):
        kind = "".join(part for part in name if not part.isdigit()).replace("layer.", "layer ")
        with torch.cuda.stream(stream):
            graph = torch.cuda.CUDAGraph()
            launch()
            graph.capture_begin()
            for _ in range(10):
                launch()
            graph.capture_end()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            graph.replay()
            begin.record()
            graph.replay()
            end.record()
        end.synchronize()
        taken[kind].append(begin.elapsed_time(end) / 10)
    found = [{"name": kind, "count": len(times), "ms": sum(times)} for kind, times in taken.items()]
    return sorted(found, key=lambda kernel: -float(kernel["ms"]))


def error(decoder: CodecDecoder, kind: torch.dtype) -> float:
    """Of an engine's samples against the float32 decoder's: the norm of the difference over the norm."""
    rig = Rig(decoder, kind, 2)
    rig.engine.warm_up()
    reference = decoder.cuda()
    state = reference.new_state(2)
    for request in rig.ids:
        rig.engine.open(request)
    differences, norms = 0.0, 0.0
    for frames in (4, 1, 3, 4):
        codes = rig.codes(2, frames)
        pcm = rig.engine.read(rig.engine.launch(rig.ids, codes, (2, frames)))
        got = np.stack([np.frombuffer(row, "<i2") for row in pcm]) / 32767
        values = np.frombuffer(b"".join(frame for row in codes for frame in row), "<i2").reshape(2, frames, 16)
        wanted, state = reference(torch.from_numpy(values.astype(np.int64)).cuda(), torch.tensor([frames] * 2), state)
        differences += float(((got - wanted.cpu().numpy()) ** 2).sum())
        norms += float((wanted**2).sum())
    return float((differences / norms) ** 0.5)


def measure(decoder: CodecDecoder, kind: torch.dtype) -> dict[str, Any]:
    """All figures of the JSON file but what was measured on."""
    rig = Rig(decoder, kind, max(BATCHES))
    begin = time.perf_counter()
    rig.engine.warm_up()
    warm = time.perf_counter() - begin
    rig.begin()
    calls: dict[str, dict[str, float]] = defaultdict(dict)
    graphs: dict[str, dict[str, float]] = defaultdict(dict)
    floors: dict[str, dict[str, float]] = defaultdict(dict)
    for frames in FRAMES:
        for rows in BATCHES:
            rig.engine.capture((rows, frames))
            program = rig.engine._graphs[rows, frames][1]
            calls[str(frames)][str(rows)] = rig.call_ms(rows, frames)
            graphs[str(frames)][str(rows)] = rig.graph_ms(rows, frames)
            floors[str(frames)][str(rows)] = floor_ms(program, rows, frames, rig.engine._arena.tails.shape[1])
            print(f"{rows:3d} x {frames:2d}: {_line(calls, graphs, floors, rows, frames)}", flush=True)
    found = {}
    for shape in PROFILED:
        program = rig.engine._graphs[shape][1]
        found[f"{shape[0]}x{shape[1]}"] = kernels(program.launches, [launch.name for launch in program.launches])
    return {
        "codec_4frames_ms": calls["4"],
        "floor_ms": floors["4"],
        "codec_ms": {frames: times for frames, times in calls.items() if frames != "4"},
        "graph_ms": graphs,
        "floors_ms": floors,
        "kernels": found["32x4"],
        "kernels_batch_1": found["1x4"],
        "warm_up_seconds": warm,
        "capture_seconds": {f"{r}x{f}": cost.seconds for (r, f), cost in rig.engine.capture_costs.items()},
        "capture_bytes": {f"{r}x{f}": cost.bytes for (r, f), cost in rig.engine.capture_costs.items()},
    }


def _line(calls: dict[str, Any], graphs: dict[str, Any], floors: dict[str, Any], rows: int, frames: int) -> str:
    values = (table[str(frames)][str(rows)] for table in (calls, graphs, floors))
    return "call {:.3f} ms, graph {:.3f} ms, floor {:.3f} ms".format(*values)


def main() -> None:
    """Measures, prints a table and writes the file."""
    parser = argparse.ArgumentParser(prog="python -m gpu.codec", description=__doc__)
    parser.add_argument("--model", help="a checkpoint's directory, or bundled; without it, random weights")
    parser.add_argument("--kind", choices=("float16", "bfloat16"), default="float16", help="number format")
    parser.add_argument("--json", type=Path, default=RESULTS / "h200_codec.json")
    given = parser.parse_args()
    decoder = Checkpoint(given.model).load_codec_decoder() if given.model else random_decoder()
    result = {
        "benchmark": "codec",
        "model": given.model or "official shape, random weights",
        "gpu": torch.cuda.get_device_name(),
        "kind": given.kind,
        **measure(decoder, getattr(torch, given.kind)),
        "error": {name: error(decoder.cpu(), getattr(torch, name)) for name in ("float16", "bfloat16")},
    }
    print("error against float32:", ", ".join(f"{kind} {value:.1e}" for kind, value in result["error"].items()))
    write_atomically(given.json, json.dumps(result, indent=1).encode())


if __name__ == "__main__":
    main()
