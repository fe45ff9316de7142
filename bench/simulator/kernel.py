"""The event loop, compiled: what gateway, talkers, codecs and listeners do, event by event.

It follows `syrinx_stages.{gateway,talker,codec,runtime}`: pull of one request at a time, steps by deadline, chunk
ramps, captured shapes, take-overs. No event looks at more than one replica's rows. All compiled code is in this one
file, since numba's cache does not notice when a function in another one changes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types
from numba.experimental import structref

from simulator.layout import NEVER, Memory
from syrinx_stages.codec.scheduler import UNDERRUN_MARGIN_SECONDS
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.metrics import ROW_BUCKETS
from syrinx_stages.talker.scheduler import LATE_MARGIN_SECONDS, LATE_MARGIN_STEPS
from syrinx_stages.talker.service import MAX_UNSTARTED

DONE, FULL = 0, 1

(ASK, PREPARED, PREFILLED, STEPPED, TALKER_WAKES, CODES, REFERENCE, DECODED, CODEC_WAKES, AUDIO, RUNS_DRY) = range(11)
(TALKER_DIES, TALKER_LEASE, TALKER_RETURNS, CODEC_DIES, CODEC_LEASE, CODEC_RETURNS) = range(11, 17)

PREPARING, READY, ROW = 1, 2, 3
"""`at_talker` of a request: claimed, waiting for prefill, stepped."""
HIT, PADDED, EAGER = 0, 1, 2
FRAME_SECONDS = FAMILY.frame_seconds
LEASE_SECONDS = 2.0
"""A claim left alone for so long is taken over."""
QUIET_SECONDS = 1.0
"""After so long without a request a replica asks itself anew whether it wants one."""
END = -1
_LONG_AGO = 1e9
_EDGES = np.array(ROW_BUCKETS)
_GOLDEN, _MIX_A, _MIX_B = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@structref.register
class _StateType(types.StructRef):
    """How the compiled code sees `State`."""


class State(structref.StructRefProxy):
    """`Memory` behind one pointer, with the same fields: compiled functions would pass a tuple's arrays one by one."""


structref.define_constructor(State, _StateType, Memory._fields)
structref.define_boxing(_StateType, State)


@njit(cache=True)
def bind(memory: Memory) -> Any:
    """The memory as compiled functions take it; both are the same arrays."""
    return State(*memory)


# Random numbers -----------------------------------------------------------------------------------------------


@njit(cache=True)
def mixed(x: Any) -> Any:
    """SplitMix64's mixing: 64 bits that look random for each x."""
    x = (x + np.uint64(_GOLDEN)) & np.uint64(0xFFFFFFFFFFFFFFFF)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_MIX_A)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_MIX_B)
    return x ^ (x >> np.uint64(31))


@njit(cache=True)
def noise(m: Memory, purpose: int, request: int, frame: int) -> float:
    """A lognormal factor of mean 1: a function of the step's first request and how far it is."""
    sigma = m.constants[0].noise
    if sigma == 0.0:
        return 1.0
    bits = mixed(np.uint64(m.constants[0].seed) ^ mixed(np.uint64(request * 4 + purpose)))
    bits = mixed(bits ^ np.uint64(frame))
    one = (float(bits >> np.uint64(40)) + 0.5) / float(1 << 24)
    two = float(bits & np.uint64(0xFFFFFF)) / float(1 << 24)
    normal = math.sqrt(-2.0 * math.log(one)) * math.cos(2.0 * math.pi * two)
    return math.exp(sigma * normal - sigma * sigma / 2)


# Events -------------------------------------------------------------------------------------------------------


@njit(cache=True)
def earlier(one: Any, two: Any) -> bool:
    """By time, then in the order in which they were made."""
    return one.at < two.at or (one.at == two.at and one.order < two.order)


@njit(cache=True)
def swap(one: Any, two: Any) -> None:
    """Exchanges two events."""
    at, order, kind, a, b = one.at, one.order, one.kind, one.a, one.b
    one.at, one.order, one.kind, one.a, one.b = two.at, two.order, two.kind, two.a, two.b
    two.at, two.order, two.kind, two.a, two.b = at, order, kind, a, b


@njit(cache=True)
def push(m: Memory, at: float, kind: int, a: int, b: int) -> None:
    """Adds an event to the heap."""
    w = m.counters[0]
    i = w.heap
    event = m.heap[i]
    event.at, event.order, event.kind, event.a, event.b = at, w.events, kind, a, b
    w.heap += 1
    w.events += 1
    while i > 0 and earlier(m.heap[i], m.heap[(i - 1) // 2]):
        swap(m.heap[i], m.heap[(i - 1) // 2])
        i = (i - 1) // 2


@njit(cache=True)
def pop(m: Memory) -> None:
    """Takes the first event off the heap; it lies at the place after the last then."""
    w = m.counters[0]
    w.heap -= 1
    count = w.heap
    swap(m.heap[0], m.heap[count])
    i = 0
    while True:
        least = i
        for child in (2 * i + 1, 2 * i + 2):
            if child < count and earlier(m.heap[child], m.heap[least]):
                least = child
        if least == i:
            return
        swap(m.heap[i], m.heap[least])
        i = least


# Small helpers ------------------------------------------------------------------------------------------------


@njit(cache=True)
def select(keys: Any, ids: Any, frames: Any, n: int, k: int) -> None:
    """Moves the k least of (key, id) to the front, in any order."""
    low, high = 0, n - 1
    while low < high:
        key, first = keys[(low + high) // 2], ids[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while keys[i] < key or (keys[i] == key and ids[i] < first):
                i += 1
            while keys[j] > key or (keys[j] == key and ids[j] > first):
                j -= 1
            if i <= j:
                keys[i], keys[j] = keys[j], keys[i]
                ids[i], ids[j] = ids[j], ids[i]
                frames[i], frames[j] = frames[j], frames[i]
                i += 1
                j -= 1
        if k - 1 <= j:
            high = j
        elif k - 1 >= i:
            low = i
        else:
            return


@njit(cache=True)
def bucket(rows: int) -> int:
    """Index of the metric's edge that rows are rounded up to."""
    return int(np.searchsorted(_EDGES, rows))


@njit(cache=True)
def forget(slots: Any, replica: Any, request: int) -> None:
    """Takes a request out of a replica's list."""
    for i in range(replica.held):
        if slots[i] == request:
            replica.held -= 1
            slots[i] = slots[replica.held]
            return


@njit(cache=True)
def room(replica: Any, by_rows: int) -> int:
    """Streams that a replica holds at most."""
    return min(replica.resident, replica.rows) if by_rows else replica.resident


# Gateway: admission, and what is waited for ------------------------------------------------------------------


@njit(cache=True)
def arrive(m: Memory, r: int, now: float) -> None:
    """A request is accepted, or refused where too many wait or one has waited for too long."""
    p, w = m.constants[0], m.counters[0]
    waiting = w.talker_tail - w.talker_head
    request = m.requests[r]
    request.accepted = now
    oldest = now - m.requests[m.talker_queue[w.talker_head]].accepted if waiting > 0 else 0.0
    if waiting >= p.max_queue or oldest > p.max_queue_seconds:
        request.refused = 1
        request.ended = now
        return
    m.talker_queue[w.talker_tail] = r
    m.codec_queue[w.codec_tail] = r
    w.talker_tail += 1
    w.codec_tail += 1
    serve_codecs(m, now)
    serve_talkers(m, now)


@njit(cache=True)
def ask(m: Memory, listener: int, task: int, now: float) -> None:
    """A listener of the closed loop asks for the next thing."""
    w = m.counters[0]
    r = w.requests
    w.requests += 1
    m.requests[r].listener = listener
    m.requests[r].task = task
    arrive(m, r, now)
    if m.requests[r].refused:
        push(m, now + QUIET_SECONDS, ASK, listener, task)


# Talkers ------------------------------------------------------------------------------------------------------


@njit(cache=True)
def lead(request: Any, now: float) -> float:
    """Seconds produced beyond what has been played."""
    played = 0.0
    if request.first_told != NEVER:
        played = min(request.told_frames * FRAME_SECONDS, now - request.first_told)
    return request.produced * FRAME_SECONDS - played


@njit(cache=True)
def welcome(m: Memory, t: int, now: float) -> bool:
    """Whether a talker wants a further request: few have not begun, and none that plays is about to run dry."""
    talker, limit = m.talkers[t], m.constants[0].lead_limit
    if m.constants[0].talker_by_rows:
        return True
    if talker.unstarted >= MAX_UNSTARTED:
        return False
    margin = min(LATE_MARGIN_SECONDS, LATE_MARGIN_STEPS * talker.mean_seconds)
    for i in range(talker.held):
        request = m.requests[m.talker_slots[t, i]]
        if request.at_talker == ROW and request.first_frame != NEVER:
            dry = request.first_frame + request.produced * FRAME_SECONDS
            if dry < now + margin and lead(request, now) < limit:
                return False
    return True


@njit(cache=True)
def talker_asks(m: Memory, t: int, now: float) -> None:
    """A talker that has room and wants more joins those that wait for a request, or takes one that waits."""
    talker, w = m.talkers[t], m.counters[0]
    while talker.up and not talker.asking and talker.held < room(talker, m.constants[0].talker_by_rows):
        if w.talker_orphans > 0:
            r = m.talker_orphans[w.talker_orphans_head]
            w.talker_orphans_head = (w.talker_orphans_head + 1) % len(m.talker_orphans)
            w.talker_orphans -= 1
            talker_takes(m, t, r, now)
            continue
        if not welcome(m, t, now):
            return
        if w.talker_tail > w.talker_head:
            w.talker_head += 1
            talker_takes(m, t, m.talker_queue[w.talker_head - 1], now)
            continue
        talker.asking = 1
        talker.asked = now
        m.talkers_asking[(w.talkers_head + w.talkers_waiting) % len(m.talkers)] = t
        w.talkers_waiting += 1


@njit(cache=True)
def serve_talkers(m: Memory, now: float) -> None:
    """Gives what waits to the talkers that have asked, the first first."""
    w = m.counters[0]
    while w.talkers_waiting > 0 and (w.talker_tail > w.talker_head or w.talker_orphans > 0):
        t = m.talkers_asking[w.talkers_head]
        w.talkers_head = (w.talkers_head + 1) % len(m.talkers)
        w.talkers_waiting -= 1
        talker = m.talkers[t]
        talker.asking = 0
        fresh = now - talker.asked < QUIET_SECONDS
        if (
            fresh
            and talker.up
            and talker.held < room(talker, m.constants[0].talker_by_rows)
            and w.talker_tail > w.talker_head
        ):
            w.talker_head += 1
            talker_takes(m, t, m.talker_queue[w.talker_head - 1], now)
        talker_asks(m, t, now)


@njit(cache=True)
def talker_takes(m: Memory, t: int, r: int, now: float) -> None:
    """A claim: the request is prepared on a thread of its own, then waits for prefill."""
    talker, request = m.talkers[t], m.requests[r]
    m.talker_slots[t, talker.held] = r
    talker.held += 1
    talker.unstarted += 1
    request.talker = t
    request.at_talker = PREPARING
    begins = max(now + m.constants[0].hop, talker.prepares_until)
    talker.prepares_until = begins + m.tasks[request.task].prepare
    push(m, talker.prepares_until, PREPARED, r, talker.life)


@njit(cache=True)
def prepared(m: Memory, r: int, now: float) -> None:
    """The reference's codes go to the codec; the request waits for its turn."""
    request, t = m.requests[r], m.requests[r].talker
    request.at_talker = READY
    m.talkers[t].waiting += 1
    if m.tasks[request.task].reference > 0 and not request.told:
        request.told = 1
        push(m, now + m.constants[0].hop, REFERENCE, r, 0)
    if not m.talkers[t].busy:
        talker_turn(m, t, now)


@njit(cache=True)
def beside_codec(m: Memory, t: int) -> float:
    """How much slower a talker is because the codec computes on its device."""
    p = m.constants[0]
    if t >= len(m.codecs) or not m.codecs[t].busy:
        return 1.0
    return p.interference + p.crowding * (m.codecs[t].batch - 1)


@njit(cache=True)
def beside_talker(m: Memory, c: int) -> float:
    """The other way round."""
    return m.constants[0].interference if c < len(m.talkers) and m.talkers[c].busy else 1.0


@njit(cache=True)
def talker_turn(m: Memory, t: int, now: float) -> None:
    """Prefills one request, the oldest, if one waits; else steps. Of one taken over, each frame is fed anew."""
    talker = m.talkers[t]
    if not talker.waiting:
        talker_step(m, t, now)
        return
    oldest = -1
    for i in range(talker.held):
        r = m.talker_slots[t, i]
        if m.requests[r].at_talker == READY and (oldest < 0 or r < oldest):
            oldest = r
    talker.waiting -= 1
    talker.busy = 1
    replayed = m.requests[oldest].produced
    seconds = m.tasks[m.requests[oldest].task].prefill + replayed * m.step_seconds[1]
    seconds *= noise(m, 0, oldest, replayed)
    m.talker_batch[t, 0] = oldest
    push(m, now + seconds * talker.speed * beside_codec(m, t), PREFILLED, t, talker.life)


@njit(cache=True)
def prefilled(m: Memory, t: int, now: float) -> None:
    """The request is a row; of one that was taken over, what was handed over may have been played."""
    talker, request = m.talkers[t], m.requests[m.talker_batch[t, 0]]
    talker.busy = 0
    request.at_talker = ROW
    if request.produced:
        began = now - request.delivered * FRAME_SECONDS
        request.first_frame = began
        request.first_told = began if request.delivered else NEVER
        talker.unstarted -= 1
    talker_step(m, t, now)


@njit(cache=True)
def talker_step(m: Memory, t: int, now: float) -> None:
    """Begins a step of the rows that would run dry first, without those far ahead of their listener."""
    talker, limit = m.talkers[t], m.constants[0].lead_limit
    n, wake = 0, np.inf
    for i in range(talker.held):
        r = m.talker_slots[t, i]
        request = m.requests[r]
        if request.at_talker != ROW:
            continue
        ahead = lead(request, now) - limit
        if ahead < 0:
            begun = request.first_frame != NEVER
            dry = request.first_frame + request.produced * FRAME_SECONDS
            m.keys[n] = dry if begun else request.accepted - _LONG_AGO
            m.ids[n] = r
            n += 1
        elif request.first_told != NEVER and now - request.first_told < request.told_frames * FRAME_SECONDS:
            wake = min(wake, now + max(ahead, 0.001))
    if n == 0:
        if wake < talker.wake:
            talker.wake = wake
            push(m, wake, TALKER_WAKES, t, talker.life)
        return
    if n > talker.rows:
        select(m.keys, m.ids, m.frames, n, talker.rows)
        n = talker.rows
    first = m.ids[0]
    for i in range(n):
        m.talker_batch[t, i] = m.ids[i]
        first = min(first, m.ids[i])
    talker.batch = n
    talker.busy = 1
    seconds = m.step_seconds[n] * talker.speed * beside_codec(m, t)
    seconds *= noise(m, 1, first, m.requests[first].produced)
    talker.batch_seconds = seconds
    push(m, now + seconds, STEPPED, t, talker.life)


@njit(cache=True)
def stepped(m: Memory, t: int, now: float) -> None:
    """Each row has a frame more, or has ended; what was made goes to the codecs, and the next turn begins."""
    talker, w = m.talkers[t], m.counters[0]
    w.free -= 1
    message = m.free[w.free]
    m.message_size[message] = talker.batch
    m.talker_steps[t, bucket(talker.batch)] += 1
    first = talker.mean_seconds == np.inf
    talker.mean_seconds = talker.batch_seconds if first else 0.9 * talker.mean_seconds + 0.1 * talker.batch_seconds
    m.talker_step_seconds[t, bucket(talker.batch)] += talker.batch_seconds
    for i in range(talker.batch):
        r = m.talker_batch[t, i]
        request = m.requests[r]
        m.message_rows[message, i] = r
        if request.produced == request.length:
            m.message_frames[message, i] = END
            request.at_talker = 0
            request.talker = -1
            forget(m.talker_slots[t], talker, r)
            continue
        request.produced += 1
        talker.frames += 1
        m.message_frames[message, i] = request.produced
        if request.first_frame == NEVER:
            request.first_frame = now
            talker.unstarted -= 1
        if request.by_talker < 0:
            request.by_talker = t
    push(m, now + m.constants[0].hop, CODES, message, 0)
    talker.busy = 0
    talker_asks(m, t, now)
    talker_turn(m, t, now)


# Codecs -------------------------------------------------------------------------------------------------------


@njit(cache=True)
def codec_asks(m: Memory, c: int, now: float) -> None:
    """A codec that has room joins those that wait for a request, or takes one that waits."""
    codec, w = m.codecs[c], m.counters[0]
    while codec.up and not codec.asking and codec.held < room(codec, m.constants[0].codec_by_rows):
        if w.codec_orphans > 0:
            r = m.codec_orphans[w.codec_orphans_head]
            w.codec_orphans_head = (w.codec_orphans_head + 1) % len(m.codec_orphans)
            w.codec_orphans -= 1
            codec_takes(m, c, r, now)
        elif w.codec_tail > w.codec_head:
            w.codec_head += 1
            codec_takes(m, c, m.codec_queue[w.codec_head - 1], now)
        else:
            codec.asking = 1
            m.codecs_asking[(w.codecs_head + w.codecs_waiting) % len(m.codecs)] = c
            w.codecs_waiting += 1


@njit(cache=True)
def serve_codecs(m: Memory, now: float) -> None:
    """Gives what waits to the codecs that have asked, the first first."""
    w = m.counters[0]
    while w.codecs_waiting > 0 and (w.codec_tail > w.codec_head or w.codec_orphans > 0):
        c = m.codecs_asking[w.codecs_head]
        w.codecs_head = (w.codecs_head + 1) % len(m.codecs)
        w.codecs_waiting -= 1
        m.codecs[c].asking = 0
        codec_asks(m, c, now)


@njit(cache=True)
def codec_takes(m: Memory, c: int, r: int, now: float) -> None:
    """A claim: what lies in the request's stream is to be decoded; what was given out already, for its state alone."""
    codec, request = m.codecs[c], m.requests[r]
    m.codec_slots[c, codec.held] = r
    codec.held += 1
    request.codec = c
    request.taken = 0
    reference = m.tasks[request.task].reference if request.told == 2 else 0
    request.silent = reference + request.emitted
    if request.emitted:
        request.first_audio = now - request.emitted * FRAME_SECONDS
    if request.fed:
        push(m, now + m.constants[0].hop, CODEC_WAKES, c, codec.life)


@njit(cache=True)
def referenced(m: Memory, r: int, now: float) -> None:
    """A reference's codes reach the codec."""
    request = m.requests[r]
    reference = m.tasks[request.task].reference
    request.told = 2
    request.fed += reference
    request.silent += reference
    if request.codec >= 0 and not m.codecs[request.codec].busy and m.codecs[request.codec].up:
        codec_turn(m, request.codec, now)


@njit(cache=True)
def coded(m: Memory, message: int, now: float) -> None:
    """A step's codes reach the codecs: all are noted before any codec looks."""
    w = m.counters[0]
    size = m.message_size[message]
    w.looks += 1
    for i in range(size):
        request = m.requests[m.message_rows[message, i]]
        if m.message_frames[message, i] == END:
            request.over = 1
        else:
            request.fed += 1
    for i in range(size):
        c = m.requests[m.message_rows[message, i]].codec
        if c >= 0 and m.codecs[c].up and not m.codecs[c].busy and m.codecs[c].looked != w.looks:
            m.codecs[c].looked = w.looks
            codec_turn(m, c, now)
    m.free[w.free] = message
    w.free += 1


@njit(cache=True)
def to_boundary(m: Memory, c: int, emitted: int) -> int:
    """Frames to the end of the chunk of the ramp that the next frame falls in."""
    end = 0
    for i in range(m.codecs[c].ramp):
        end += m.ramps[c, i]
        if emitted < end:
            return end - emitted
    last = m.ramps[c, m.codecs[c].ramp - 1]
    return last - (emitted - end) % last


@njit(cache=True)
def chunk_ready(m: Memory, c: int, request: Any) -> int:
    """Frames of the next chunk if they are all there, or if no others will come; else 0."""
    pending = request.fed - request.taken
    if request.silent > 0:
        return min(request.silent, pending, m.codecs[c].largest)
    wanted = to_boundary(m, c, request.emitted)
    if pending >= wanted:
        return wanted
    return pending if request.over else 0


@njit(cache=True)
def end_decoded(m: Memory, c: int, now: float) -> None:
    """Streams that are decoded to their end are told so, and their room is free."""
    codec, w = m.codecs[c], m.counters[0]
    n, i = 0, 0
    message = m.free[w.free - 1]
    while i < codec.held:
        r = m.codec_slots[c, i]
        request = m.requests[r]
        if request.over and request.fed == request.taken:
            request.codec = -1
            codec.held -= 1
            m.codec_slots[c, i] = m.codec_slots[c, codec.held]
            m.message_rows[message, n] = r
            m.message_frames[message, n] = END
            n += 1
        else:
            i += 1
    if n:
        w.free -= 1
        m.message_size[message] = n
        push(m, now + m.constants[0].hop, AUDIO, message, 0)


@njit(cache=True)
def ready_rows(m: Memory, c: int) -> int:
    """Puts the rows that have a chunk ready into `keys`, `ids` and `frames`."""
    n, in_order = 0, m.constants[0].talker_by_rows
    for i in range(m.codecs[c].held):
        r = m.codec_slots[c, i]
        request = m.requests[r]
        wanted = chunk_ready(m, c, request)
        if wanted > 0:
            begun = request.first_audio != NEVER and not in_order
            dry = request.first_audio + request.emitted * FRAME_SECONDS
            m.keys[n] = dry if begun else request.accepted - _LONG_AGO
            m.ids[n] = r
            m.frames[n] = wanted
            n += 1
    return n


@njit(cache=True)
def dry_rows(m: Memory, c: int, now: float) -> int:
    """The same for rows with part of a chunk that are about to run dry; if there are none, sets the time to look."""
    codec = m.codecs[c]
    n, wake = 0, np.inf
    for i in range(codec.held):
        r = m.codec_slots[c, i]
        request = m.requests[r]
        pending = request.fed - request.taken
        if pending > 0 and request.first_audio != NEVER:
            dry = request.first_audio + request.emitted * FRAME_SECONDS
            if dry - now <= UNDERRUN_MARGIN_SECONDS:
                m.keys[n] = dry
                m.ids[n] = r
                m.frames[n] = pending
                n += 1
            wake = min(wake, dry - UNDERRUN_MARGIN_SECONDS)
    if n == 0 and wake < codec.wake:
        codec.wake = wake
        push(m, max(wake, now + 1e-6), CODEC_WAKES, c, codec.life)
    return n


@njit(cache=True)
def codec_turn(m: Memory, c: int, now: float) -> None:
    """Ends what is decoded and begins the most urgent call: rows that want the same number of frames share it."""
    end_decoded(m, c, now)
    codec_asks(m, c, now)
    n = ready_rows(m, c)
    if n == 0:
        n = dry_rows(m, c, now)
    if n == 0:
        return
    first = 0
    for i in range(1, n):
        if m.keys[i] < m.keys[first] or (m.keys[i] == m.keys[first] and m.ids[i] < m.ids[first]):
            first = i
    wanted = m.frames[first]
    same = 0
    for i in range(n):
        if m.frames[i] == wanted:
            m.keys[same], m.ids[same], m.frames[same] = m.keys[i], m.ids[i], wanted
            same += 1
    codec = m.codecs[c]
    if same > codec.rows:
        select(m.keys, m.ids, m.frames, same, codec.rows)
        same = codec.rows
    decode(m, c, same, wanted, now)


@njit(cache=True)
def decode(m: Memory, c: int, n: int, wanted: int, now: float) -> None:
    """Begins a call of the first n `ids`, at the captured shape with the least work that holds it, if there is one."""
    codec, p = m.codecs[c], m.constants[0]
    rows, frames, result = n, wanted, EAGER
    for i in range(codec.pairs):
        high, wide = m.pairs[c, i, 0], m.pairs[c, i, 1]
        if high < n or wide < wanted:
            continue
        if result == EAGER or high * wide < rows * frames or (high * wide == rows * frames and high < rows):
            rows, frames = high, wide
            result = HIT if (rows == n and frames == wanted) else PADDED
    if result == EAGER:
        seconds = p.eager_base + p.eager_row * rows + p.eager_frame * rows * (frames + p.context)
    else:
        seconds = p.hit_base + p.hit_row * rows + p.hit_frame * rows * (frames + p.context)
    first = m.ids[0]
    for i in range(n):
        m.codec_batch[c, i] = m.ids[i]
        first = min(first, m.ids[i])
    seconds *= codec.speed * noise(m, 2, first, m.requests[first].taken) * beside_talker(m, c)
    codec.batch, codec.batch_frames, codec.batch_result, codec.busy = n, wanted, result, 1
    codec.batch_seconds = seconds
    push(m, now + seconds, DECODED, c, codec.life)


@njit(cache=True)
def count_call(m: Memory, c: int) -> None:
    """Counts the call that has ended, as the codec's metrics do."""
    w, codec = m.counters[0], m.codecs[c]
    rows, frames, result, seconds = codec.batch, codec.batch_frames, codec.batch_result, codec.batch_seconds
    column = m.column[rows, frames, result]
    if column < 0:
        column = w.columns
        m.column[rows, frames, result] = column
        m.shapes[column, 0], m.shapes[column, 1], m.shapes[column, 2] = rows, frames, result
        w.columns += 1
    m.calls[c, column] += 1
    m.call_seconds[c, column] += seconds
    m.codec_steps[c, bucket(rows)] += 1
    m.codec_step_seconds[c, bucket(rows)] += seconds
    codec.frames += rows * frames


@njit(cache=True)
def decoded(m: Memory, c: int, now: float) -> None:
    """What was decoded goes to the listeners, but for what was decoded for its state alone."""
    codec, w = m.codecs[c], m.counters[0]
    w.free -= 1
    message = m.free[w.free]
    count_call(m, c)
    n = 0
    for i in range(codec.batch):
        r = m.codec_batch[c, i]
        request = m.requests[r]
        request.taken += codec.batch_frames
        if request.silent > 0:
            request.silent -= codec.batch_frames
            continue
        request.emitted += codec.batch_frames
        if request.first_audio == NEVER:
            request.first_audio = now
        if request.by_codec < 0:
            request.by_codec = c
            request.candidate = codec.limited or m.talkers[request.by_talker].limited
        m.message_rows[message, n] = r
        m.message_frames[message, n] = request.emitted
        n += 1
    codec.busy = 0
    if n:
        m.message_size[message] = n
        push(m, now + m.constants[0].hop, AUDIO, message, 0)
    else:
        m.free[w.free] = message
        w.free += 1
    codec_turn(m, c, now)


# Listeners ----------------------------------------------------------------------------------------------------


@njit(cache=True)
def delivered(m: Memory, message: int, now: float) -> None:
    """Audio reaches its listeners, and their talkers learn of it."""
    w = m.counters[0]
    for i in range(m.message_size[message]):
        r = m.message_rows[message, i]
        if m.message_frames[message, i] == END:
            finish(m, r, now)
            continue
        play(m, r, m.message_frames[message, i], now)
        t = m.requests[r].talker
        if t >= 0 and m.talkers[t].up and not m.talkers[t].busy:
            talker_turn(m, t, now)
    m.free[w.free] = message
    w.free += 1


@njit(cache=True)
def finish(m: Memory, r: int, now: float) -> None:
    """A listener has everything; of the closed loop, he asks again."""
    request = m.requests[r]
    request.ended = now
    m.counters[0].gone += 1
    if request.listener >= 0:
        push(m, now, ASK, request.listener, request.task)


@njit(cache=True)
def play(m: Memory, r: int, frames: int, now: float) -> None:
    """A player begins with the first sound and waits only when it has nothing to play. Leading silence is not sent."""
    p, w, request = m.constants[0], m.counters[0], m.requests[r]
    had = max(0.0, request.delivered * FRAME_SECONDS - p.silence)
    has = max(0.0, frames * FRAME_SECONDS - p.silence)
    starts = now if had == 0 else max(now, request.plays_until)
    if request.delivered == 0:
        w.begun += 1
    if request.first_told == NEVER:
        request.first_told = now + p.hop
    if math.isnan(request.ttfa) and has > 0:
        request.ttfa = starts - request.accepted
        m.heard[w.heard], m.heard_at[w.heard] = r, now
        w.heard += 1
    request.plays_until = starts + has - had
    request.delivered = frames
    request.told_frames = frames
    if has > 0 and not request.watched and not request.underrun and frames < request.length:
        request.watched = 1
        push(m, request.plays_until, RUNS_DRY, r, 0)


@njit(cache=True)
def runs_dry(m: Memory, r: int, now: float) -> None:
    """Playback has used up what was there when this was planned: it waits now, unless more has come."""
    w, request = m.counters[0], m.requests[r]
    request.watched = 0
    if request.delivered == request.length:
        return
    if request.plays_until > now:
        request.watched = 1
        push(m, request.plays_until, RUNS_DRY, r, 0)
        return
    request.underrun = 1
    m.dry[w.dry], m.dry_at[w.dry] = r, now
    w.dry += 1


# Failures -----------------------------------------------------------------------------------------------------


@njit(cache=True)
def die(m: Memory, replicas: Any, index: int, lease: int, now: float) -> None:
    """A replica is gone, and what it computed with it; its claims stay until their lease runs out."""
    replica = replicas[index]
    replica.up = replica.busy = replica.asking = replica.limited = 0
    replica.life += 1
    replica.wake = replica.mean_seconds = np.inf
    push(m, now + LEASE_SECONDS, lease, index, replica.life)


@njit(cache=True)
def leave(waiting: Any, head: int, count: int, index: int) -> bool:
    """Takes a dead replica out of the ring of those that ask."""
    found = False
    for i in range(count):
        at, after = (head + i) % len(waiting), (head + i + 1) % len(waiting)
        found = found or waiting[at] == index
        if found and i + 1 < count:
            waiting[at] = waiting[after]
    return found


@njit(cache=True)
def talker_lease(m: Memory, t: int, now: float) -> None:
    """Others may take over what a dead talker held."""
    talker, w = m.talkers[t], m.counters[0]
    for i in range(talker.held):
        m.talker_orphans[(w.talker_orphans_head + w.talker_orphans) % len(m.talker_orphans)] = m.talker_slots[t, i]
        w.talker_orphans += 1
        m.requests[m.talker_slots[t, i]].talker = -1
    talker.held = 0
    serve_talkers(m, now)
    for other in range(len(m.talkers)):
        if w.talker_orphans == 0:
            return
        talker_asks(m, other, now)


@njit(cache=True)
def codec_lease(m: Memory, c: int, now: float) -> None:
    """Others may take over what a dead codec held."""
    codec, w = m.codecs[c], m.counters[0]
    for i in range(codec.held):
        m.codec_orphans[(w.codec_orphans_head + w.codec_orphans) % len(m.codec_orphans)] = m.codec_slots[c, i]
        w.codec_orphans += 1
        m.requests[m.codec_slots[c, i]].codec = -1
    codec.held = 0
    serve_codecs(m, now)
    for other in range(len(m.codecs)):
        if w.codec_orphans == 0:
            return
        codec_asks(m, other, now)


@njit(cache=True)
def talker_returns(m: Memory, t: int, now: float) -> None:
    """It finds its own claims if nobody has them yet, and asks for more."""
    talker = m.talkers[t]
    held = talker.held
    talker.up, talker.unstarted, talker.waiting, talker.held = 1, 0, 0, 0
    talker.prepares_until = now
    for i in range(held):
        talker_takes(m, t, m.talker_slots[t, i], now)
    talker_asks(m, t, now)


@njit(cache=True)
def codec_returns(m: Memory, c: int, now: float) -> None:
    """As a talker."""
    codec = m.codecs[c]
    held = codec.held
    codec.up, codec.held = 1, 0
    for i in range(held):
        codec_takes(m, c, m.codec_slots[c, i], now)
    codec_asks(m, c, now)


@njit(cache=True)
def fail(m: Memory, kind: int, index: int, life: int, now: float) -> None:
    """What happens to replicas."""
    w = m.counters[0]
    if kind == TALKER_DIES:
        w.talkers_waiting -= leave(m.talkers_asking, w.talkers_head, w.talkers_waiting, index)
        die(m, m.talkers, index, TALKER_LEASE, now)
    elif kind == CODEC_DIES:
        w.codecs_waiting -= leave(m.codecs_asking, w.codecs_head, w.codecs_waiting, index)
        die(m, m.codecs, index, CODEC_LEASE, now)
    elif kind == TALKER_LEASE:
        if not m.talkers[index].up and m.talkers[index].life == life:
            talker_lease(m, index, now)
    elif kind == CODEC_LEASE:
        if not m.codecs[index].up and m.codecs[index].life == life:
            codec_lease(m, index, now)
    elif kind == TALKER_RETURNS:
        talker_returns(m, index, now)
    else:
        codec_returns(m, index, now)


# The loop -----------------------------------------------------------------------------------------------------


@njit(cache=True)
def talker_event(m: Memory, kind: int, t: int, life: int, now: float) -> None:
    """Something that a talker has waited for; of a former life, nothing."""
    talker = m.talkers[t]
    if talker.life != life:
        return
    if kind == PREFILLED:
        prefilled(m, t, now)
    elif kind == STEPPED:
        stepped(m, t, now)
    else:
        talker.wake = np.inf
        if not talker.busy:
            talker_turn(m, t, now)


@njit(cache=True)
def codec_event(m: Memory, kind: int, c: int, life: int, now: float) -> None:
    """The same for a codec."""
    codec = m.codecs[c]
    if codec.life != life:
        return
    if kind == DECODED:
        decoded(m, c, now)
    else:
        codec.wake = np.inf
        if not codec.busy:
            codec_turn(m, c, now)


@njit(cache=True)
def happen(m: Memory, kind: int, a: int, b: int, now: float) -> None:
    """One event."""
    if kind in (PREFILLED, STEPPED, TALKER_WAKES):
        talker_event(m, kind, a, b, now)
    elif kind in (DECODED, CODEC_WAKES):
        codec_event(m, kind, a, b, now)
    elif kind == CODES:
        coded(m, a, now)
    elif kind == AUDIO:
        delivered(m, a, now)
    elif kind == RUNS_DRY:
        runs_dry(m, a, now)
    elif kind == PREPARED:
        t = m.requests[a].talker
        if t >= 0 and m.talkers[t].life == b and m.requests[a].at_talker == PREPARING:
            prepared(m, a, now)
    elif kind == REFERENCE:
        referenced(m, a, now)
    elif kind == ASK:
        ask(m, a, b, now)
    else:
        fail(m, kind, a, b, now)


@njit(cache=True)
def begin(m: Memory) -> None:
    """All replicas ask for work."""
    for t in range(len(m.talkers)):
        talker_asks(m, t, 0.0)
    for c in range(len(m.codecs)):
        codec_asks(m, c, 0.0)


@njit(cache=True)
def advance(m: Memory, until: float) -> int:
    """Lets everything happen up to a time. `FULL` if there must be more memory before it can go on."""
    w, p = m.counters[0], m.constants[0]
    width = m.message_rows.shape[1]
    while True:
        if w.free < width + 4 or w.heap > len(m.heap) - 8 * width - 256 or w.columns > m.calls.shape[1] - width - 4:
            return FULL
        if p.closed and w.requests >= len(m.requests) - 4:
            return FULL
        following = m.requests[w.requests].accepted if not p.closed and w.requests < len(m.requests) else np.inf
        first = m.heap[0].at if w.heap > 0 else np.inf
        if min(following, first) > until:
            w.now = until
            return DONE
        if following <= first:
            w.requests += 1
            w.now = following
            arrive(m, w.requests - 1, following)
            continue
        pop(m)
        event = m.heap[w.heap]
        kind, a, b = event.kind, event.a, event.b
        w.now = event.at
        happen(m, kind, a, b, w.now)
