"""Measures the time of a talker frame by batch size: `python -m gpu.talker` on a GPU.

Frames are timed in the service's order of calls: launch, read, 0.2 ms of other work, the next launch. Also measures
the two graphs of a frame alone and the device's idle time between frames. The floor is the time to move the frame's
bytes at full memory bandwidth, or to compute its products at the tensor cores' peak, whichever is longer.
"""

import argparse
import gc
import json
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from gpu import RESULTS, SIZE_NAMES
from gpu.checkpoint import RandomCheckpoint, write_configs
from gpu.timing import MEMORY_BYTES, TENSOR_FLOPS, elapsed_ms, record_event
from syrinx_operator.local.files import write_atomically
from syrinx_stages.contract.messages import Sampling, SpeechRequest, TaskType
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.config import CODE_GROUPS, TalkerConfig, TransformerConfig
from syrinx_stages.talker.cuda.allocation import bucket_for
from syrinx_stages.talker.cuda.engine import CudaTalkerEngine, Step
from syrinx_stages.talker.cuda.prefill import PREFILL_LENGTHS, PREFILL_ROWS
from syrinx_stages.talker.inputs import NO_CODE, Prompt
from syrinx_stages.talker.prompt import Prepared

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
LARGE = (256, 512)
FIRST = (1, 4, 8)
"""Simultaneous requests, for the first frame."""
PROMPT = 22
"""Prompt positions: a voice, a language and a dozen words."""
TEXTS = 20
"""Text rows that are added to the frames."""
WARM = 8
"""Frames of every request before the timed ones."""
FRAMES = 48
"""Timed frames, up to an utterance's mean length."""
ROUNDS = 3
FIRSTS = 12
"""Timed first frames."""
MIDDLE = PROMPT + WARM + FRAMES // 2
"""The mean position of the timed frames, used for floors and graphs."""
PUBLISHING = 0.0002
"""Seconds from a step's results to the next launch, which the service uses to publish frames."""
BYTES = 2
"""Of a bfloat16 number."""


class Size(NamedTuple):
    """The size of a frame, in elements."""

    weights: int
    """Weights that are read once per frame."""
    position: int
    """Keys and values of one position of one row."""


def size_of(config: TalkerConfig) -> Size:
    """Returns a talker's size: its layers count once, the predictor's once for each residual code."""
    predictor = config.code_predictor_config
    heads = (config.vocab_size + predictor.hidden_size) * config.hidden_size
    codes = (CODE_GROUPS - 1) * (_layers(predictor) + predictor.vocab_size * predictor.hidden_size)
    position = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_size
    return Size(weights=_layers(config) + heads + codes, position=position)


def _layers(config: TransformerConfig) -> int:
    queries, keys = (heads * config.head_size for heads in (config.num_attention_heads, config.num_key_value_heads))
    matrices = 2 * (queries + keys) + 3 * config.intermediate_size
    return config.num_hidden_layers * config.hidden_size * matrices


def floor_ms(config: TalkerConfig, rows: int, position: int) -> float:
    """Returns the lower bound of a frame's time. The predictor's keys and values stay in the L2 cache."""
    size = size_of(config)
    bytes_moved = BYTES * (size.weights + rows * size.position * (position + 1))
    return max(bytes_moved / MEMORY_BYTES, 2.0 * rows * size.weights / TENSOR_FLOPS) * 1000


class Moments(NamedTuple):
    """When a frame's work started on the device, its codes were sampled, and it was done: milliseconds."""

    started: float
    sampled: float
    done: float


def gaps(frames: Iterable[Moments], sample_ms: float) -> list[float]:
    """Returns the device's idle time between consecutive frames, in milliseconds.

    A graph may start later than the event before it: so the start is at least `sample_ms`, the time of the sampling
    graph, before its codes were sampled.
    """
    return [max(after.started, after.sampled - sample_ms) - before.done for before, after in pairwise(frames)]


class Engine(CudaTalkerEngine):
    """The engine with only the measured graphs: capturing all would take most of the time."""

    def __init__(self, checkpoint: Checkpoint, batches: Sequence[int]) -> None:
        super().__init__(checkpoint, max(batches))
        self.runner.batch_sizes = sorted(batches)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Captures frames of the measured batches and prefills of the prompts' length."""
        runner, length = self.runner, bucket_for(PREFILL_LENGTHS, PROMPT)
        with runner.recorder.on_stream():
            for rows in PREFILL_ROWS:
                runner.capture_prefill(runner.new_prefill(rows, length))
            for rows in runner.batch_sizes:
                runner.capture_frame(runner.new_frame(rows))
        runner.recorder.record_event()()


class Rig:
    """An engine and requests that never end."""

    def __init__(self, checkpoint: Checkpoint, batches: Sequence[int]) -> None:
        self.engine = Engine(checkpoint, batches)
        self.batches = sorted(batches)
        self.config = checkpoint.config.talker_config
        self._ids = torch.Generator().manual_seed(0)

    def requests(self, rows: int) -> list[Prepared]:
        """Returns requests with random prompts and the default sampling; none samples EOS."""
        talker, sampling = self.engine._talker, Sampling(min_frames=1 << 20)
        prepared = []
        for row in range(rows):
            ids = torch.randint(self.config.text_vocab_size, (PROMPT + TEXTS + 1,), generator=self._ids)
            with self.engine.runner.recorder.on_stream():
                codes = torch.zeros((0, CODE_GROUPS), dtype=torch.int64, device=talker.device)
            inputs = torch.stack((ids[:PROMPT], torch.full((PROMPT,), NO_CODE)), 1).to(torch.int32).numpy()
            prompt = Prompt(inputs, ids[PROMPT:-1].tolist(), pad=int(ids[-1]))
            request = SpeechRequest(
                id=str(row), accepted_at=0.0, text="", task_type=TaskType.CUSTOM_VOICE, sampling=sampling, seed=row
            )
            prepared.append(Prepared(request=request, prompt=prompt, codes=codes, max_frames=1 << 20))
        self.engine.runner.recorder.record_event()()
        return prepared

    def admit(self, requests: Sequence[Prepared]) -> list[str]:
        """Prefills requests as the service does. Returns their ids."""
        for first in range(0, len(requests), self.engine.prefill_rows):
            self.engine.admit(requests[first : first + self.engine.prefill_rows])
        return [each.request.id for each in requests]

    def release(self, ids: Iterable[str]) -> None:
        """Releases requests and waits for the device."""
        for request in ids:
            self.engine.release(request)
        self.engine.runner.recorder.record_event()()

    def run(self, ids: Sequence[str], frames: int) -> list[float]:
        """Runs frames of all requests as the service does. Returns each launch's time, in seconds."""
        launched: list[float] = []
        steps: deque[Step] = deque()
        for _ in range(frames):
            launched.append(time.perf_counter())
            steps.append(self.engine.launch(ids))
            if len(steps) == self.engine.depth:
                self.engine.read(steps.popleft())
                _busy(PUBLISHING)
        while steps:
            self.engine.read(steps.popleft())
        return launched

    def graphs_ms(self, rows: int) -> tuple[float, float]:
        """Returns the times of a frame's two graphs: sampling and decoding."""
        ids = self.admit(self.requests(rows))
        self.run(ids, MIDDLE - PROMPT)
        _, sample, decode = self.engine.runner.frames[rows]
        with self.engine.runner.recorder.on_stream():
            sampled, decoded = elapsed_ms(sample, decode)
        self.release(ids)
        return sampled, decoded

    def steady(self, rows: int, sample_ms: float) -> tuple[list[float], list[float]]:
        """Returns, for each frame, milliseconds from launch to launch, and those that the device was idle."""
        frames = self.engine.runner.frames
        step, sample_codes, decode_codes = captured = frames[rows]
        events: list[torch.cuda.Event] = []

        def sample() -> None:
            events.append(record_event())
            sample_codes()
            events.append(record_event())

        def decode() -> None:
            decode_codes()
            events.append(record_event())

        times: list[float] = []
        idle: list[float] = []
        frames[rows] = step, sample, decode
        for _ in range(ROUNDS):
            ids = self.admit(self.requests(rows))
            events.clear()
            launched = self.run(ids, WARM + FRAMES)[WARM:]
            self.release(ids)
            moments = [float(events[0].elapsed_time(each)) for each in events[3 * WARM :]]
            times += [1000 * (after - before) for before, after in pairwise(launched)]
            idle += gaps(list(map(Moments, moments[::3], moments[1::3], moments[2::3])), sample_ms)
        frames[rows] = captured
        return times, idle

    def first_frame_ms(self, rows: int) -> float:
        """Returns the median time from the prefill's launch to the first codes of simultaneous requests."""
        times = []
        for _ in range(FIRSTS):
            requests = self.requests(rows)
            started = time.perf_counter()
            ids = self.admit(requests)
            self.engine.read(self.engine.launch(ids))
            times.append(1000 * (time.perf_counter() - started))
            self.release(ids)
        return statistics.median(times)


def _busy(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


@torch.inference_mode()
def measure(rig: Rig) -> dict[str, Any]:
    """Returns all measured times."""
    started = time.perf_counter()
    rig.engine.warm_up()
    result: dict[str, Any] = defaultdict(dict)
    result["warm_up_seconds"] = time.perf_counter() - started
    graphs: dict[str, dict[str, float]] = defaultdict(dict)
    # As a stage does when it is ready: excludes long-lived objects from garbage collection.
    gc.collect()
    gc.freeze()
    print(f"warm in {result['warm_up_seconds']:.1f} s", flush=True)
    for rows in rig.batches:
        key = str(rows)
        sample, decode = rig.graphs_ms(rows)
        graphs["draw"][key], graphs["advance"][key], graphs["frame"][key] = sample, decode, sample + decode
        times, idle = rig.steady(rows, sample)
        result["talker_frame_ms"][key] = statistics.median(times)
        result["floor_ms"][key] = floor_ms(rig.config, rows, MIDDLE)
        result["launch_gap_ms"][key] = statistics.median(idle)
        result["launch_gap_p99_ms"][key] = statistics.quantiles(idle, n=100)[98]
        if rows in FIRST:
            result["first_frame_ms"][key] = rig.first_frame_ms(rows)
        print(_line(rows, result, graphs), flush=True)
    result["graph_ms"] = graphs
    return dict(result)


def _line(rows: int, result: dict[str, Any], graphs: dict[str, dict[str, float]]) -> str:
    key = str(rows)
    first = f", first frame {result['first_frame_ms'][key]:.3f}" if rows in FIRST else ""
    return (
        f"{rows:3d} rows: frame {result['talker_frame_ms'][key]:.3f} ms, floor {result['floor_ms'][key]:.3f}, graphs "
        f"{graphs['draw'][key]:.3f} + {graphs['advance'][key]:.3f}, between frames {result['launch_gap_ms'][key]:.4f} "
        f"(p99 {result['launch_gap_p99_ms'][key]:.4f}){first}"
    )


def main() -> None:
    """Measures, prints a table and writes the JSON file."""
    parser = argparse.ArgumentParser(prog="python -m gpu.talker", description=__doc__)
    parser.add_argument("--size", choices=SIZE_NAMES, default="1b7", help="real shapes, random weights (default: 1b7)")
    parser.add_argument("--batches", type=lambda text: tuple(map(int, text.split(","))), help="such as 1,32")
    parser.add_argument("--large", action="store_true", help=f"also batches {', '.join(map(str, LARGE))}")
    parser.add_argument("--json", type=Path, default=RESULTS / "h200_talker.json")
    given = parser.parse_args()
    batches = (given.batches or BATCHES) + (LARGE if given.large else ())
    with TemporaryDirectory() as directory:
        write_configs(Path(directory), given.size)
        times = measure(Rig(RandomCheckpoint(directory, "cuda", torch.bfloat16), batches))
    model = f"{SIZE_NAMES[given.size]}, random weights"
    result = {"benchmark": "talker", "model": model, "gpu": torch.cuda.get_device_name(), **times}
    write_atomically(given.json, json.dumps(result, indent=1).encode())


if __name__ == "__main__":
    main()
