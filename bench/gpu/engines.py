"""The talker's engines beside each other: `python -m gpu.engines` where vLLM is installed too.

The same requests by the same calls that the service makes: launch, read, a fifth of a millisecond of work, the next
launch. Each engine has a process of its own, one after the other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec import structs

from gpu import table
from gpu.options import RESULTS
from gpu.passes import watched
from syrinx_operator.local.files import write_atomically
from syrinx_operator.local.machine import revision
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import Sampling, SpeechRequest, TaskType
from syrinx_stages.contract.settings import StageConfig, TalkerSettings, VllmOptions
from syrinx_stages.families.qwen3_tts import load_talker_engine
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.runtime.settings import LiveSettings
from syrinx_stages.talker.engine import TalkerEngine

# The card is the talker's alone, as it is with the torch engine.
_CARD = VllmOptions(gpu_memory_utilization=0.8)
ENGINES: Mapping[str, VllmOptions | None] = {
    "torch": None,
    "vllm": _CARD,
    "vllm-fp8": structs.replace(_CARD, quantization="fp8"),
    "vllm-2-gpus": structs.replace(_CARD, tensor_parallel_size=2),
}
"""By name: how vLLM is started; None is the torch engine."""
USUAL = ("torch", "vllm")
BATCHES = (1, 8, 32, 64)
TEXT = "The old teacher found two heavy bags near the river."
WARM = 8
"""Frames of every request before those that are timed."""
FRAMES = 48
FIRSTS = 8
"""First frames that are timed, one request after the other beside those that speak."""
WATCHED = 48
"""Frames between whose passes gaps are looked for."""
PUBLISHING = 0.0002
"""Seconds from a step's results to the next launch: what the service does in between."""
GAP = 0.02
"""Milliseconds in which the device does nothing, from which on that counts."""
LONGEST = WARM + FRAMES + WATCHED + FIRSTS * 16


class Bench:
    """One engine."""

    def __init__(self, name: str, model: str, device: str, most: int) -> None:
        settings, options = TalkerSettings(max_num_seqs=most + 1), ENGINES[name]
        config = StageConfig(
            pipeline="bench", generation="bench", model=model, device=device, max_resident=most + 1, talker=settings,
            engine="vllm" if options else "torch", vllm=options or VllmOptions(),
        )  # fmt: skip
        # Passes are seen in this process alone.
        self._watches = device != "cpu" and not (options and options.tensor_parallel_size > 1)
        self._engine: TalkerEngine[Any] = load_talker_engine(config, torch.device(device), LiveSettings(settings, 0))
        self._engine.warm_up()
        self._voice = sorted(Checkpoint(model).config.talker_config.speakers)[0]
        self._count = 0

    def measure(self, rows: int) -> dict[str, Any]:
        """Frame time, first frame, audio and gaps at so many at once."""
        ids = self._enter(rows)
        for _ in range(WARM):
            self._step(ids)
        times = [self._step(ids) for _ in range(FRAMES)]
        mean = statistics.mean(times) + PUBLISHING
        found = {
            "frame_ms": 1000 * statistics.median(times),
            "audio_s_per_s": rows * FAMILY.frame_seconds / mean,
            "first_frame_ms": 1000 * statistics.median(self._first(ids[1:]) for _ in range(FIRSTS)),
        }
        if self._watches:
            found |= self._idle(ids)
        for request_id in ids:
            self._engine.release(request_id)
        return found

    def _enter(self, rows: int) -> list[str]:
        requests = [
            SpeechRequest(
                id=f"{self._count + row}", accepted_at=0.0, text=TEXT, task_type=TaskType.CUSTOM_VOICE,
                voice=self._voice, seed=self._count + row, non_streaming_text=False, max_frames=LONGEST,
                sampling=Sampling(min_frames=LONGEST),
            )
            for row in range(rows)
        ]  # fmt: skip
        self._count += rows
        self._engine.admit([self._engine.prepare(each, b"", None) for each in requests])
        return [each.id for each in requests]

    def _step(self, ids: Sequence[str]) -> float:
        """Seconds of one frame of all."""
        began = time.perf_counter()
        results = self._engine.read(self._engine.launch(ids))
        took = time.perf_counter() - began
        assert len(results) == len(ids), "every request has a frame"
        until = time.perf_counter() + PUBLISHING
        while time.perf_counter() < until:
            pass
        return took

    def _first(self, others: Sequence[str]) -> float:
        """Seconds to the first frame of one more."""
        began = time.perf_counter()
        (new,) = self._enter(1)
        while new not in self._engine.read(self._engine.launch([*others, new])):
            pass
        took = time.perf_counter() - began
        self._engine.release(new)
        return took

    def _idle(self, ids: Sequence[str]) -> dict[str, float]:
        """How often, and which share of the time, the device does nothing between two passes."""
        with watched(self._engine) as passes:
            for _ in range(WATCHED):
                self._step(ids)
        gaps = [gap for gap in passes.gaps() if gap >= GAP]
        return {"gaps_a_frame": len(gaps) / WATCHED, "idle_share": sum(gaps) / passes.total()}


def rows_of(results: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[list[str]]:
    """The table, a line for each engine and batch."""
    lines = []
    for name, by_batch in results.items():
        for batch, found in by_batch.items():
            gaps = (
                [f"{found['gaps_a_frame']:.1f}", f"{found['idle_share']:.1%}"] if "idle_share" in found else ["-", "-"]
            )
            times = [f"{found[key]:.2f}" for key in ("frame_ms", "first_frame_ms")]
            lines.append([name, batch, *times, f"{found['audio_s_per_s']:.1f}", *gaps])
    return lines


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := set(names) - set(ENGINES):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: give some of {', '.join(ENGINES)}")
    return names


def main() -> None:
    """Runs each engine in a process of its own, prints a table and writes the file."""
    parser = argparse.ArgumentParser(prog="python -m gpu.engines", description=__doc__)
    parser.add_argument("model", help="a checkpoint's directory, such as gpu.checkpoint writes; or bundled")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batches", type=lambda text: tuple(map(int, text.split(","))), default=BATCHES, help="as 1,8")
    parser.add_argument("--engines", type=_names, default=USUAL, help=f"of {','.join(ENGINES)} (default: torch,vllm)")
    parser.add_argument("--alone", choices=ENGINES, help="this one, in this process, as JSON")
    parser.add_argument("--json", type=Path, default=RESULTS / "engines.json")
    given = parser.parse_args()
    if given.alone:
        bench = Bench(given.alone, given.model, given.device, max(given.batches))
        print(json.dumps({str(rows): bench.measure(rows) for rows in given.batches}), flush=True)
        return
    results = {}
    for name in given.engines:
        command = [sys.executable, "-m", "gpu.engines", *sys.argv[1:], "--alone", name]
        child = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        results[name] = msgspec.json.decode(child.stdout.splitlines()[-1], type=dict[str, dict[str, float]])
    head = ("engine", "at once", "frame ms", "first frame ms", "audio s/s", "gaps a frame", "device idle")
    print(table.markdown(head, rows_of(results)))
    run = {
        "benchmark": "engines",
        "revision": revision(),
        "device": torch.cuda.get_device_name() if given.device != "cpu" else "cpu",
        "torch": torch.__version__,
        "vllm": import_module("vllm").__version__ if find_spec("vllm") else None,
        "engines": results,
    }
    write_atomically(given.json, json.dumps(run, indent=1).encode())


if __name__ == "__main__":
    main()
