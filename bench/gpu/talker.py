"""What a talker frame takes, by batch: `python -m gpu.talker` on a GPU.

Timed in the order of calls that the service makes: launch, read, a fifth of a millisecond of work, the next launch.
Beside it the two graphs of a frame alone, how long the device waits between two frames, and the floor: what a frame
must read and write, at the memory's rate, or its arithmetic at the tensor cores', whichever is longer. Then what the
parts of a frame take (`gpu.breakdown`), and what the number formats change in what is said (`gpu.precision`).
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from gpu import precision
from gpu.breakdown import breakdown
from gpu.checkpoint import SIZES, DrawnCheckpoint, write_configs
from gpu.options import RESULTS
from gpu.timing import MEMORY_BYTES, TENSOR_FLOPS, elapsed_ms, stamp
from syrinx_operator.local.files import write_atomically
from syrinx_stages.contract.messages import Sampling, SpeechRequest, TaskType
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.config import CODE_GROUPS, TalkerConfig, TransformerConfig
from syrinx_stages.model.prompt import Prompt
from syrinx_stages.runtime.errors import RequestError
from syrinx_stages.talker.allocation import bucket_for
from syrinx_stages.talker.cuda_engine import LENGTHS, MOST_PAGES, PREFILL_ROWS, CudaTalkerEngine, Step
from syrinx_stages.talker.engine import Prepared
from syrinx_stages.talker.frame import Frame, Prefill

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
LARGE = (256, 512)
FIRST = (1, 4, 8)
"""Requests that come at once, for the first frame."""
PROFILED = (1, 32)
PROMPT = 22
"""Positions: a voice, a language and a dozen words."""
TEXTS = 20
"""Rows of text that come with the frames."""
WARM = 8
"""Frames of every request before those that are timed."""
FRAMES = 48
"""That are timed, until an utterance's mean length is over."""
ROUNDS = 3
FIRSTS = 12
"""First frames that are timed."""
MIDDLE = PROMPT + WARM + FRAMES // 2
"""The position that floors and graphs are about: the mean of those that are timed."""
PUBLISHING = 0.0002
"""Seconds from a step's results to the next launch: what the service does in between."""
BYTES = 2
"""Of a number in bfloat16."""


class Size(NamedTuple):
    """What a frame works through, in numbers: once for the whole batch, and for each row."""

    weights: int
    """Read, and multiplied with, once a frame."""
    position: int
    """Keys and values of one position of one row."""


def size_of(config: TalkerConfig) -> Size:
    """Of a talker: its layers once; the predictor's once for each residual code, the first of which has two inputs."""
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
    """What a frame of rows at a position takes at least. The predictor's keys and values stay in the cache."""
    size = size_of(config)
    bytes_moved = BYTES * (size.weights + rows * size.position * (position + 1))
    return max(bytes_moved / MEMORY_BYTES, 2.0 * rows * size.weights / TENSOR_FLOPS) * 1000


class Moments(NamedTuple):
    """When a frame's work began on the device, had its codes, and was done: milliseconds."""

    begun: float
    drawn: float
    done: float


def gaps(frames: Iterable[Moments], draw_ms: float) -> list[float]:
    """How long the device waited between each two frames.

    By the events around them; and where a graph began later than it was announced, by when its codes were drawn, which
    takes it `draw_ms`.
    """
    return [max(after.begun, after.drawn - draw_ms) - before.done for before, after in pairwise(frames)]


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of them does not exceed."""
    return sorted(values)[math.ceil(len(values) * share) - 1]


class Engine(CudaTalkerEngine):
    """The engine with the graphs that are measured alone: to compile and record all would take most of the time."""

    def __init__(self, checkpoint: Checkpoint, batches: Sequence[int]) -> None:
        super().__init__(checkpoint, max(batches))
        self._sizes = sorted(batches)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Records frames of the batches, and prefills of the prompts' length."""
        length, record = bucket_for(LENGTHS, PROMPT), self._recorder.capture_graph
        with self._recorder.on_stream():
            for rows in PREFILL_ROWS:
                prefill = Prefill(self._weights, self._arena, rows, length, MOST_PAGES)
                self._prefills[rows, length] = prefill, record(prefill.run)
            for rows in self._sizes:
                frame = Frame(self._weights, self._config, self._arena, rows, MOST_PAGES)
                self._frames[rows] = frame, record(frame.draw_codes), record(frame.advance)
        self._recorder.record_event()()


class Rig:
    """An engine, and requests that never end."""

    def __init__(self, checkpoint: Checkpoint, batches: Sequence[int]) -> None:
        self.engine = Engine(checkpoint, batches)
        self.batches = sorted(batches)
        self.config = checkpoint.config.talker_config
        self._ids = torch.Generator().manual_seed(0)

    def requests(self, rows: int) -> list[Prepared]:
        """Random prompts, and the sampling of the official package; none draws its end."""
        talker, sampling = self.engine._talker, Sampling(min_frames=1 << 20)
        made = []
        for row in range(rows):
            ids = torch.randint(self.config.text_vocab_size, (PROMPT + TEXTS + 1,), generator=self._ids)
            with self.engine._recorder.on_stream():
                texts = talker.embed_text(ids.to(talker.device))
                codes = torch.zeros((0, CODE_GROUPS), dtype=torch.int64, device=talker.device)
            prompt = Prompt(texts[:PROMPT], texts[PROMPT:-1], texts[-1])
            request = SpeechRequest(
                id=str(row), accepted_at=0.0, text="", task_type=TaskType.CUSTOM_VOICE, sampling=sampling, seed=row
            )
            made.append(Prepared(request=request, prompt=prompt, codes=codes, max_frames=1 << 20))
        self.engine._recorder.record_event()()
        return made

    def admit(self, requests: Sequence[Prepared]) -> list[str]:
        """Prefills requests as the service does; returns their ids."""
        for first in range(0, len(requests), self.engine.prefill_rows):
            self.engine.admit(requests[first : first + self.engine.prefill_rows])
        return [each.request.id for each in requests]

    def release(self, ids: Iterable[str]) -> None:
        """Ends requests, and waits for what was queued."""
        for request in ids:
            self.engine.release(request)
        self.engine._recorder.record_event()()

    def run(self, ids: Sequence[str], frames: int) -> list[float]:
        """Frames of all, as the service orders them; returns when each was launched, in seconds."""
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
        """The two graphs of a frame: drawing codes, and feeding them."""
        ids = self.admit(self.requests(rows))
        self.run(ids, MIDDLE - PROMPT)
        _, draw, advance = self.engine._frames[rows]
        with self.engine._recorder.on_stream():
            drawn, fed = elapsed_ms(draw, advance)
        self.release(ids)
        return drawn, fed

    def parts(self, rows: int) -> list[dict[str, Any]]:
        """What the parts of a frame take."""
        ids = self.admit(self.requests(rows))
        self.run(ids, MIDDLE - PROMPT)
        found = breakdown(self.engine, rows)
        self.release(ids)
        return found

    def steady(self, rows: int, draw_ms: float) -> tuple[list[float], list[float]]:
        """Frame by frame, milliseconds from launch to launch, and those that the device waited."""
        frame, draw, advance = self.engine._frames[rows]
        marks: list[torch.cuda.Event] = []

        def drawn() -> None:
            marks.append(stamp())
            draw()
            marks.append(stamp())

        def fed() -> None:
            advance()
            marks.append(stamp())

        times: list[float] = []
        waits: list[float] = []
        self.engine._frames[rows] = frame, drawn, fed
        for _ in range(ROUNDS):
            ids = self.admit(self.requests(rows))
            marks.clear()
            launched = self.run(ids, WARM + FRAMES)[WARM:]
            self.release(ids)
            moments = [float(marks[0].elapsed_time(mark)) for mark in marks[3 * WARM :]]
            times += [1000 * (after - before) for before, after in pairwise(launched)]
            waits += gaps(list(map(Moments, moments[::3], moments[1::3], moments[2::3])), draw_ms)
        self.engine._frames[rows] = frame, draw, advance
        return times, waits

    def first_frame_ms(self, rows: int) -> float:
        """From the prefill's launch to the first codes, of requests that come at once: the median."""
        times = []
        for _ in range(FIRSTS):
            requests = self.requests(rows)
            begin = time.perf_counter()
            ids = self.admit(requests)
            self.engine.read(self.engine.launch(ids))
            times.append(1000 * (time.perf_counter() - begin))
            self.release(ids)
        return statistics.median(times)


def _busy(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


@torch.inference_mode()
def measure(rig: Rig) -> dict[str, Any]:
    """The times."""
    begin = time.perf_counter()
    rig.engine.warm_up()
    told: dict[str, Any] = defaultdict(dict)
    told["warm_up_seconds"] = time.perf_counter() - begin
    graphs: dict[str, dict[str, float]] = defaultdict(dict)
    # As a stage does when it is ready: what lives as long as the process is not looked at again.
    gc.collect()
    gc.freeze()
    print(f"warm in {told['warm_up_seconds']:.1f} s", flush=True)
    for rows in rig.batches:
        key = str(rows)
        draw, advance = rig.graphs_ms(rows)
        graphs["draw"][key], graphs["advance"][key], graphs["frame"][key] = draw, advance, draw + advance
        times, waits = rig.steady(rows, draw)
        told["talker_frame_ms"][key] = statistics.median(times)
        told["floor_ms"][key] = floor_ms(rig.config, rows, MIDDLE)
        told["launch_gap_ms"][key] = statistics.median(waits)
        told["launch_gap_p99_ms"][key] = percentile(waits, 0.99)
        if rows in FIRST:
            told["first_frame_ms"][key] = rig.first_frame_ms(rows)
        print(_line(rows, told, graphs), flush=True)
    told["graph_ms"] = graphs
    for rows, name in zip(PROFILED, ("kernels_batch_1", "kernels"), strict=True):
        if rows in rig.batches:
            told[name] = rig.parts(rows)
            print(f"batch {rows}:", ", ".join(f"{part['name']} {part['ms']:.3f}" for part in told[name]), flush=True)
    return dict(told)


def _line(rows: int, told: dict[str, Any], graphs: dict[str, dict[str, float]]) -> str:
    key = str(rows)
    first = f", first frame {told['first_frame_ms'][key]:.3f}" if rows in FIRST else ""
    return (
        f"{rows:3d} rows: frame {told['talker_frame_ms'][key]:.3f} ms, floor {told['floor_ms'][key]:.3f}, graphs "
        f"{graphs['draw'][key]:.3f} + {graphs['advance'][key]:.3f}, between frames {told['launch_gap_ms'][key]:.4f} "
        f"(p99 {told['launch_gap_p99_ms'][key]:.4f}){first}"
    )


def main() -> None:
    """Measures, prints a table and writes the file."""
    parser = argparse.ArgumentParser(prog="python -m gpu.talker", description=__doc__)
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--size", choices=SIZES, default="1b7", help="real shapes, random weights (default: 1b7)")
    model.add_argument("--model", help="a checkpoint's directory, or bundled")
    parser.add_argument("--batches", type=lambda text: tuple(map(int, text.split(","))), help="as 1,32")
    parser.add_argument("--large", action="store_true", help=f"batches {', '.join(map(str, LARGE))} too")
    parser.add_argument("--no-precision", action="store_true", help="times alone")
    parser.add_argument("--json", type=Path, default=RESULTS / "h200_talker.json")
    given = parser.parse_args()
    batches = (given.batches or BATCHES) + (LARGE if given.large else ())
    with TemporaryDirectory() as directory:
        name, load = _model(given.model, given.size, Path(directory))
        compared = {name: load}
        if not given.model:
            compared["bundled voice"] = lambda kind: Checkpoint("bundled", "cuda", kind)
        result: dict[str, Any] = {"benchmark": "talker", "model": name, "gpu": torch.cuda.get_device_name()}
        result |= measure(Rig(load(torch.bfloat16), batches))
        # Written before the rest: a run that is cut short loses only that.
        _write(given.json, result)
        result["precision"] = {}
        for which, loaded in {} if given.no_precision else compared.items():
            try:
                result["precision"][which] = precision.compare(loaded)
            except RequestError as error:
                print(f"{which} is not compared with float32: {error}")
                continue
            print(precision.table(which, result["precision"][which]), flush=True)
            _write(given.json, result)


def _model(model: str | None, size: str, directory: Path) -> tuple[str, Callable[[torch.dtype], Checkpoint]]:
    """What is measured, by name, and what gives its checkpoint in a number format."""
    if model:
        return model, lambda kind: Checkpoint(model, "cuda", kind)
    write_configs(directory, size)
    name = {"0b6": "0.6B", "1b7": "1.7B"}[size]
    return f"{name}, random weights", lambda kind: DrawnCheckpoint(directory, "cuda", kind)


def _write(file: Path, result: dict[str, Any]) -> None:
    write_atomically(file, json.dumps(result, indent=1).encode())


if __name__ == "__main__":
    main()
