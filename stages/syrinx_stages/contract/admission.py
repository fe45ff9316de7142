"""When a talker claims requests. The operator's model of a pipeline claims them by the same rule."""

MAX_UNSTARTED = 4
"""Claimed requests of which no frame is being generated yet, while references are encoded: enough to keep the engine
busy. Others wait for whichever replica is free. Without a reference, at most one is ready beyond those of the next
prefill."""

LATE_MARGIN_SECONDS = 0.25
"""A stream with less lead than this is late: codec and network need time, too."""

LATE_MARGIN_STEPS = 15
"""Upper bound of the same margin in steps: with short steps, a stream recovers before the lack is audible."""


def late_margin(step_seconds: float) -> float:
    """Returns the lead in seconds below which a stream is late, for steps of this duration."""
    return min(LATE_MARGIN_SECONDS, LATE_MARGIN_STEPS * step_seconds)
