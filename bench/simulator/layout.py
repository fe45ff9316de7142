"""The simulation's memory: flat arrays that the kernel works on, and how they are made and grown."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from simulator import draws
from simulator.scenario import TASK_TYPES, Curve, Scenario
from syrinx_stages.contract.metrics import ROW_BUCKETS

Array = np.ndarray[Any, Any]

NEVER = -1e18
"""A time that has not come."""
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
        for name in ("requests", "heap", "events", "free", "heard", "dry", "columns", "looks", "begun", "gone")
    ]
    + [(name, "i8") for name in ("talker_head", "talker_tail", "codec_head", "codec_tail")]
    + [(name, "i8") for name in ("talkers_head", "talkers_waiting", "codecs_head", "codecs_waiting")]
    + [(name, "i8") for name in ("talker_orphans_head", "talker_orphans", "codec_orphans_head", "codec_orphans")]
    + [("now", "f8")]
)
REQUEST = np.dtype(
    [(name, "f8") for name in ("accepted", "ttfa", "first_frame", "first_told", "first_audio", "plays_until", "ended")]
    + [
        (name, "i4")
        for name in ("length", "produced", "fed", "taken", "silent", "emitted", "delivered", "told_frames", "listener")
    ]
    + [(name, "i4") for name in ("talker", "codec", "by_talker", "by_codec")]
    + [(name, "i1") for name in ("task", "at_talker", "told", "over", "refused", "underrun", "watched", "candidate")]
)
REPLICA = np.dtype(
    [(name, "f8") for name in ("speed", "wake", "asked", "prepares_until", "batch_seconds", "mean_seconds")]
    + [(name, "i8") for name in ("frames",)]
    + [(name, "i4") for name in ("rows", "resident", "held", "unstarted", "waiting", "life")]
    + [(name, "i4") for name in ("batch", "batch_frames", "batch_result", "ramp", "pairs", "largest", "looked")]
    + [(name, "i1") for name in ("up", "busy", "asking", "limited")]
)
EVENT = np.dtype([("at", "f8"), ("order", "i8"), ("kind", "i4"), ("a", "i4"), ("b", "i4")])
TASK = np.dtype([("prefill", "f8"), ("prepare", "f8"), ("reference", "i4")])


class Memory(NamedTuple):
    """All of it. Replicas hold requests in unordered lists, one row of `talker_slots` or `codec_slots` each."""

    constants: Array
    counters: Array
    tasks: Array
    step_seconds: Array
    """Of a talker step, by rows."""
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
    """Admitted requests in order; those from `talker_head` to `talker_tail` wait."""
    codec_queue: Array
    talkers_asking: Array
    """Ring of the talkers that wait for a request."""
    codecs_asking: Array
    talker_orphans: Array
    """Ring of requests whose talker is dead."""
    codec_orphans: Array
    message_size: Array
    message_rows: Array
    message_frames: Array
    """Frames so far, with this message; of codes -1: the end."""
    free: Array
    """Stack of unused messages."""
    heap: Array
    heard: Array
    """Requests in the order in which they were heard."""
    heard_at: Array
    dry: Array
    """Requests in the order in which their playback began to wait."""
    dry_at: Array
    talker_steps: Array
    talker_step_seconds: Array
    codec_steps: Array
    codec_step_seconds: Array
    calls: Array
    """By codec and shape; `column` says which column a shape has."""
    call_seconds: Array
    column: Array
    shapes: Array
    keys: Array
    ids: Array
    frames: Array


def make(scenario: Scenario) -> Memory:
    """Memory of a pipeline before its first request."""
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
        heard=np.zeros(count, np.int32),
        heard_at=np.zeros(count),
        dry=np.zeros(count, np.int32),
        dry_at=np.zeros(count),
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
    """The same with at least half as much room again for whatever can run out."""
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
        heard=_longer(memory.heard, more),
        heard_at=_longer(memory.heard_at, more),
        dry=_longer(memory.dry, more),
        dry_at=_longer(memory.dry_at, more),
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


def _by_rows(curve: Curve, most: int) -> Array:
    """Seconds for 0, 1, ... `most` rows; beyond the last point, on along the last line."""
    rows, seconds = (np.array(each, float) for each in zip(*curve.points, strict=True))
    wanted = np.arange(most + 1)
    table: Array = np.interp(wanted, rows, seconds)
    if len(rows) > 1:
        slope = (seconds[-1] - seconds[-2]) / (rows[-1] - rows[-2])
        table += np.maximum(0, wanted - rows[-1]) * slope
    return table


def _requests(scenario: Scenario, start: int, count: int) -> Array:
    requests = np.zeros(count, REQUEST)
    requests["length"] = draws.lengths(scenario, start + count)[start : start + count]
    for name in ("first_frame", "first_told", "first_audio", "ended"):
        requests[name] = NEVER
    requests["ttfa"] = np.nan
    for name in ("talker", "codec", "by_talker", "by_codec", "listener"):
        requests[name] = -1
    return requests


def _replicas(count: int, speeds: tuple[float, ...], resident: int) -> Array:
    replicas = np.zeros(count, REPLICA)
    replicas["speed"] = 1.0
    replicas["speed"][: len(speeds)] = speeds
    replicas["resident"] = resident
    replicas["wake"] = replicas["mean_seconds"] = np.inf
    replicas["up"] = 1
    replicas["looked"] = -1
    return replicas
