"""Compiled event loop of the simulator: gateway, talkers, codecs and listeners.

It models `syrinx_stages.{gateway,talker,codec,runtime}`: claims of one request at a time, steps by deadline, chunk
ramps, captured shapes, and takeovers. No event reads more than one replica's rows. All compiled code is in this file,
because numba's cache does not detect changes in other files.
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

ASK, PREPARED, PREFILLED, STEPPED, TALKER_WAKES, CODES = range(6)
REFERENCE, DECODED, CODEC_WAKES, AUDIO, UNDERRUN_CHECK = range(6, 11)
(TALKER_DIES, TALKER_LEASE, TALKER_RETURNS, CODEC_DIES, CODEC_LEASE, CODEC_RETURNS) = range(11, 17)

PREPARING, READY, ROW = 1, 2, 3
"""Values of `talker_state`: being prepared, waiting for prefill, part of the batch."""
HIT, PADDED, EAGER = 0, 1, 2
FRAME_SECONDS = FAMILY.frame_seconds
LEASE_SECONDS = 2.0
"""Claims of a dead replica can be taken over after this time."""
POLL_SECONDS = 1.0
"""Interval at which a polling replica checks again whether it can admit a request."""
END = -1
_URGENT = 1e9
_EDGES = np.array(ROW_BUCKETS)
_GOLDEN, _MIX_A, _MIX_B = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@structref.register
class _StateType(types.StructRef):
    """Numba type of `State`."""


class State(structref.StructRefProxy):
    """`Memory` as one reference. Compiled functions would pass each array of a tuple by itself."""


structref.define_constructor(State, _StateType, Memory._fields)
structref.define_boxing(_StateType, State)


@njit(cache=True)
def bind(memory: Memory) -> Any:
    """Returns the memory in the form that compiled functions take. Both share the same arrays."""
    return State(*memory)


# Random numbers -----------------------------------------------------------------------------------------------


@njit(cache=True)
def splitmix64(x: Any) -> Any:
    """SplitMix64 finalizer: returns 64 pseudorandom bits for x."""
    x = (x + np.uint64(_GOLDEN)) & np.uint64(0xFFFFFFFFFFFFFFFF)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_MIX_A)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_MIX_B)
    return x ^ (x >> np.uint64(31))


@njit(cache=True)
def noise(m: Memory, purpose: int, request: int, frame: int) -> float:
    """Returns a lognormal factor with mean 1, as a function of the step's first request and its frame."""
    sigma = m.constants[0].noise
    if sigma == 0.0:
        return 1.0
    bits = splitmix64(np.uint64(m.constants[0].seed) ^ splitmix64(np.uint64(request * 4 + purpose)))
    bits = splitmix64(bits ^ np.uint64(frame))
    one = (float(bits >> np.uint64(40)) + 0.5) / float(1 << 24)
    two = float(bits & np.uint64(0xFFFFFF)) / float(1 << 24)
    normal = math.sqrt(-2.0 * math.log(one)) * math.cos(2.0 * math.pi * two)
    return math.exp(sigma * normal - sigma * sigma / 2)


# Events -------------------------------------------------------------------------------------------------------


@njit(cache=True)
def precedes(one: Any, two: Any) -> bool:
    """Orders events by time, then by creation."""
    return one.at < two.at or (one.at == two.at and one.order < two.order)


@njit(cache=True)
def swap(one: Any, two: Any) -> None:
    """Swaps two events."""
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
    while i > 0 and precedes(m.heap[i], m.heap[(i - 1) // 2]):
        swap(m.heap[i], m.heap[(i - 1) // 2])
        i = (i - 1) // 2


@njit(cache=True)
def pop(m: Memory) -> None:
    """Removes the first event from the heap. It is then stored right after the last one."""
    w = m.counters[0]
    w.heap -= 1
    count = w.heap
    swap(m.heap[0], m.heap[count])
    i = 0
    while True:
        least = i
        for child in (2 * i + 1, 2 * i + 2):
            if child < count and precedes(m.heap[child], m.heap[least]):
                least = child
        if least == i:
            return
        swap(m.heap[i], m.heap[least])
        i = least


# Small helpers ------------------------------------------------------------------------------------------------


@njit(cache=True)
def select(keys: Any, ids: Any, frames: Any, n: int, k: int) -> None:
    """Quickselect: moves the k smallest (key, id) to the front, in any order."""
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
    """Returns the index of the metric's bucket for a number of rows."""
    return int(np.searchsorted(_EDGES, rows))


@njit(cache=True)
def remove_request(slots: Any, replica: Any, request: int) -> None:
    """Removes a request from a replica's list."""
    for i in range(replica.held):
        if slots[i] == request:
            replica.held -= 1
            slots[i] = slots[replica.held]
            return


@njit(cache=True)
def capacity(replica: Any, by_rows: int) -> int:
    """Returns the maximum number of streams of a replica."""
    return min(replica.resident, replica.rows) if by_rows else replica.resident


# Gateway: admission ------------------------------------------------------------------


@njit(cache=True)
def admit(m: Memory, r: int, now: float) -> None:
    """Accepts a request, or refuses it if too many requests wait or the oldest one has waited too long."""
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
    dispatch_to_codecs(m, now)
    dispatch_to_talkers(m, now)


@njit(cache=True)
def closed_loop_request(m: Memory, listener: int, task: int, now: float) -> None:
    """Sends the next request of a closed-loop listener."""
    w = m.counters[0]
    r = w.requests
    w.requests += 1
    m.requests[r].listener = listener
    m.requests[r].task = task
    admit(m, r, now)
    if m.requests[r].refused:
        push(m, now + POLL_SECONDS, ASK, listener, task)


# Talkers ------------------------------------------------------------------------------------------------------


@njit(cache=True)
def buffered_lead(request: Any, now: float) -> float:
    """Returns the seconds of audio produced beyond the playback position."""
    played = 0.0
    if request.first_reported_at != NEVER:
        played = min(request.reported_frames * FRAME_SECONDS, now - request.first_reported_at)
    return request.produced * FRAME_SECONDS - played


@njit(cache=True)
def can_admit(m: Memory, t: int, now: float) -> bool:
    """Returns whether a talker polls: few requests have not started, and no playing stream is near underrun."""
    talker, limit = m.talkers[t], m.constants[0].lead_limit
    if m.constants[0].talker_by_rows:
        return True
    if talker.unstarted >= MAX_UNSTARTED:
        return False
    margin = min(LATE_MARGIN_SECONDS, LATE_MARGIN_STEPS * talker.mean_seconds)
    for i in range(talker.held):
        request = m.requests[m.talker_slots[t, i]]
        if request.talker_state == ROW and request.first_frame != NEVER:
            underrun_at = request.first_frame + request.produced * FRAME_SECONDS
            if underrun_at < now + margin and buffered_lead(request, now) < limit:
                return False
    return True


@njit(cache=True)
def talker_poll(m: Memory, t: int, now: float) -> None:
    """A talker with free capacity claims a waiting request, or joins the pollers."""
    talker, w = m.talkers[t], m.counters[0]
    while talker.up and not talker.asking and talker.held < capacity(talker, m.constants[0].talker_by_rows):
        if w.talker_orphans > 0:
            r = m.talker_orphans[w.talker_orphans_head]
            w.talker_orphans_head = (w.talker_orphans_head + 1) % len(m.talker_orphans)
            w.talker_orphans -= 1
            talker_claim(m, t, r, now)
            continue
        if not can_admit(m, t, now):
            return
        if w.talker_tail > w.talker_head:
            w.talker_head += 1
            talker_claim(m, t, m.talker_queue[w.talker_head - 1], now)
            continue
        talker.asking = 1
        talker.asked = now
        m.talkers_asking[(w.talkers_head + w.talkers_waiting) % len(m.talkers)] = t
        w.talkers_waiting += 1


@njit(cache=True)
def dispatch_to_talkers(m: Memory, now: float) -> None:
    """Assigns waiting requests to the polling talkers in order."""
    w = m.counters[0]
    while w.talkers_waiting > 0 and (w.talker_tail > w.talker_head or w.talker_orphans > 0):
        t = m.talkers_asking[w.talkers_head]
        w.talkers_head = (w.talkers_head + 1) % len(m.talkers)
        w.talkers_waiting -= 1
        talker = m.talkers[t]
        talker.asking = 0
        fresh = now - talker.asked < POLL_SECONDS
        if (
            fresh
            and talker.up
            and talker.held < capacity(talker, m.constants[0].talker_by_rows)
            and w.talker_tail > w.talker_head
        ):
            w.talker_head += 1
            talker_claim(m, t, m.talker_queue[w.talker_head - 1], now)
        talker_poll(m, t, now)


@njit(cache=True)
def talker_claim(m: Memory, t: int, r: int, now: float) -> None:
    """Claims a request. It is prepared on a separate thread, then waits for prefill."""
    talker, request = m.talkers[t], m.requests[r]
    m.talker_slots[t, talker.held] = r
    talker.held += 1
    talker.unstarted += 1
    request.talker = t
    request.talker_state = PREPARING
    starts_at = max(now + m.constants[0].hop, talker.prepares_until)
    talker.prepares_until = starts_at + m.tasks[request.task].prepare
    push(m, talker.prepares_until, PREPARED, r, talker.life)


@njit(cache=True)
def finish_prepare(m: Memory, r: int, now: float) -> None:
    """Sends the reference's codes to the codec and queues the request for prefill."""
    request, t = m.requests[r], m.requests[r].talker
    request.talker_state = READY
    m.talkers[t].waiting += 1
    if m.tasks[request.task].reference > 0 and not request.reference_state:
        request.reference_state = 1
        push(m, now + m.constants[0].hop, REFERENCE, r, 0)
    if not m.talkers[t].busy:
        talker_turn(m, t, now)


@njit(cache=True)
def talker_slowdown(m: Memory, t: int) -> float:
    """Returns the slowdown of a talker while the codec on the same device computes."""
    p = m.constants[0]
    if t >= len(m.codecs) or not m.codecs[t].busy:
        return 1.0
    return p.interference + p.crowding * (m.codecs[t].batch - 1)


@njit(cache=True)
def codec_slowdown(m: Memory, c: int) -> float:
    """Returns the slowdown of a codec while the talker on the same device computes."""
    return m.constants[0].interference if c < len(m.talkers) and m.talkers[c].busy else 1.0


@njit(cache=True)
def talker_turn(m: Memory, t: int, now: float) -> None:
    """Prefills the oldest waiting request, else runs a step. After a takeover, prefill replays each frame."""
    talker = m.talkers[t]
    if not talker.waiting:
        talker_step(m, t, now)
        return
    oldest = -1
    for i in range(talker.held):
        r = m.talker_slots[t, i]
        if m.requests[r].talker_state == READY and (oldest < 0 or r < oldest):
            oldest = r
    talker.waiting -= 1
    talker.busy = 1
    replayed = m.requests[oldest].produced
    seconds = m.tasks[m.requests[oldest].task].prefill + replayed * m.step_seconds[1]
    seconds *= noise(m, 0, oldest, replayed)
    m.talker_batch[t, 0] = oldest
    push(m, now + seconds * talker.speed * talker_slowdown(m, t), PREFILLED, t, talker.life)


@njit(cache=True)
def finish_prefill(m: Memory, t: int, now: float) -> None:
    """Makes the request a row. After a takeover, delivered frames count as played."""
    talker, request = m.talkers[t], m.requests[m.talker_batch[t, 0]]
    talker.busy = 0
    request.talker_state = ROW
    if request.produced:
        began = now - request.delivered * FRAME_SECONDS
        request.first_frame = began
        request.first_reported_at = began if request.delivered else NEVER
        talker.unstarted -= 1
    talker_step(m, t, now)


@njit(cache=True)
def talker_step(m: Memory, t: int, now: float) -> None:
    """Starts a step of the rows with the earliest underrun, without those far ahead of their listener."""
    talker, limit = m.talkers[t], m.constants[0].lead_limit
    n, wake = 0, np.inf
    for i in range(talker.held):
        r = m.talker_slots[t, i]
        request = m.requests[r]
        if request.talker_state != ROW:
            continue
        ahead = buffered_lead(request, now) - limit
        if ahead < 0:
            started = request.first_frame != NEVER
            underrun_at = request.first_frame + request.produced * FRAME_SECONDS
            m.keys[n] = underrun_at if started else request.accepted - _URGENT
            m.ids[n] = r
            n += 1
        elif (
            request.first_reported_at != NEVER
            and now - request.first_reported_at < request.reported_frames * FRAME_SECONDS
        ):
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
    seconds = m.step_seconds[n] * talker.speed * talker_slowdown(m, t)
    seconds *= noise(m, 1, first, m.requests[first].produced)
    talker.batch_seconds = seconds
    push(m, now + seconds, STEPPED, t, talker.life)


@njit(cache=True)
def finish_step(m: Memory, t: int, now: float) -> None:
    """Adds a frame to each row or ends it, sends the codes to the codecs, and starts the next turn."""
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
            request.talker_state = 0
            request.talker = -1
            remove_request(m.talker_slots[t], talker, r)
            continue
        request.produced += 1
        talker.frames += 1
        m.message_frames[message, i] = request.produced
        if request.first_frame == NEVER:
            request.first_frame = now
            talker.unstarted -= 1
        if request.first_talker < 0:
            request.first_talker = t
    push(m, now + m.constants[0].hop, CODES, message, 0)
    talker.busy = 0
    talker_poll(m, t, now)
    talker_turn(m, t, now)


# Codecs -------------------------------------------------------------------------------------------------------


@njit(cache=True)
def codec_poll(m: Memory, c: int, now: float) -> None:
    """A codec with free capacity claims a waiting request, or joins the pollers."""
    codec, w = m.codecs[c], m.counters[0]
    while codec.up and not codec.asking and codec.held < capacity(codec, m.constants[0].codec_by_rows):
        if w.codec_orphans > 0:
            r = m.codec_orphans[w.codec_orphans_head]
            w.codec_orphans_head = (w.codec_orphans_head + 1) % len(m.codec_orphans)
            w.codec_orphans -= 1
            codec_claim(m, c, r, now)
        elif w.codec_tail > w.codec_head:
            w.codec_head += 1
            codec_claim(m, c, m.codec_queue[w.codec_head - 1], now)
        else:
            codec.asking = 1
            m.codecs_asking[(w.codecs_head + w.codecs_waiting) % len(m.codecs)] = c
            w.codecs_waiting += 1


@njit(cache=True)
def dispatch_to_codecs(m: Memory, now: float) -> None:
    """Assigns waiting requests to the polling codecs in order."""
    w = m.counters[0]
    while w.codecs_waiting > 0 and (w.codec_tail > w.codec_head or w.codec_orphans > 0):
        c = m.codecs_asking[w.codecs_head]
        w.codecs_head = (w.codecs_head + 1) % len(m.codecs)
        w.codecs_waiting -= 1
        m.codecs[c].asking = 0
        codec_poll(m, c, now)


@njit(cache=True)
def codec_claim(m: Memory, c: int, r: int, now: float) -> None:
    """Claims a request. After a takeover, frames that were emitted already are replayed to rebuild the state."""
    codec, request = m.codecs[c], m.requests[r]
    m.codec_slots[c, codec.held] = r
    codec.held += 1
    request.codec = c
    request.taken = 0
    reference = m.tasks[request.task].reference if request.reference_state == 2 else 0
    request.replay_frames = reference + request.emitted
    if request.emitted:
        request.first_audio = now - request.emitted * FRAME_SECONDS
    if request.fed:
        push(m, now + m.constants[0].hop, CODEC_WAKES, c, codec.life)


@njit(cache=True)
def deliver_reference(m: Memory, r: int, now: float) -> None:
    """Delivers a reference's codes to the codec."""
    request = m.requests[r]
    reference = m.tasks[request.task].reference
    request.reference_state = 2
    request.fed += reference
    request.replay_frames += reference
    if request.codec >= 0 and not m.codecs[request.codec].busy and m.codecs[request.codec].up:
        codec_turn(m, request.codec, now)


@njit(cache=True)
def deliver_codes(m: Memory, message: int, now: float) -> None:
    """Delivers a step's codes. All requests are updated before a codec starts a call."""
    w = m.counters[0]
    size = m.message_size[message]
    w.rounds += 1
    for i in range(size):
        request = m.requests[m.message_rows[message, i]]
        if m.message_frames[message, i] == END:
            request.codes_complete = 1
        else:
            request.fed += 1
    for i in range(size):
        c = m.requests[m.message_rows[message, i]].codec
        if c >= 0 and m.codecs[c].up and not m.codecs[c].busy and m.codecs[c].last_round != w.rounds:
            m.codecs[c].last_round = w.rounds
            codec_turn(m, c, now)
    m.free[w.free] = message
    w.free += 1


@njit(cache=True)
def frames_to_boundary(m: Memory, c: int, emitted: int) -> int:
    """Returns the frames up to the end of the ramp's chunk that contains the next frame."""
    end = 0
    for i in range(m.codecs[c].ramp):
        end += m.ramps[c, i]
        if emitted < end:
            return end - emitted
    last = m.ramps[c, m.codecs[c].ramp - 1]
    return last - (emitted - end) % last


@njit(cache=True)
def chunk_ready(m: Memory, c: int, request: Any) -> int:
    """Returns the frames of the next chunk if it is complete or the stream has ended, else 0."""
    pending = request.fed - request.taken
    if request.replay_frames > 0:
        return min(request.replay_frames, pending, m.codecs[c].largest)
    wanted = frames_to_boundary(m, c, request.emitted)
    if pending >= wanted:
        return wanted
    return pending if request.codes_complete else 0


@njit(cache=True)
def finish_streams(m: Memory, c: int, now: float) -> None:
    """Sends the end of fully decoded streams and frees their capacity."""
    codec, w = m.codecs[c], m.counters[0]
    n, i = 0, 0
    message = m.free[w.free - 1]
    while i < codec.held:
        r = m.codec_slots[c, i]
        request = m.requests[r]
        if request.codes_complete and request.fed == request.taken:
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
    """Writes the rows with a complete chunk to `keys`, `ids` and `frames`. Returns their number."""
    n, in_order = 0, m.constants[0].talker_by_rows
    for i in range(m.codecs[c].held):
        r = m.codec_slots[c, i]
        request = m.requests[r]
        wanted = chunk_ready(m, c, request)
        if wanted > 0:
            started = request.first_audio != NEVER and not in_order
            underrun_at = request.first_audio + request.emitted * FRAME_SECONDS
            m.keys[n] = underrun_at if started else request.accepted - _URGENT
            m.ids[n] = r
            m.frames[n] = wanted
            n += 1
    return n


@njit(cache=True)
def urgent_rows(m: Memory, c: int, now: float) -> int:
    """Like `ready_rows`, for rows with part of a chunk near underrun. If there are none, schedules a wake-up."""
    codec = m.codecs[c]
    n, wake = 0, np.inf
    for i in range(codec.held):
        r = m.codec_slots[c, i]
        request = m.requests[r]
        pending = request.fed - request.taken
        if pending > 0 and request.first_audio != NEVER:
            underrun_at = request.first_audio + request.emitted * FRAME_SECONDS
            if underrun_at - now <= UNDERRUN_MARGIN_SECONDS:
                m.keys[n] = underrun_at
                m.ids[n] = r
                m.frames[n] = pending
                n += 1
            wake = min(wake, underrun_at - UNDERRUN_MARGIN_SECONDS)
    if n == 0 and wake < codec.wake:
        codec.wake = wake
        push(m, max(wake, now + 1e-6), CODEC_WAKES, c, codec.life)
    return n


@njit(cache=True)
def codec_turn(m: Memory, c: int, now: float) -> None:
    """Ends decoded streams and starts the most urgent call. Rows with the same number of frames share it."""
    finish_streams(m, c, now)
    codec_poll(m, c, now)
    n = ready_rows(m, c)
    if n == 0:
        n = urgent_rows(m, c, now)
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
    """Starts a call of the first n `ids`, at the captured shape with the least work that fits, if there is one."""
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
    seconds *= codec.speed * noise(m, 2, first, m.requests[first].taken) * codec_slowdown(m, c)
    codec.batch, codec.batch_frames, codec.batch_result, codec.busy = n, wanted, result, 1
    codec.batch_seconds = seconds
    push(m, now + seconds, DECODED, c, codec.life)


@njit(cache=True)
def count_call(m: Memory, c: int) -> None:
    """Counts a finished call like the codec's metrics."""
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
def finish_decode(m: Memory, c: int, now: float) -> None:
    """Sends decoded audio to the listeners, except for replayed frames."""
    codec, w = m.codecs[c], m.counters[0]
    w.free -= 1
    message = m.free[w.free]
    count_call(m, c)
    n = 0
    for i in range(codec.batch):
        r = m.codec_batch[c, i]
        request = m.requests[r]
        request.taken += codec.batch_frames
        if request.replay_frames > 0:
            request.replay_frames -= codec.batch_frames
            continue
        request.emitted += codec.batch_frames
        if request.first_audio == NEVER:
            request.first_audio = now
        if request.first_codec < 0:
            request.first_codec = c
            request.candidate = codec.limited or m.talkers[request.first_talker].limited
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
def deliver_audio(m: Memory, message: int, now: float) -> None:
    """Delivers audio to the listeners and reports the playback position to their talkers."""
    w = m.counters[0]
    for i in range(m.message_size[message]):
        r = m.message_rows[message, i]
        if m.message_frames[message, i] == END:
            finish_request(m, r, now)
            continue
        play_audio(m, r, m.message_frames[message, i], now)
        t = m.requests[r].talker
        if t >= 0 and m.talkers[t].up and not m.talkers[t].busy:
            talker_turn(m, t, now)
    m.free[w.free] = message
    w.free += 1


@njit(cache=True)
def finish_request(m: Memory, r: int, now: float) -> None:
    """Ends a request. A closed-loop listener sends its next one."""
    request = m.requests[r]
    request.ended = now
    m.counters[0].streams_ended += 1
    if request.listener >= 0:
        push(m, now, ASK, request.listener, request.task)


@njit(cache=True)
def play_audio(m: Memory, r: int, frames: int, now: float) -> None:
    """Updates the player: it starts with the first audible sample and stalls when its buffer is empty.

    Leading silence is not sent.
    """
    p, w, request = m.constants[0], m.counters[0], m.requests[r]
    had = max(0.0, request.delivered * FRAME_SECONDS - p.silence)
    has = max(0.0, frames * FRAME_SECONDS - p.silence)
    starts = now if had == 0 else max(now, request.plays_until)
    if request.delivered == 0:
        w.streams_started += 1
    if request.first_reported_at == NEVER:
        request.first_reported_at = now + p.hop
    if math.isnan(request.ttfa) and has > 0:
        request.ttfa = starts - request.accepted
        m.ttfa_log[w.ttfa_count], m.ttfa_log_at[w.ttfa_count] = r, now
        w.ttfa_count += 1
    request.plays_until = starts + has - had
    request.delivered = frames
    request.reported_frames = frames
    if has > 0 and not request.underrun_scheduled and not request.underrun and frames < request.length:
        request.underrun_scheduled = 1
        push(m, request.plays_until, UNDERRUN_CHECK, r, 0)


@njit(cache=True)
def check_underrun(m: Memory, r: int, now: float) -> None:
    """Records an underrun if the buffer is empty, else schedules the next check."""
    w, request = m.counters[0], m.requests[r]
    request.underrun_scheduled = 0
    if request.delivered == request.length:
        return
    if request.plays_until > now:
        request.underrun_scheduled = 1
        push(m, request.plays_until, UNDERRUN_CHECK, r, 0)
        return
    request.underrun = 1
    m.underrun_log[w.underrun_count], m.underrun_log_at[w.underrun_count] = r, now
    w.underrun_count += 1


# Failures -----------------------------------------------------------------------------------------------------


@njit(cache=True)
def kill_replica(m: Memory, replicas: Any, index: int, lease: int, now: float) -> None:
    """Kills a replica with its current computation. Its claims remain until their lease expires."""
    replica = replicas[index]
    replica.up = replica.busy = replica.asking = replica.limited = 0
    replica.life += 1
    replica.wake = replica.mean_seconds = np.inf
    push(m, now + LEASE_SECONDS, lease, index, replica.life)


@njit(cache=True)
def remove_waiting(waiting: Any, head: int, count: int, index: int) -> bool:
    """Removes a dead replica from the ring of pollers."""
    found = False
    for i in range(count):
        at, after = (head + i) % len(waiting), (head + i + 1) % len(waiting)
        found = found or waiting[at] == index
        if found and i + 1 < count:
            waiting[at] = waiting[after]
    return found


@njit(cache=True)
def talker_lease(m: Memory, t: int, now: float) -> None:
    """Releases the requests of a dead talker for takeover."""
    talker, w = m.talkers[t], m.counters[0]
    for i in range(talker.held):
        m.talker_orphans[(w.talker_orphans_head + w.talker_orphans) % len(m.talker_orphans)] = m.talker_slots[t, i]
        w.talker_orphans += 1
        m.requests[m.talker_slots[t, i]].talker = -1
    talker.held = 0
    dispatch_to_talkers(m, now)
    for other in range(len(m.talkers)):
        if w.talker_orphans == 0:
            return
        talker_poll(m, other, now)


@njit(cache=True)
def codec_lease(m: Memory, c: int, now: float) -> None:
    """Releases the requests of a dead codec for takeover."""
    codec, w = m.codecs[c], m.counters[0]
    for i in range(codec.held):
        m.codec_orphans[(w.codec_orphans_head + w.codec_orphans) % len(m.codec_orphans)] = m.codec_slots[c, i]
        w.codec_orphans += 1
        m.requests[m.codec_slots[c, i]].codec = -1
    codec.held = 0
    dispatch_to_codecs(m, now)
    for other in range(len(m.codecs)):
        if w.codec_orphans == 0:
            return
        codec_poll(m, other, now)


@njit(cache=True)
def talker_returns(m: Memory, t: int, now: float) -> None:
    """Restarts a talker. It reclaims its requests that were not taken over, and polls."""
    talker = m.talkers[t]
    held = talker.held
    talker.up, talker.unstarted, talker.waiting, talker.held = 1, 0, 0, 0
    talker.prepares_until = now
    for i in range(held):
        talker_claim(m, t, m.talker_slots[t, i], now)
    talker_poll(m, t, now)


@njit(cache=True)
def codec_returns(m: Memory, c: int, now: float) -> None:
    """Restarts a codec. It reclaims its requests that were not taken over, and polls."""
    codec = m.codecs[c]
    held = codec.held
    codec.up, codec.held = 1, 0
    for i in range(held):
        codec_claim(m, c, m.codec_slots[c, i], now)
    codec_poll(m, c, now)


@njit(cache=True)
def handle_failure(m: Memory, kind: int, index: int, life: int, now: float) -> None:
    """Handles an event of a replica's failure."""
    w = m.counters[0]
    if kind == TALKER_DIES:
        w.talkers_waiting -= remove_waiting(m.talkers_asking, w.talkers_head, w.talkers_waiting, index)
        kill_replica(m, m.talkers, index, TALKER_LEASE, now)
    elif kind == CODEC_DIES:
        w.codecs_waiting -= remove_waiting(m.codecs_asking, w.codecs_head, w.codecs_waiting, index)
        kill_replica(m, m.codecs, index, CODEC_LEASE, now)
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
    """Handles a talker's event. Ignores events from before its last restart."""
    talker = m.talkers[t]
    if talker.life != life:
        return
    if kind == PREFILLED:
        finish_prefill(m, t, now)
    elif kind == STEPPED:
        finish_step(m, t, now)
    else:
        talker.wake = np.inf
        if not talker.busy:
            talker_turn(m, t, now)


@njit(cache=True)
def codec_event(m: Memory, kind: int, c: int, life: int, now: float) -> None:
    """Handles a codec's event. Ignores events from before its last restart."""
    codec = m.codecs[c]
    if codec.life != life:
        return
    if kind == DECODED:
        finish_decode(m, c, now)
    else:
        codec.wake = np.inf
        if not codec.busy:
            codec_turn(m, c, now)


@njit(cache=True)
def handle_event(m: Memory, kind: int, a: int, b: int, now: float) -> None:
    """Handles one event."""
    if kind in (PREFILLED, STEPPED, TALKER_WAKES):
        talker_event(m, kind, a, b, now)
    elif kind in (DECODED, CODEC_WAKES):
        codec_event(m, kind, a, b, now)
    elif kind == CODES:
        deliver_codes(m, a, now)
    elif kind == AUDIO:
        deliver_audio(m, a, now)
    elif kind == UNDERRUN_CHECK:
        check_underrun(m, a, now)
    elif kind == PREPARED:
        t = m.requests[a].talker
        if t >= 0 and m.talkers[t].life == b and m.requests[a].talker_state == PREPARING:
            finish_prepare(m, a, now)
    elif kind == REFERENCE:
        deliver_reference(m, a, now)
    elif kind == ASK:
        closed_loop_request(m, a, b, now)
    else:
        handle_failure(m, kind, a, b, now)


@njit(cache=True)
def start(m: Memory) -> None:
    """Lets all replicas poll for requests."""
    for t in range(len(m.talkers)):
        talker_poll(m, t, 0.0)
    for c in range(len(m.codecs)):
        codec_poll(m, c, 0.0)


@njit(cache=True)
def advance(m: Memory, until: float) -> int:
    """Simulates up to a time. Returns `FULL` if the memory must grow first."""
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
            admit(m, w.requests - 1, following)
            continue
        pop(m)
        event = m.heap[w.heap]
        kind, a, b = event.kind, event.a, event.b
        w.now = event.at
        handle_event(m, kind, a, b, w.now)
