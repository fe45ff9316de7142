"""Benchmark of the GPU codec engine: time per decoder call by shape. Run `python -m gpu.codec` on a GPU.

Each shape is timed twice: the whole call from codes to PCM in host memory, and its CUDA graph alone. The floor is the
larger of two times: the arithmetic of the call's frames at the peak rate of the tensor cores, and reading every weight
and every row's state once at the peak memory bandwidth.
"""

import argparse
import json
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from gpu import RESULTS
from gpu.checkpoint import OFFICIAL, codec_std, random_tensor
from gpu.timing import MEMORY_BYTES, REPEATS, TENSOR_FLOPS, elapsed_ms
from syrinx_operator.local.files import write_atomically
from syrinx_stages.codec.cuda.engine import CudaCodecEngine
from syrinx_stages.codec.cuda.forward import ForwardPass
from syrinx_stages.kernels import codec_conv
from syrinx_stages.model.codec.decoder import CodecDecoder
from syrinx_stages.model.config import SpeechTokenizerConfig
from syrinx_stages.model.layers import checkpoint_tensors

FRAMES = (1, 2, 4, 8, 12, 25)
BATCHES = (1, 2, 4, 8, 16, 32, 64)


def random_decoder(seed: int = 0) -> CodecDecoder:
    """Returns a decoder of the official shape with random weights, on the CPU."""
    config = msgspec.convert(OFFICIAL["speech_tokenizer"], SpeechTokenizerConfig).decoder_config
    decoder = CodecDecoder(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, slot in checkpoint_tensors(decoder, "decoder"):
            slot.target.copy_(random_tensor(codec_std(name, slot.shape), slot.shape, generator))
    return decoder.eval().requires_grad_(False)


class Rig:
    """An engine with resident requests whose attention windows are full."""

    def __init__(self, decoder: CodecDecoder, rows: int) -> None:
        self.engine = CudaCodecEngine(decoder, rows, torch.device("cuda"), torch.float16)
        self.ids = [f"request {row}" for row in range(rows)]
        self._generator = np.random.default_rng(0)
        self._codebook_size = decoder.config.codebook_size

    def open_all(self) -> None:
        """Opens every request and decodes more frames than the attention window holds."""
        for request in self.ids:
            self.engine.open(request)
        for _ in range(3):
            self.engine.read(self.engine.launch(self.ids, self.codes(len(self.ids), 25), (len(self.ids), 25)))

    def codes(self, rows: int, frames: int) -> list[list[bytes]]:
        """Returns random frames for each row."""
        values = self._generator.integers(0, self._codebook_size, (rows, frames, 16)).astype("<i2")
        return [[frame.tobytes() for frame in row] for row in values]

    def call_ms(self, rows: int, frames: int, shape_rows: int = 0) -> float:
        """Returns the median time from codes to PCM with one call in flight. shape_rows: of a larger shape."""
        codes, shape = self.codes(rows, frames), (shape_rows or rows, frames)
        times = []
        for _ in range(REPEATS):
            started = time.perf_counter()
            self.engine.read(self.engine.launch(self.ids[:rows], codes, shape))
            times.append(time.perf_counter() - started)
        return statistics.median(times) * 1000

    def graph_ms(self, rows: int, frames: int) -> float:
        """Returns the median time of a captured shape's CUDA graph alone, measured by device events."""
        return elapsed_ms(self.engine.get((rows, frames))[0])[0]


def padding(rig: Rig) -> float:
    """Returns the part of the time of calls that are padded which captured shapes of their own would save.

    Three quarters of the rows are filled, as in the mean of calls that are padded to the next power of two.
    """
    filled = [(rows * 3 // 4, rows) for rows in BATCHES if rows >= 4]
    for rows, _ in filled:
        rig.engine.capture((rows, 4))
    own = sum(rig.call_ms(rows, 4) for rows, _ in filled)
    return 1 - own / sum(rig.call_ms(rows, 4, shape_rows) for rows, shape_rows in filled)


def floor_ms(forward: ForwardPass, rows: int, state_width: int) -> float:
    """Returns the minimum time of a call, from the matrix products that it launches."""
    operations, weight_bytes = 0.0, 0.0
    for launch in forward.launches:
        arguments = launch.arguments
        if launch.kernel is codec_conv.causal_conv:
            matrices = [arguments["weight"]]
        elif launch.kernel is codec_conv.residual_unit:
            matrices = [arguments["weight"], arguments["point_weight"]]
        else:
            continue
        operations += 2.0 * sum(matrix.numel() for matrix in matrices) * arguments["num_positions"]
        weight_bytes += sum(matrix.nbytes for matrix in matrices)
    # The state is read and written once, in 16 bits.
    state_bytes = 2 * rows * state_width * 2
    return max(operations / TENSOR_FLOPS, (weight_bytes + state_bytes) / MEMORY_BYTES) * 1000


def measure(decoder: CodecDecoder) -> dict[str, Any]:
    """Returns all measurements of the JSON file."""
    rig = Rig(decoder, max(BATCHES))
    started = time.perf_counter()
    rig.engine.warm_up()
    warm_up_seconds = time.perf_counter() - started
    rig.open_all()
    calls: dict[str, dict[str, float]] = defaultdict(dict)
    graphs: dict[str, dict[str, float]] = defaultdict(dict)
    floors: dict[str, float] = {}
    for frames in FRAMES:
        for rows in BATCHES:
            rig.engine.capture((rows, frames))
            forward = rig.engine.get((rows, frames))[1]
            call = calls[str(frames)][str(rows)] = rig.call_ms(rows, frames)
            graph = graphs[str(frames)][str(rows)] = rig.graph_ms(rows, frames)
            floor = floor_ms(forward, rows, rig.engine.states.tails.shape[1])
            if frames == 4:
                floors[str(rows)] = floor
            print(
                f"{rows:3d} x {frames:2d}: call {call:.3f} ms, graph {graph:.3f} ms, floor {floor:.3f} ms", flush=True
            )
    return {
        "codec_4frames_ms": calls["4"],
        "floor_ms": floors,
        "codec_ms": {frames: times for frames, times in calls.items() if frames != "4"},
        "graph_ms": graphs,
        "padding": padding(rig),
        "warm_up_seconds": warm_up_seconds,
    }


def main() -> None:
    """Runs the benchmark, prints a table and writes the JSON file."""
    parser = argparse.ArgumentParser(prog="python -m gpu.codec", description=__doc__)
    parser.add_argument("--json", type=Path, default=RESULTS / "h200_codec.json")
    options = parser.parse_args()
    result = {
        "benchmark": "codec",
        "model": "official shape, random weights",
        "gpu": torch.cuda.get_device_name(),
        **measure(random_decoder()),
    }
    write_atomically(options.json, json.dumps(result, indent=1).encode())


if __name__ == "__main__":
    main()
