"""Compares the talker's engines: `python -m gpu.engines MODEL --engine vllm`, one call per engine.

Each engine serves the same requests with the calls of the service: launch, read, 0.2 ms of work, the next launch.
"""

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from msgspec import structs

from gpu import RESULTS
from syrinx_operator.commands.bench.report import markdown
from syrinx_operator.local.files import write_atomically
from syrinx_operator.local.machine import revision
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import Sampling, SpeechRequest, TaskType
from syrinx_stages.contract.settings import StageConfig, TalkerSettings, VllmOptions
from syrinx_stages.families.qwen3_tts import load_talker_engine
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.runtime.settings import LiveSettings
from syrinx_stages.talker.engine import TalkerEngine

# No other process uses the GPU.
_WHOLE_GPU = VllmOptions(gpu_memory_utilization=0.8)
ENGINES: Mapping[str, VllmOptions | None] = {
    "torch": None,
    "vllm": _WHOLE_GPU,
    "vllm-fp8": structs.replace(_WHOLE_GPU, quantization="fp8"),
    "vllm-2-gpus": structs.replace(_WHOLE_GPU, tensor_parallel_size=2),
}
"""vLLM's options by engine name; None for the torch engine."""
BATCHES = (1, 8, 32, 64)
TEXT = "The old teacher found two heavy bags near the river."
WARM_UP_FRAMES = 8
FRAMES = 48
FIRST_FRAMES = 8
"""Number of first frames to time: single requests added to the running batch."""
PUBLISH_SECONDS = 0.0002
"""Simulated work of the service between a step's results and the next launch."""
MAX_FRAMES = WARM_UP_FRAMES + FRAMES + FIRST_FRAMES * 16


class Bench:
    """Benchmarks one engine."""

    def __init__(self, name: str, model: str, device: str, max_batch: int) -> None:
        settings, options = TalkerSettings(max_num_seqs=max_batch + 1), ENGINES[name]
        config = StageConfig(
            pipeline="bench",
            generation="bench",
            model=model,
            device=device,
            max_resident=max_batch + 1,
            talker=settings,
            engine="vllm" if options else "torch",
            vllm=options or VllmOptions(),
        )
        self._engine: TalkerEngine = load_talker_engine(config, torch.device(device), LiveSettings(settings, 0))
        self._engine.warm_up()
        self._voice = sorted(Checkpoint(model).config.talker_config.speakers)[0]
        self._count = 0

    def measure(self, rows: int) -> dict[str, Any]:
        """Returns frame time, first-frame time and throughput at this batch size."""
        ids = self._admit(rows)
        for _ in range(WARM_UP_FRAMES):
            self._step(ids)
        times = [self._step(ids) for _ in range(FRAMES)]
        mean = statistics.mean(times) + PUBLISH_SECONDS
        result = {
            "frame_ms": 1000 * statistics.median(times),
            "audio_s_per_s": rows * FAMILY.frame_seconds / mean,
            "first_frame_ms": 1000 * statistics.median(self._first(ids[1:]) for _ in range(FIRST_FRAMES)),
        }
        for request_id in ids:
            self._engine.release(request_id)
        return result

    def _admit(self, rows: int) -> list[str]:
        requests = [
            SpeechRequest(
                id=f"{self._count + row}", accepted_at=0.0, text=TEXT, task_type=TaskType.CUSTOM_VOICE,
                voice=self._voice, seed=self._count + row, non_streaming_text=False, max_frames=MAX_FRAMES,
                sampling=Sampling(min_frames=MAX_FRAMES),
            )
            for row in range(rows)
        ]  # fmt: skip
        self._count += rows
        self._engine.admit([self._engine.prepare(each, b"", None) for each in requests])
        return [each.id for each in requests]

    def _step(self, ids: Sequence[str]) -> float:
        started = time.perf_counter()
        results = self._engine.read(self._engine.launch(ids))
        seconds = time.perf_counter() - started
        assert len(results) == len(ids), "a step returns a frame of every request"
        next_launch = time.perf_counter() + PUBLISH_SECONDS
        while time.perf_counter() < next_launch:
            pass
        return seconds

    def _first(self, others: Sequence[str]) -> float:
        started = time.perf_counter()
        (new,) = self._admit(1)
        while new not in self._engine.read(self._engine.launch([*others, new])):
            pass
        seconds = time.perf_counter() - started
        self._engine.release(new)
        return seconds


def rows_of(results: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[list[str]]:
    """Returns the table's rows, one for each engine and batch size."""
    return [
        [name, batch, f"{found['frame_ms']:.2f}", f"{found['first_frame_ms']:.2f}", f"{found['audio_s_per_s']:.1f}"]
        for name, by_batch in results.items()
        for batch, found in by_batch.items()
    ]


def main() -> None:
    """Measures one engine, adds it to the result file and prints the file's table."""
    parser = argparse.ArgumentParser(prog="python -m gpu.engines", description=__doc__)
    parser.add_argument("model", help="checkpoint directory, such as gpu.checkpoint writes; or `bundled`")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--batches", type=lambda text: tuple(map(int, text.split(","))), default=BATCHES, help="such as 1,8"
    )
    parser.add_argument("--engine", choices=ENGINES, default="torch")
    parser.add_argument("--json", type=Path, default=RESULTS / "engines.json")
    args = parser.parse_args()
    bench = Bench(args.engine, args.model, args.device, max(args.batches))
    measured = {str(rows): bench.measure(rows) for rows in args.batches}
    engines = json.loads(args.json.read_bytes())["engines"] if args.json.exists() else {}
    engines[args.engine] = measured
    run = {
        "benchmark": "engines",
        "revision": revision(),
        "device": torch.cuda.get_device_name() if args.device != "cpu" else "cpu",
        "torch": torch.__version__,
        "vllm": import_module("vllm").__version__ if find_spec("vllm") else None,
        "engines": engines,
    }
    print(markdown(("engine", "batch", "frame ms", "first frame ms", "audio s/s"), rows_of(engines)))
    write_atomically(args.json, json.dumps(run, indent=1).encode())


if __name__ == "__main__":
    main()
