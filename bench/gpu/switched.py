"""A stage with one technique switched off: `python -m gpu.switched SWITCH STAGE CONFIG.json`.

Each switch changes the product's classes in this process, before the stage starts.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal
from unittest.mock import patch

from syrinx_stages.contract.stages import Stage
from syrinx_stages.runtime.process import run
from syrinx_stages.runtime.signals import exit_on_signals

Switch = Literal["queued-step", "codec-batching", "captured-shapes", "deadline-order", "change-feed"]
"""The techniques that can be switched off in a running service."""


def read_complete_steps() -> None:
    """One step of the talker at a time: its codes count as ready when the whole step is done, the next hidden states
    included, and only then is the next step enqueued."""
    from syrinx_stages.talker.cuda.engine import CudaTalkerEngine
    from syrinx_stages.talker.cuda.model_runner import ModelRunner

    patch.object(CudaTalkerEngine, "depth", 1).start()
    decode = ModelRunner.decode

    def decode_and_wait_for_all(self: ModelRunner, *arguments: Any) -> tuple[int, Callable[[], None]]:
        ring, _ = decode(self, *arguments)
        return ring, self.recorder.record_event()

    patch.object(ModelRunner, "decode", decode_and_wait_for_all).start()


def decode_one_request_a_call() -> None:
    """The codec decodes one request in each call."""
    from msgspec import structs

    from syrinx_stages.codec import service

    schedule: Callable[..., Any] = vars(service)["schedule"]

    def schedule_one(rows: Any, now: float, settings: Any, *arguments: Any) -> Any:
        return schedule(rows, now, structs.replace(settings, max_num_seqs=1), *arguments)

    patch.object(service, "schedule", schedule_one).start()


def capture_no_calls() -> None:
    """The codec captures no shape, and launches each kernel of a call."""
    from syrinx_stages.codec.shapes import CapturedShapes

    patch.object(CapturedShapes, "change_due", lambda self, wanted, idle: False).start()


class _InOrderOfArrival:
    """A row of the codec without a deadline: rows are then sorted by arrival."""

    def __init__(self, row: Any) -> None:
        self._row = row

    def __getattr__(self, name: str) -> Any:
        return getattr(self._row, name)

    def underrun_at(self) -> float:
        return 0.0


def serve_in_order_of_arrival() -> None:
    """Talker and codec choose the rows of a step by the arrival of their requests instead of by deadline."""
    from syrinx_stages.scheduling import codec as codec_scheduler
    from syrinx_stages.scheduling import talker as talker_scheduler

    ready_rows: Callable[..., tuple[list[tuple[Any, int]], float]] = codec_scheduler.ready_rows

    def by_arrival(due: list[tuple[float, int, float, str]], count: int) -> list[str]:
        return [name for *_, name in sorted(due, key=lambda row: row[2])[:count]]

    def without_deadlines(*arguments: Any) -> tuple[list[Any], float]:
        ready, wake_at = ready_rows(*arguments)
        return [(_InOrderOfArrival(row), frames) for row, frames in ready], wake_at

    patch.object(talker_scheduler, "_first", by_arrival).start()
    patch.object(codec_scheduler, "ready_rows", without_deadlines).start()


async def _read_alone(reader: Any, subscription: Any) -> None:
    """Reads a stream by blocking commands on a connection of its own until it is unsubscribed."""
    from syrinx_stages.connector.redis.inbox import BLOCK_MS
    from syrinx_stages.connector.redis.pool import COMMAND_SECONDS
    from syrinx_stages.contract.keys import Position

    key = reader._keys.stream(subscription.request_id, subscription.kind)
    connection = await reader._pool.open_connection("stream")
    try:
        while reader._is_current(subscription):
            command = (b"XREAD", b"BLOCK", BLOCK_MS, b"STREAMS", key, str(subscription.after))
            for _, entries in await connection.call(command, COMMAND_SECONDS) or ():
                events = [subscription.event(Position.parse(entry_id), fields[1]) for entry_id, fields in entries]
                if reader._is_current(subscription):
                    reader._deliver([event for event in events if event is not None])
    finally:
        connection.close()


def read_each_stream() -> None:
    """All stages read each stream by a command of its own, and have no inbox."""
    from syrinx_stages.connector.redis.reader import RedisReader

    def request_read(reader: Any, subscription: Any) -> None:
        if not subscription.reading:
            subscription.reading = True
            reader._spawn(_read_alone(reader, subscription))

    patch.object(RedisReader, "_request_read", request_read).start()


SWITCHES: Mapping[Switch, Callable[[], None]] = {
    "queued-step": read_complete_steps,
    "codec-batching": decode_one_request_a_call,
    "captured-shapes": capture_no_calls,
    "deadline-order": serve_in_order_of_arrival,
    "change-feed": read_each_stream,
}
"""What each switch does, by the technique that it switches off."""


def main() -> None:
    """Runs the stage; the configuration file remains as its argument."""
    _, switch, stage, *rest = sys.argv
    sys.argv[1:] = rest
    SWITCHES[switch]()  # type: ignore[index]
    if stage == Stage.GATEWAY:
        run(Stage.GATEWAY, "syrinx_stages.gateway.http.api:build", all_cells=True)
    run(Stage(stage), f"syrinx_stages.assembly:build_{stage}")


if __name__ == "__main__":
    exit_on_signals()
    main()
