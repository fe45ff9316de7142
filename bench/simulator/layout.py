"""Memory layout of the simulation: the arrays that the kernel works on, and their allocation."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from simulator import draws
from simulator.scenario import TASK_TYPES, Curve, Scenario
from syrinx_stages.contract.metrics import ROW_BUCKETS

Array = np.ndarray[Any, Any]

NEVER = -1e18
"""Placeholder for an event that has not happened."""
MAX_RAMP, MAX_PAIRS, MAX_FRAMES = 16, 64, 64
RESULTS = ("hit", "padded", "eager")

CONSTANTS = np.dtype(
    [
        (name, "f8")
        for name in ("hop", "noise", "interference", "crowding", "lead_limit", "silence", "max_queue_seconds")
    ]
    + [(name, "f8") for name in ("eager_base", "eager_row", "eager_frame", "hit_base", "hit_row", "hit_frame")]
    + [(name, "i8") for name in ("seed", "max_queue", "context", "closed", "talker_by_rows", "codec_by_rows")]
)
COUNTERS = np.dtype(
    [
        (name, "i8")
        for name in ("requests", "heap", "events", "free", "ttfa_count", "underrun_count", "columns", "rounds")
    ]
    + [(name, "i8") for name in ("streams_started", "streams_ended")]
    + [(name, "i8") for name in ("talker_head", "talker_tail", "codec_head", "codec_tail")]
    + [(name, "i8") for name in ("talkers_head", "talkers_waiting", "codecs_head", "codecs_waiting")]
    + [(name, "i8") for name in ("talker_orphans_head", "talker_orphans", "codec_orphans_head", "codec_orphans")]
    + [("now", "f8")]
)
REQUEST = np.dtype(
    [(name, "f8") for name in ("accepted", "ttfa", "first_frame", "first_reported_at", "first_audio")]
    + [(name, "f8") for name in ("plays_until", "ended")]
    + [
        (name, "i4")
        for name in ("length", "produced", "fed", "taken", "replay_frames", "emitted", "delivered", "reported_frames")
    ]
    + [(name, "i4") for name in ("listener",)]
    + [(name, "i4") for name in ("talker", "codec", "first_talker", "first_codec")]
    + [(name, "i1") for name in ("task", "talker_state", "reference_state", "codes_complete", "refused")]
    + [(name, "i1") for name in ("underrun", "underrun_scheduled", "candidate")]
)
REPLICA = np.dtype(
    [(name, "f8") for name in ("speed", "wake", "asked", "prepares_until", "batch_seconds", "mean_seconds")]
    + [(name, "i8") for name in ("frames",)]
    + [(name, "i4") for name in ("rows", "resident", "held", "unstarted", "waiting", "life")]
    + [(name, "i4") for name in ("batch", "batch_frames", "batch_result", "ramp", "pairs", "largest", "last_round")]
    + [(name, "i1") for name in ("up", "busy", "asking", "limited")]
)
EVENT = np.dtype([("at", "f8"), ("order", "i8"), ("kind", "i4"), ("a", "i4"), ("b", "i4")])
TASK = np.dtype([("prefill", "f8"), ("prepare", "f8"), ("reference", "i4")])


class Memory(NamedTuple):
    """All arrays. Each replica has an unordered list of requests in a row of `talker_slots` or `codec_slots`."""

    constants: Array
    counters: Array
    tasks: Array
    step_seconds: Array
    """Seconds of a talker step by rows."""
    requests: Array
    talkers: Array
    codecs: Array
    talker_slots: Array
    codec_slots: Array
    talker_batch: Array
    codec_batch: Array
    ramps: Array
    pairs: Array
    talker_queue: Array
    """Admitted requests in order. Those from `talker_head` to `talker_tail` wait."""
    codec_queue: Array
    talkers_asking: Array
    """Ring of the polling talkers."""
    codecs_asking: Array
    talker_orphans: Array
    """Ring of requests whose talker is dead and whose lease has expired."""
    codec_orphans: Array
    message_size: Array
    message_rows: Array
    message_frames: Array
    """Cumulative frames including this message; -1 is the end."""
    free: Array
    """Stack of unused messages."""
    heap: Array
    ttfa_log: Array
    """Requests in order of first audio."""
    ttfa_log_at: Array
    underrun_log: Array
    """Requests in order of their first underrun."""
    underrun_log_at: Array
    talker_steps: Array
    talker_step_seconds: Array
    codec_steps: Array
    codec_step_seconds: Array
    calls: Array
    """By codec and shape. `column` maps a shape to its column."""
    call_seconds: Array
    column: Array
    shapes: Array
    keys: Array
    ids: Array
    frames: Array


def make(scenario: Scenario) -> Memory:
    """Returns the memory of a pipeline before its first request."""
    at, task = draws.arrivals(scenario)
    count = len(at) if not scenario.listeners else 4 * draws.BLOCK
    talkers, codecs = scenario.talkers, scenario.codecs
    width = max(scenario.talker_resident, scenario.codec_resident)
    messages = 4 * (talkers + codecs) + 4 * width + 64
    events = 4 * (talkers + codecs) + messages + 8 * width + 1024
    memory = Memory(
        constants=_constants(scenario),
        counters=np.zeros(1, COUNTERS),
        tasks=_tasks(scenario),
        step_seconds=_by_rows(scenario.costs.step, scenario.talker_resident),
        requests=_requests(scenario, 0, count),
        talkers=_replicas(talkers, scenario.talker_speeds, scenario.talker_resident),
        codecs=_replicas(codecs, scenario.codec_speeds, scenario.codec_resident),
        talker_slots=np.zeros((talkers, scenario.talker_resident), np.int32),
        codec_slots=np.zeros((codecs, scenario.codec_resident), np.int32),
        talker_batch=np.zeros((talkers, scenario.talker_resident), np.int32),
        codec_batch=np.zeros((codecs, scenario.codec_resident), np.int32),
        ramps=np.ones((codecs, MAX_RAMP), np.int32),
        pairs=np.ones((codecs, MAX_PAIRS, 2), np.int32),
        talker_queue=np.zeros(count, np.int32),
        codec_queue=np.zeros(count, np.int32),
        talkers_asking=np.zeros(talkers, np.int32),
        codecs_asking=np.zeros(codecs, np.int32),
        talker_orphans=np.zeros(talkers * scenario.talker_resident, np.int32),
        codec_orphans=np.zeros(codecs * scenario.codec_resident, np.int32),
        message_size=np.zeros(messages, np.int32),
        message_rows=np.zeros((messages, width), np.int32),
        message_frames=np.zeros((messages, width), np.int32),
        free=np.arange(messages, dtype=np.int32),
        heap=np.zeros(events, EVENT),
        ttfa_log=np.zeros(count, np.int32),
        ttfa_log_at=np.zeros(count),
        underrun_log=np.zeros(count, np.int32),
        underrun_log_at=np.zeros(count),
        talker_steps=np.zeros((talkers, len(ROW_BUCKETS) + 1), np.int64),
        talker_step_seconds=np.zeros((talkers, len(ROW_BUCKETS) + 1)),
        codec_steps=np.zeros((codecs, len(ROW_BUCKETS) + 1), np.int64),
        codec_step_seconds=np.zeros((codecs, len(ROW_BUCKETS) + 1)),
        calls=np.zeros((codecs, 32), np.int64),
        call_seconds=np.zeros((codecs, 32)),
        column=np.full((scenario.codec_resident + 1, MAX_FRAMES + 1, len(RESULTS)), -1, np.int32),
        shapes=np.zeros((32, 3), np.int32),
        keys=np.zeros(width),
        ids=np.zeros(width, np.int32),
        frames=np.zeros(width, np.int32),
    )
    memory.counters["free"] = messages
    if not scenario.listeners:
        memory.requests["accepted"], memory.requests["task"] = at, task
        memory.counters["requests"] = 0
    return memory


def grow(memory: Memory, scenario: Scenario) -> Memory:
    """Returns a copy with at least half as much additional capacity where it can run out."""
    requests = len(memory.requests)
    more = requests if scenario.listeners else 0
    messages = len(memory.free)
    free = np.concatenate([memory.free, np.zeros(messages, np.int32)])
    unused = int(memory.counters["free"][0])
    free[unused : unused + messages] = np.arange(messages, 2 * messages)
    memory.counters["free"] += messages
    return memory._replace(
        requests=np.concatenate([memory.requests, _requests(scenario, requests, more)]),
        talker_queue=_longer(memory.talker_queue, more),
        codec_queue=_longer(memory.codec_queue, more),
        ttfa_log=_longer(memory.ttfa_log, more),
        ttfa_log_at=_longer(memory.ttfa_log_at, more),
        underrun_log=_longer(memory.underrun_log, more),
        underrun_log_at=_longer(memory.underrun_log_at, more),
        message_size=_longer(memory.message_size, messages),
        message_rows=_longer(memory.message_rows, messages),
        message_frames=_longer(memory.message_frames, messages),
        free=free,
        heap=_longer(memory.heap, len(memory.heap)),
        calls=_longer(memory.calls.T, memory.calls.shape[1]).T.copy(),
        call_seconds=_longer(memory.call_seconds.T, memory.calls.shape[1]).T.copy(),
        shapes=_longer(memory.shapes, len(memory.shapes)),
    )


def _longer(array: Array, more: int) -> Array:
    return np.concatenate([array, np.zeros((more, *array.shape[1:]), array.dtype)])


def _constants(scenario: Scenario) -> Array:
    costs = scenario.costs
    values = {
        "hop": costs.hop,
        "noise": costs.noise,
        "interference": costs.interference,
        "crowding": costs.crowding,
        "lead_limit": scenario.lead_limit,
        "silence": scenario.silence,
        "max_queue_seconds": scenario.max_queue_seconds,
        "eager_base": costs.eager.base,
        "eager_row": costs.eager.per_row,
        "eager_frame": costs.eager.per_frame,
        "hit_base": costs.captured.base,
        "hit_row": costs.captured.per_row,
        "hit_frame": costs.captured.per_frame,
        "seed": scenario.seed,
        "max_queue": scenario.max_queue,
        "context": costs.context_frames,
        "closed": bool(scenario.listeners),
        "talker_by_rows": scenario.admission != "resident",
        "codec_by_rows": scenario.admission == "rows",
    }
    constants = np.zeros(1, CONSTANTS)
    for name, value in values.items():
        constants[name] = value
    return constants


def _tasks(scenario: Scenario) -> Array:
    costs = scenario.costs
    tasks = np.zeros(len(TASK_TYPES), TASK)
    for row, name in zip(tasks, TASK_TYPES, strict=True):
        row["prefill"] = costs.prefill.get(name, 0.0)
        row["prepare"] = costs.prepare.get(name, 0.0)
        row["reference"] = costs.reference_frames.get(name, 0)
    return tasks


def _by_rows(curve: Curve, max_rows: int) -> Array:
    """Returns the seconds for 0 to `max_rows` rows, extrapolated along the last segment."""
    rows, seconds = (np.array(each, float) for each in zip(*curve.points, strict=True))
    wanted = np.arange(max_rows + 1)
    table: Array = np.interp(wanted, rows, seconds)
    if len(rows) > 1:
        slope = (seconds[-1] - seconds[-2]) / (rows[-1] - rows[-2])
        table += np.maximum(0, wanted - rows[-1]) * slope
    return table


def _requests(scenario: Scenario, start: int, count: int) -> Array:
    requests = np.zeros(count, REQUEST)
    requests["length"] = draws.lengths(scenario, start + count)[start : start + count]
    for name in ("first_frame", "first_reported_at", "first_audio", "ended"):
        requests[name] = NEVER
    requests["ttfa"] = np.nan
    for name in ("talker", "codec", "first_talker", "first_codec", "listener"):
        requests[name] = -1
    return requests


def _replicas(count: int, speeds: tuple[float, ...], resident: int) -> Array:
    replicas = np.zeros(count, REPLICA)
    replicas["speed"] = 1.0
    replicas["speed"][: len(speeds)] = speeds
    replicas["resident"] = resident
    replicas["wake"] = replicas["mean_seconds"] = np.inf
    replicas["up"] = 1
    replicas["last_round"] = -1
    return replicas
