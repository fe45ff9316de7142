"""How engines want to be called: what both schedules ask of an engine, and the operator's model knows by its device."""

import math

from msgspec import Struct


class Traits(Struct, frozen=True, kw_only=True):
    """See `TalkerEngine` and `CodecEngine`."""

    depth: int
    ahead_frames: float
    prompt_rows: float
    prefill_rows: int
    overhead_frames: int


CPU = Traits(depth=1, ahead_frames=16.0, prompt_rows=math.inf, prefill_rows=1, overhead_frames=0)
"""On a CPU, where talker and codec share the cores, a step takes as long as its rows."""
GPU = Traits(depth=2, ahead_frames=math.inf, prompt_rows=16.0, prefill_rows=32, overhead_frames=36)
"""On a GPU most of a small step's time is fixed, and the next one is queued behind it."""
