"""CPU engines that queue steps like an accelerator: `read` returns the results of `launch` in order.

They have the properties of an accelerator's engine (depth 2, no isolation of rows) and check their callers.
"""

import math
import threading
from collections import deque
from collections.abc import Sequence

from support.waiting import DEADLINE
from syrinx_stages.codec.eager_engine import EagerCodecEngine
from syrinx_stages.contract.settings import CapturePair
from syrinx_stages.talker.eager_engine import EagerTalkerEngine
from syrinx_stages.talker.engine import EngineFull


class Queue:
    """The launched steps. While the queue is held, `read` waits, and launched steps stay in flight."""

    depth = 2
    isolates_rows = False

    def __init__(self) -> None:
        self.unread: deque[object] = deque()
        self.max_in_flight = 0
        """Maximum number of steps that were in flight at the same time."""
        self._open = threading.Event()
        self._open.set()

    def hold(self) -> None:
        self._open.clear()

    def resume(self) -> None:
        self._open.set()

    def warm_up(self) -> None:
        super().warm_up()
        self.unread.clear()

    def put(self, step: object) -> object:
        self.unread.append(step)
        self.max_in_flight = max(self.max_in_flight, len(self.unread))
        assert len(self.unread) <= self.depth
        return step

    def take(self, step: object) -> None:
        assert self._open.wait(DEADLINE), "the queue was not released"
        assert self.unread.popleft() is step, "steps are read in the order of their launch"


class DeferredTalkerEngine(Queue, EagerTalkerEngine):
    """Like an accelerator's engine, it generates no frame of a row that has ended, and prefills several requests."""

    depth = 2
    isolates_rows = False
    ahead_frames = math.inf
    prompt_rows = 0.0
    prefill_rows = 4

    def __init__(self, checkpoint: object) -> None:
        Queue.__init__(self)
        EagerTalkerEngine.__init__(self, checkpoint)
        self._over: set[str] = set()
        self.room = 1000
        """Number of requests that fit into memory."""
        self.memory = 1_000_000
        """Number of frames of all requests that fit into memory."""
        self.admitted: list[int] = []
        """Number of requests of each prefill."""

    def admit(self, prepared: Sequence[object]) -> None:
        assert 1 <= len(prepared) <= self.prefill_rows
        frames = sum(row.frames for row in self._rows.values()) + sum(each.frames for each in prepared)
        if len(self._rows) + len(prepared) > self.room or frames > self.memory:
            raise EngineFull
        self.admitted.append(len(prepared))
        self._over.difference_update(each.request.id for each in prepared)
        super().admit(prepared)

    def launch(self, ids: Sequence[str]) -> object:
        assert ids, "an empty step"
        assert len(ids) == len(set(ids))
        left = max(0, self.memory - sum(row.frames for row in self._rows.values()))
        results = super().launch([request_id for request_id in ids if request_id not in self._over][:left])
        self._over |= {request_id for request_id, result in results.items() if not isinstance(result, bytes)}
        return self.put(results)

    def read(self, step: object) -> object:
        self.take(step)
        return step


class DeferredCodecEngine(Queue, EagerCodecEngine):
    """A codec engine for which some padding costs less than a call."""

    depth = 2
    isolates_rows = False
    overhead_frames = 16

    def __init__(self, decoder: object, max_resident: int) -> None:
        Queue.__init__(self)
        EagerCodecEngine.__init__(self, decoder, max_resident)
        self.prefill = None
        self.shapes: list[tuple[CapturePair, tuple[int, ...]]] = []
        """The shape of each call and the number of frames of its rows."""

    def capture(self, shape: CapturePair) -> None:
        assert not self.unread
        super().capture(shape)

    def free_shapes(self, shapes: object) -> None:
        assert not self.unread
        super().free_shapes(shapes)

    def launch(self, ids: Sequence[str], codes: Sequence[Sequence[bytes]], shape: CapturePair) -> object:
        assert len(ids) == len(set(ids))
        self.shapes.append((shape, tuple(len(frames) for frames in codes)))
        return self.put(super().launch(ids, codes, shape))

    def read(self, call: object) -> object:
        self.take(call)
        return call
