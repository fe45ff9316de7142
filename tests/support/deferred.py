"""The CPU's engines behind the queue of an accelerator: what `launch` makes is handed out by `read`, in order.

They keep an accelerator's side of the contract (depth 2, no isolation of rows) and check the service's.
"""

import threading
from collections import deque
from collections.abc import Sequence

from syrinx_stages.codec.eager_engine import EagerCodecEngine
from syrinx_stages.contract.settings import CapturePair
from syrinx_stages.talker.eager_engine import EagerTalkerEngine
from syrinx_stages.talker.engine import EngineFull

DEADLINE = 10.0


class Queue:
    """Launched steps. While it is held, reading waits: what was launched stays in flight."""

    depth = 2
    isolates_rows = False

    def __init__(self) -> None:
        self.unread: deque[object] = deque()
        self.most = 0
        """Steps that were unread at once, at most."""
        self._open = threading.Event()
        self._open.set()

    def hold(self) -> None:
        self._open.clear()

    def let_go(self) -> None:
        self._open.set()

    def warm_up(self) -> None:
        super().warm_up()
        self.unread.clear()

    def put(self, step: object) -> object:
        self.unread.append(step)
        self.most = max(self.most, len(self.unread))
        assert len(self.unread) <= self.depth
        return step

    def take(self, step: object) -> None:
        assert self._open.wait(DEADLINE), "nobody let go"
        assert self.unread.popleft() is step, "steps are read in the order of their launch"


class DeferredTalkerEngine(Queue, EagerTalkerEngine):
    """As an accelerator's, it makes no frame of a row that has ended, and takes several requests for prefill."""

    depth = 2
    isolates_rows = False
    prefill_rows = 4

    def __init__(self, checkpoint: object) -> None:
        Queue.__init__(self)
        EagerTalkerEngine.__init__(self, checkpoint)
        self._over: set[str] = set()
        self.room = 1000
        """Requests that there is memory for."""
        self.memory = 1_000_000
        """Frames of all requests that there is memory for."""
        self.admitted: list[int] = []
        """How many requests each prefill took."""

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
    """Some padding costs less than a call."""

    depth = 2
    isolates_rows = False
    overhead_frames = 16

    def __init__(self, decoder: object, max_resident: int) -> None:
        Queue.__init__(self)
        EagerCodecEngine.__init__(self, decoder, max_resident)
        self.shapes: list[tuple[CapturePair, tuple[int, ...]]] = []
        """The shape of each call, and what its rows gave."""

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
