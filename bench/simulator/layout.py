"""Memory of the simulation: the arrays that the kernel works on, and the random draws that they start with.

Random numbers are a function of (seed, purpose, index), so that a request's draws do not depend on settings.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from simulator.scenario import TASK_TYPES, Scenario
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.metrics import ROW_BUCKETS

Array = np.ndarray[Any, Any]

TALKER, CODEC = 0, 1
NEVER = -1e18
"""Placeholder for an event that has not happened."""
MAX_RAMP, MAX_PAIRS, MAX_FRAMES = 16, 64, 64
RESULTS = ("hit", "padded", "eager")
BLOCK = 4096
"""Requests per block of drawn lengths."""
_ARRIVALS, _LENGTHS = 1, 2


def _record(fields: Mapping[Any, str]) -> np.dtype[Any]:
    """Returns a record type from the names of the fields of each type."""
    return np.dtype([(name, kind) for kind, names in fields.items() for name in names.split()], align=True)


PIPELINE = _record(
    {
        "f8": "hop noise interference crowding lead_limit silence max_queue_seconds",
        "3f8": "captured eager",
        "i8": "seed max_queue context_frames closed by_rows talkers "
        "requests queue_tail heap events sent delivered logged columns streams_started streams_ended",
    }
)
"""Constants, and counts of events so far. `by_rows`: without admission by deadline; `columns`: of `calls` in use."""
STAGE = _record({"i8": "queue_head pollers_head pollers_tail orphans_head orphans_tail"})
REQUEST = _record(
    {
        "f8": "accepted ttfa first_frame first_reported_at first_audio plays_until finished due",
        "2i4": "holder",
        "i4": "order frames produced fed taken replay_frames emitted delivered wanted listener talker codec",
        "i1": "task state",
        "?": "reference_sent reference_delivered codes_complete refused underrun check_scheduled candidate",
    }
)
"""`holder`: the replica of each stage that has claimed it; `talker`, `codec`: those of the first frame. -1: none."""
COUNT = _record({"i8": "count", "f8": "seconds"})
REPLICA = _record(
    {
        "f8": "speed wake polled_at prepares_until prefill_seconds batch_seconds mean_seconds",
        "i8": "frames prefills last_message",
        "i4": "stage neighbor rows capacity held unstarted waiting life restarts batch batch_frames batch_result "
        "chunks max_chunk pairs",
        "?": "up busy polling limited",
        (COUNT, len(ROW_BUCKETS) + 1): "steps",
        f"{MAX_RAMP}i4": "ramp",
        f"({MAX_PAIRS},2)i4": "shapes",
    }
)
"""`neighbor`: the replica of the other stage on the same device, or -1; `limited`: whether it runs an override."""
CALL = _record({"i4": "rows frames result", "i8": "count", "f8": "seconds"})
EVENT = _record({"f8": "due", "i8": "order", "i4": "kind a b"})
TASK = _record({"f8": "prefill prepare", "i4": "reference"})
ENTRY = _record({"i4": "request frames"})
"""Cumulative frames of a request including this message; -1 is the end."""
LOG = _record({"f8": "at", "i4": "request", "?": "underrun"})


class Memory(NamedTuple):
    """All arrays. Talkers come first among the replicas, and `stages` are talker and codec."""

    pipeline: Array
    stages: Array
    tasks: Array
    step_seconds: Array
    """Seconds of a talker step by rows."""
    requests: Array
    replicas: Array
    slots: Array
    """Unordered list of the requests of each replica."""
    batch: Array
    """Requests of each replica's current computation."""
    queue: Array
    """Admitted requests in order. Those from `queue_head` to `queue_tail` wait for a stage."""
    pollers: Array
    """By stage, ring of the polling replicas."""
    orphans: Array
    """By stage, ring of requests whose replica is dead and whose lease has expired."""
    messages: Array
    """Ring of the messages in flight."""
    heap: Array
    log: Array
    """First audio and first underrun of each request, in order of time."""
    calls: Array
    """Decoder calls by shape and codec. `columns` maps a shape to its column."""
    columns: Array


def make(scenario: Scenario) -> Memory:
    """Returns the memory of a pipeline before its first request."""
    at, task = _arrivals(scenario)
    count = 4 * BLOCK if scenario.listeners else len(at)
    replicas = scenario.talkers + scenario.codecs
    width = max(scenario.talker_resident, scenario.codec_resident)
    shapes = (scenario.codec_resident + 1, MAX_FRAMES + 1, len(RESULTS))
    memory = Memory(
        pipeline=_pipeline(scenario),
        stages=np.zeros(2, STAGE),
        tasks=_tasks(scenario),
        step_seconds=_by_rows(scenario.costs.step, scenario.talker_resident),
        requests=_requests(scenario, 0, count),
        replicas=_replicas(scenario),
        slots=np.zeros((replicas, width), np.int32),
        batch=np.zeros((replicas, width), np.int32),
        queue=np.zeros(count, np.int32),
        pollers=np.zeros((2, replicas), np.int32),
        orphans=np.zeros((2, replicas * width), np.int32),
        messages=np.zeros((4 * width, width), ENTRY),
        heap=np.zeros(8 * replicas + 16 * width + 1024, EVENT),
        log=np.zeros(2 * count, LOG),
        calls=np.zeros((math.prod(shapes), scenario.codecs), CALL),
        columns=np.full(shapes, -1, np.int32),
    )
    if not scenario.listeners:
        memory.requests["accepted"], memory.requests["task"] = at, task
    return memory


def grow(memory: Memory, scenario: Scenario) -> Memory:
    """Returns a copy with twice the capacity where it can run out."""
    names, requests = ["messages", "heap"], memory.requests
    if scenario.listeners:
        names += ["queue", "log"]
        requests = np.concatenate([requests, _requests(scenario, len(requests), len(requests))])
    # `np.resize` repeats the content, so messages keep their positions modulo the size of the ring.
    arrays = {name: getattr(memory, name) for name in names}
    larger = {name: np.resize(each, (2 * len(each), *each.shape[1:])) for name, each in arrays.items()}
    return memory._replace(requests=requests, **larger)


def _pipeline(scenario: Scenario) -> Array:
    pipeline = np.zeros(1, PIPELINE)
    for source in (scenario, scenario.costs):
        for name in set(source.__struct_fields__).intersection(PIPELINE.names or ()):
            pipeline[name] = getattr(source, name)
    pipeline["closed"] = bool(scenario.listeners)
    pipeline["by_rows"] = scenario.admission != "resident"
    return pipeline


def _tasks(scenario: Scenario) -> Array:
    costs = scenario.costs
    return np.array(
        [
            (costs.prefill.get(name, 0.0), costs.prepare.get(name, 0.0), costs.reference_frames.get(name, 0))
            for name in TASK_TYPES
        ],
        TASK,
    )


def _by_rows(points: tuple[tuple[int, float], ...], max_rows: int) -> Array:
    """Returns the seconds for 0 to `max_rows` rows, extrapolated along the last segment."""
    rows, seconds = np.array(points, float).T
    wanted = np.arange(max_rows + 1)
    table: Array = np.interp(wanted, rows, seconds)
    if len(rows) > 1:
        slope = (seconds[-1] - seconds[-2]) / (rows[-1] - rows[-2])
        table += np.maximum(0, wanted - rows[-1]) * slope
    return table


def _requests(scenario: Scenario, start: int, count: int) -> Array:
    requests = np.zeros(count, REQUEST)
    requests["order"] = np.arange(start, start + count)
    requests["frames"] = _lengths(scenario, start + count)[start:]
    for name in ("first_frame", "first_reported_at", "first_audio"):
        requests[name] = NEVER
    for name in ("ttfa", "finished"):
        requests[name] = np.nan
    for name in ("holder", "talker", "codec", "listener"):
        requests[name] = -1
    return requests


def _replicas(scenario: Scenario) -> Array:
    talkers, codecs = scenario.talkers, scenario.codecs
    replicas = np.zeros(talkers + codecs, REPLICA)
    replicas["stage"][talkers:] = CODEC
    shared = min(talkers, codecs)
    replicas["neighbor"] = -1
    replicas["neighbor"][:shared] = np.arange(talkers, talkers + shared)
    replicas["neighbor"][talkers : talkers + shared] = np.arange(shared)
    replicas["speed"] = 1.0
    replicas["speed"][: len(scenario.talker_speeds)] = scenario.talker_speeds
    replicas["speed"][talkers : talkers + len(scenario.codec_speeds)] = scenario.codec_speeds
    replicas["wake"] = replicas["mean_seconds"] = np.inf
    replicas["up"] = True
    replicas["last_message"] = -1
    return replicas


def _generator(seed: int, purpose: int, index: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, purpose, index))))


def _lengths(scenario: Scenario, count: int) -> Array:
    spread = scenario.audio_spread
    middle = math.log(scenario.audio_seconds / FAMILY.frame_seconds) - spread**2 / 2
    blocks = [
        _generator(scenario.seed, _LENGTHS, block).lognormal(middle, spread, BLOCK)
        for block in range(max(1, math.ceil(count / BLOCK)))
    ]
    return np.maximum(1, np.rint(np.concatenate(blocks)))[:count].astype(np.int32)


def _arrivals(scenario: Scenario) -> tuple[Array, Array]:
    """Returns sorted arrival times of the open-loop load and their task types (index of `TASK_TYPES`)."""
    times = [
        _task_arrivals(scenario, _generator(scenario.seed, _ARRIVALS, task), name)
        for task, name in enumerate(TASK_TYPES)
    ]
    at = np.concatenate(times)
    order = np.argsort(at, kind="stable")
    return at[order], np.repeat(np.arange(len(times)), [len(each) for each in times])[order]


def _task_arrivals(scenario: Scenario, random: np.random.Generator, task_type: str) -> Array:
    """Returns arrivals of one task type: a Poisson process of bursts at piecewise constant rates."""
    parts: list[Array] = [np.empty(0)]
    start = 0.0
    while scenario.load and start < scenario.seconds:
        day = start
        for until, rates in scenario.load:
            end = min(day + until, scenario.seconds)
            if end <= start:
                continue
            count = random.poisson(rates.get(task_type, 0.0) / scenario.burst * (end - start))
            at = np.sort(random.uniform(start, end, count))
            sizes = random.geometric(1 / scenario.burst, count)
            parts.append(np.repeat(at, sizes))
            start = end
    return np.concatenate(parts)
