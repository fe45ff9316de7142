"""Measures the engines of this machine: the bundled voice on one core, by rows and frames.

It reports CPU time of the engine's thread (median of several runs), which other load does not affect as it does wall
time. `calibrate` fits the factor to the wall time of a pipeline.
"""

import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from syrinx_stages.codec.eager_engine import EagerCodecEngine
from syrinx_stages.contract.messages import SpeechRequest, TaskType
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.talker.eager_engine import EagerTalkerEngine

ROWS = (1, 2, 4, 8, 16)
FRAMES = (1, 2, 4, 8, 12, 25)
TEXT = "The harbour lay quiet under a thin layer of morning fog."
VOICE = "us"
REPEATS = 15


def _seconds(work: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        started = time.thread_time()
        work()
        times.append(time.thread_time() - started)
    return statistics.median(times)


def talker(checkpoint: Checkpoint) -> dict[str, Any]:
    """Measures prefill of a sentence, and steps by rows."""
    engine = EagerTalkerEngine(checkpoint)
    engine.warm_up()
    names = itertools.count()

    def admit() -> str:
        request = SpeechRequest(
            id=f"{next(names)}", accepted_at=0.0, text=TEXT, task_type=TaskType.CUSTOM_VOICE, voice=VOICE
        )
        engine.admit([engine.prepare(request, b"", None)])
        return request.id

    prefill = _seconds(lambda: engine.release(admit()))
    steps = {}
    for rows in ROWS:
        ids = [admit() for _ in range(rows)]
        steps[rows] = _seconds(lambda ids=ids: engine.launch(ids))  # type: ignore[misc]
        for each in ids:
            engine.release(each)
    return {"prefill": prefill, "step": steps}


def codec(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """Measures decoder calls by rows and frames."""
    engine = EagerCodecEngine(checkpoint.load_codec_decoder(), max(ROWS))
    engine.warm_up()
    frame = b"\1\0" * 16
    calls = []
    for rows, frames in itertools.product(ROWS, FRAMES):
        ids = [str(row) for row in range(rows)]
        for each in ids:
            engine.open(each)
        codes = [[frame] * frames for _ in ids]
        decode = lambda ids=ids, codes=codes, shape=(rows, frames): engine.launch(ids, codes, shape)  # noqa: E731
        calls.append({"rows": rows, "frames": frames, "seconds": _seconds(decode)})
        for each in ids:
            engine.release(each)
    return calls


def main(path: Path) -> None:
    """Measures, and writes JSON."""
    torch.set_num_threads(1)
    checkpoint = Checkpoint("bundled", torch.device("cpu"))
    measured = {"talker": talker(checkpoint), "codec": codec(checkpoint)}
    path.write_text(json.dumps(measured, indent=1) + "\n")
    print(json.dumps(measured))
