"""Compiled event loop of the simulator: gateway, talkers, codecs and listeners.

It models `syrinx_stages.{gateway,talker,codec,runtime}`: claims of one request at a time, steps by deadline, chunk
ramps, captured shapes, and takeovers. No event reads more than one replica's rows. All compiled code is in this file,
because numba's cache does not detect changes in other files. In all functions `r` is the index of a request, `k` that
of a replica (talkers first), and `now` the simulated time in seconds.
"""

import math
from typing import Any

import numpy as np
from numba import njit, types
from numba.experimental import structref

from simulator.layout import CODEC, NEVER, TALKER, Memory
from syrinx_stages.contract.admission import LATE_MARGIN_SECONDS, LATE_MARGIN_STEPS, MAX_UNSTARTED
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.metrics import ROW_BUCKETS
from syrinx_stages.scheduling.codec import UNDERRUN_MARGIN_SECONDS

ASK, PREPARED, REFERENCE, CODES, AUDIO, UNDERRUN_CHECK, DIES, RETURNS = range(8)
WAKES, PREFILLED, STEPPED, DECODED, LEASE_ENDS = range(8, 13)
"""Events of one replica (`a`). They have no effect after its death, which increases its `life` (`b`)."""

PREPARING, READY, ROW = 1, 2, 3
"""Values of a request's `state`: being prepared, waiting for prefill, part of the batch."""
HIT, PADDED, EAGER = 0, 1, 2
FRAME_SECONDS = FAMILY.frame_seconds
LEASE_SECONDS = 1.0
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


structref.define_proxy(State, _StateType, Memory._fields)


@njit(cache=True)
def bind(memory: Memory) -> Any:
    """Returns the memory in the form that compiled functions take. Both share the same arrays."""
    return State(*memory)


# Random numbers -----------------------------------------------------------------------------------------------


@njit(cache=True)
def _splitmix64(x: Any) -> Any:
    x = (x + np.uint64(_GOLDEN)) & np.uint64(0xFFFFFFFFFFFFFFFF)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_MIX_A)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_MIX_B)
    return x ^ (x >> np.uint64(31))


@njit(cache=True)
def _noise(m: Memory, purpose: int, r: int, frame: int) -> float:
    """Returns a lognormal factor with mean 1, as a function of the step's first request and its frame."""
    sigma = m.pipeline[0].noise
    if sigma == 0.0:
        return 1.0
    bits = _splitmix64(np.uint64(m.pipeline[0].seed) ^ _splitmix64(np.uint64(r * 4 + purpose)))
    bits = _splitmix64(bits ^ np.uint64(frame))
    one = (float(bits >> np.uint64(40)) + 0.5) / float(1 << 24)
    two = float(bits & np.uint64(0xFFFFFF)) / float(1 << 24)
    normal = math.sqrt(-2.0 * math.log(one)) * math.cos(2.0 * math.pi * two)
    return math.exp(sigma * normal - sigma * sigma / 2)


# Order of events and of requests ------------------------------------------------------------------------------


@njit(cache=True)
def _precedes(one: Any, two: Any) -> bool:
    return one.due < two.due or (one.due == two.due and one.order < two.order)


@njit(cache=True)
def push(m: Memory, at: float, kind: int, a: int, b: int) -> None:
    """Adds an event to the heap. Events at the same time occur in order of creation."""
    w = m.pipeline[0]
    i = w.heap
    while i > 0 and at < m.heap[(i - 1) // 2].due:
        m.heap[i] = m.heap[(i - 1) // 2]
        i = (i - 1) // 2
    event = m.heap[i]
    event.due, event.order, event.kind, event.a, event.b = at, w.events, kind, a, b
    w.heap += 1
    w.events += 1


@njit(cache=True)
def _pop(m: Memory) -> tuple[float, int, int, int]:
    """Removes the first event from the heap. Returns its time, kind, a and b."""
    w, first = m.pipeline[0], m.heap[0]
    event = first.due, first.kind, first.a, first.b
    w.heap -= 1
    last = m.heap[w.heap]
    i, child = 0, 1
    while child < w.heap:
        if child + 1 < w.heap and _precedes(m.heap[child + 1], m.heap[child]):
            child += 1
        if not _precedes(m.heap[child], last):
            break
        m.heap[i] = m.heap[child]
        i, child = child, 2 * child + 1
    m.heap[i] = last
    return event


@njit(cache=True)
def _select(m: Memory, ids: Any, n: int, k: int) -> int:
    """Quickselect: moves the k of n requests that are due first to the front, in any order. Returns min(k, n)."""
    low, high = 0, n - 1
    while k < n and low < high:
        pivot = m.requests[ids[(low + high) // 2]]
        i, j = low, high
        while i <= j:
            while _precedes(m.requests[ids[i]], pivot):
                i += 1
            while _precedes(pivot, m.requests[ids[j]]):
                j -= 1
            if i <= j:
                ids[i], ids[j] = ids[j], ids[i]
                i += 1
                j -= 1
        if k - 1 <= j:
            high = j
        elif k - 1 >= i:
            low = i
        else:
            break
    return min(k, n)


# Claims of both stages ----------------------------------------------------------------------------------------


@njit(cache=True)
def _admit(m: Memory, r: int, now: float) -> None:
    """Queues a request, or refuses it if too many requests wait for a talker or the oldest one has waited too long."""
    w, request = m.pipeline[0], m.requests[r]
    head = m.stages[TALKER].queue_head
    waiting = w.queue_tail - head
    request.accepted = now
    oldest = now - m.requests[m.queue[head]].accepted if waiting > 0 else 0.0
    if waiting >= w.max_queue or oldest > w.max_queue_seconds:
        request.refused = True
        return
    m.queue[w.queue_tail] = r
    w.queue_tail += 1
    _dispatch(m, CODEC, now)
    _dispatch(m, TALKER, now)


@njit(cache=True)
def _dispatch(m: Memory, s: int, now: float) -> None:
    """Assigns waiting requests to the polling replicas of a stage in order."""
    w, stage = m.pipeline[0], m.stages[s]
    while stage.pollers_head < stage.pollers_tail and (
        stage.queue_head < w.queue_tail or stage.orphans_head < stage.orphans_tail
    ):
        k = m.pollers[s, stage.pollers_head % m.pollers.shape[1]]
        stage.pollers_head += 1
        replica = m.replicas[k]
        replica.polling = False
        fresh = s == TALKER and now - replica.polled_at < POLL_SECONDS
        if fresh and replica.held < replica.capacity and stage.queue_head < w.queue_tail:
            stage.queue_head += 1
            _claim(m, k, m.queue[stage.queue_head - 1], now)
        poll(m, k, now)


@njit(cache=True)
def poll(m: Memory, k: int, now: float) -> None:
    """A replica with free capacity claims waiting requests, those of dead replicas first, or joins the pollers."""
    replica = m.replicas[k]
    s = replica.stage
    stage = m.stages[s]
    while replica.up and not replica.polling and replica.held < replica.capacity:
        if stage.orphans_head < stage.orphans_tail:
            stage.orphans_head += 1
            _claim(m, k, m.orphans[s, (stage.orphans_head - 1) % m.orphans.shape[1]], now)
        elif s == TALKER and not can_admit(m, k, now):
            return
        elif stage.queue_head < m.pipeline[0].queue_tail:
            stage.queue_head += 1
            _claim(m, k, m.queue[stage.queue_head - 1], now)
        else:
            replica.polling = True
            replica.polled_at = now
            m.pollers[s, stage.pollers_tail % m.pollers.shape[1]] = k
            stage.pollers_tail += 1


@njit(cache=True)
def _claim(m: Memory, k: int, r: int, now: float) -> None:
    """Claims a request. A talker prepares it on a separate thread. A codec replays frames of a takeover."""
    w, replica, request = m.pipeline[0], m.replicas[k], m.requests[r]
    task = m.tasks[request.task]
    m.slots[k, replica.held] = r
    replica.held += 1
    request.holder[replica.stage] = k
    if replica.stage == TALKER:
        replica.unstarted += 1
        request.state = PREPARING
        replica.prepares_until = max(now + w.hop, replica.prepares_until) + task.prepare
        push(m, replica.prepares_until, PREPARED, r, replica.life)
        return
    request.taken = 0
    request.replay_frames = request.emitted + (task.reference if request.reference_delivered else 0)
    if request.emitted:
        request.first_audio = now - request.emitted * FRAME_SECONDS
    if request.fed:
        push(m, now + w.hop, WAKES, k, replica.life)


@njit(cache=True)
def _release(m: Memory, k: int, r: int) -> None:
    replica = m.replicas[k]
    m.requests[r].holder[replica.stage] = -1
    for i in range(replica.held):
        if m.slots[k, i] == r:
            replica.held -= 1
            m.slots[k, i] = m.slots[k, replica.held]
            return


@njit(cache=True)
def _slowdown(m: Memory, k: int) -> float:
    """Returns the slowdown of a replica while the other stage computes on the same device."""
    w, replica = m.pipeline[0], m.replicas[k]
    if replica.neighbor < 0 or not m.replicas[replica.neighbor].busy:
        return 1.0
    return w.interference + (w.crowding * (m.replicas[replica.neighbor].batch - 1) if replica.stage == TALKER else 0.0)


@njit(cache=True)
def _wake_at(m: Memory, k: int, at: float, now: float) -> None:
    if at < m.replicas[k].wake:
        m.replicas[k].wake = at
        push(m, max(at, now + 1e-6), WAKES, k, m.replicas[k].life)


@njit(cache=True)
def _turn(m: Memory, k: int, now: float) -> None:
    """Lets a replica start its next computation unless it is down or busy."""
    if k < 0 or not m.replicas[k].up or m.replicas[k].busy:
        return
    if m.replicas[k].stage == TALKER:
        _talker_turn(m, k, now)
    else:
        codec_turn(m, k, now)


@njit(cache=True)
def _count_step(replica: Any) -> None:
    step = replica.steps[np.searchsorted(_EDGES, replica.batch)]
    step.count += 1
    step.seconds += replica.batch_seconds


@njit(cache=True)
def _send(m: Memory, kind: int, size: int, now: float) -> None:
    """Sends the message that the caller has written to the ring. All messages take as long, so they arrive in order."""
    w = m.pipeline[0]
    push(m, now + w.hop, kind, w.sent, size)
    w.sent += 1


# Talkers ------------------------------------------------------------------------------------------------------


@njit(cache=True)
def _buffered_lead(request: Any, now: float) -> float:
    """Returns the seconds of audio produced beyond the playback position."""
    played = 0.0
    if request.first_reported_at != NEVER:
        played = min(request.delivered * FRAME_SECONDS, now - request.first_reported_at)
    return request.produced * FRAME_SECONDS - played


@njit(cache=True)
def can_admit(m: Memory, k: int, now: float) -> bool:
    """Returns whether a talker polls: few requests have not started, and no playing stream is near underrun."""
    talker, limit = m.replicas[k], m.pipeline[0].lead_limit
    if m.pipeline[0].by_rows:
        return True
    if talker.unstarted >= MAX_UNSTARTED:
        return False
    margin = min(LATE_MARGIN_SECONDS, LATE_MARGIN_STEPS * talker.mean_seconds)
    for i in range(talker.held):
        request = m.requests[m.slots[k, i]]
        if request.state == ROW and request.first_frame != NEVER:
            underrun_at = request.first_frame + request.produced * FRAME_SECONDS
            if underrun_at < now + margin and _buffered_lead(request, now) < limit:
                return False
    return True


@njit(cache=True)
def _finish_prepare(m: Memory, r: int, life: int, now: float) -> None:
    """Sends the reference's codes to the codec and queues the request for prefill."""
    request = m.requests[r]
    k = request.holder[TALKER]
    if k < 0 or m.replicas[k].life != life or request.state != PREPARING:
        return
    request.state = READY
    m.replicas[k].waiting += 1
    if m.tasks[request.task].reference > 0 and not request.reference_sent:
        request.reference_sent = True
        push(m, now + m.pipeline[0].hop, REFERENCE, r, 0)
    _turn(m, k, now)


@njit(cache=True)
def _talker_turn(m: Memory, k: int, now: float) -> None:
    """Prefills the oldest waiting request, else runs a step. After a takeover, prefill replays each frame."""
    talker = m.replicas[k]
    if not talker.waiting:
        talker_step(m, k, now)
        return
    oldest = -1
    for i in range(talker.held):
        r = m.slots[k, i]
        if m.requests[r].state == READY and (oldest < 0 or r < oldest):
            oldest = r
    talker.waiting -= 1
    talker.busy = True
    replayed = m.requests[oldest].produced
    seconds = m.tasks[m.requests[oldest].task].prefill + replayed * m.step_seconds[1]
    seconds *= _noise(m, 0, oldest, replayed)
    seconds *= talker.speed * _slowdown(m, k)
    talker.prefills += 1
    talker.prefill_seconds += seconds
    m.batch[k, 0] = oldest
    push(m, now + seconds, PREFILLED, k, talker.life)


@njit(cache=True)
def _finish_prefill(m: Memory, k: int, now: float) -> None:
    """Makes the request a row. After a takeover, delivered frames count as played."""
    talker, request = m.replicas[k], m.requests[m.batch[k, 0]]
    talker.busy = False
    request.state = ROW
    if request.produced:
        began = now - request.delivered * FRAME_SECONDS
        request.first_frame = began
        request.first_reported_at = began if request.delivered else NEVER
        talker.unstarted -= 1
    talker_step(m, k, now)


@njit(cache=True)
def talker_step(m: Memory, k: int, now: float) -> None:
    """Starts a step of the rows with the earliest underrun, without those far ahead of their listener."""
    talker, batch = m.replicas[k], m.batch[k]
    n, wake = 0, np.inf
    for i in range(talker.held):
        request = m.requests[m.slots[k, i]]
        if request.state != ROW:
            continue
        ahead = _buffered_lead(request, now) - m.pipeline[0].lead_limit
        reported_at = request.first_reported_at
        if ahead < 0:
            underrun_at = request.first_frame + request.produced * FRAME_SECONDS
            request.due = underrun_at if request.first_frame != NEVER else request.accepted - _URGENT
            batch[n] = request.order
            n += 1
        elif reported_at != NEVER and now - reported_at < request.delivered * FRAME_SECONDS:
            wake = min(wake, now + max(ahead, 0.001))
    if n == 0:
        _wake_at(m, k, wake, now)
        return
    n = _select(m, batch, n, talker.rows)
    first = batch[0]
    for i in range(1, n):
        first = min(first, batch[i])
    seconds = m.step_seconds[n] * talker.speed * _slowdown(m, k)
    seconds *= _noise(m, 1, first, m.requests[first].produced)
    talker.batch, talker.batch_seconds, talker.busy = n, seconds, True
    push(m, now + seconds, STEPPED, k, talker.life)


@njit(cache=True)
def _finish_step(m: Memory, k: int, now: float) -> None:
    """Adds a frame to each row or ends it, sends the codes to the codecs, and starts the next turn."""
    talker = m.replicas[k]
    message = m.messages[m.pipeline[0].sent % len(m.messages)]
    _count_step(talker)
    first = talker.mean_seconds == np.inf
    talker.mean_seconds = talker.batch_seconds if first else 0.9 * talker.mean_seconds + 0.1 * talker.batch_seconds
    for i in range(talker.batch):
        r = m.batch[k, i]
        request = m.requests[r]
        message[i].request = r
        if request.produced == request.frames:
            message[i].frames = END
            request.state = 0
            _release(m, k, r)
            continue
        request.produced += 1
        talker.frames += 1
        message[i].frames = request.produced
        if request.first_frame == NEVER:
            request.first_frame = now
            talker.unstarted -= 1
        if request.talker < 0:
            request.talker = k
    _send(m, CODES, talker.batch, now)
    talker.busy = False
    poll(m, k, now)
    _talker_turn(m, k, now)


# Codecs -------------------------------------------------------------------------------------------------------


@njit(cache=True)
def _deliver_reference(m: Memory, r: int, now: float) -> None:
    request = m.requests[r]
    request.reference_delivered = True
    request.fed += m.tasks[request.task].reference
    request.replay_frames += m.tasks[request.task].reference
    _turn(m, request.holder[CODEC], now)


@njit(cache=True)
def _deliver_codes(m: Memory, number: int, size: int, now: float) -> None:
    """Delivers a step's codes. All requests are updated before a codec starts a call."""
    message = m.messages[number % len(m.messages)]
    for i in range(size):
        request = m.requests[message[i].request]
        if message[i].frames == END:
            request.codes_complete = True
        else:
            request.fed += 1
    for i in range(size):
        k = m.requests[message[i].request].holder[CODEC]
        if k >= 0 and m.replicas[k].last_message != number:
            m.replicas[k].last_message = number
            _turn(m, k, now)
    m.pipeline[0].delivered += 1


@njit(cache=True)
def _chunk_end(codec: Any, position: int) -> int:
    """Returns the frames from a position to the end of its chunk. See `syrinx_stages.scheduling.codec`."""
    end, last = 0, codec.ramp[codec.chunks - 1]
    for i in range(codec.chunks):
        end += codec.ramp[i]
        if position < end:
            following = codec.ramp[min(i + 1, codec.chunks - 1)]
            rest = end - position
            return rest if 2 * rest >= codec.ramp[i] else rest + following // 2
    rest = last - (position - end) % last
    return rest if 2 * rest >= last else rest + last // 2


@njit(cache=True)
def _chunk_ready(codec: Any, request: Any) -> int:
    """Returns the frames of the next chunk if it is complete or the stream has ended, else 0."""
    pending = request.fed - request.taken
    if request.replay_frames > 0:
        return min(request.replay_frames, pending, codec.max_chunk)
    wanted = _chunk_end(codec, request.emitted)
    if pending >= wanted:
        return wanted
    return pending if request.codes_complete else 0


@njit(cache=True)
def _finish_streams(m: Memory, k: int, now: float) -> None:
    """Sends the end of fully decoded streams and frees their capacity."""
    message = m.messages[m.pipeline[0].sent % len(m.messages)]
    n, i = 0, 0
    while i < m.replicas[k].held:
        r = m.slots[k, i]
        if m.requests[r].codes_complete and m.requests[r].fed == m.requests[r].taken:
            _release(m, k, r)
            message[n].request, message[n].frames = r, END
            n += 1
        else:
            i += 1
    if n:
        _send(m, AUDIO, n, now)


@njit(cache=True)
def _ready_rows(m: Memory, k: int, now: float) -> int:
    """Writes the rows with a complete chunk, or half of one near underrun, to the batch. Returns their number.

    If there are none, writes those near underrun with less, or schedules a wake-up for the next that will be.
    """
    codec, batch, by_rows = m.replicas[k], m.batch[k], m.pipeline[0].by_rows
    n, wake = 0, np.inf
    for i in range(codec.held):
        request = m.requests[m.slots[k, i]]
        started = request.first_audio != NEVER
        underrun_at = request.first_audio + request.emitted * FRAME_SECONDS
        request.due = underrun_at if started and not by_rows else request.accepted - _URGENT
        request.wanted = _chunk_ready(codec, request)
        if request.wanted == 0 and started and request.fed > request.taken:
            wake = min(wake, underrun_at - UNDERRUN_MARGIN_SECONDS)
            half = 2 * (request.fed - request.taken) >= _chunk_end(codec, request.emitted)
            if half and underrun_at - now <= UNDERRUN_MARGIN_SECONDS:
                request.wanted = request.fed - request.taken
        if request.wanted > 0:
            batch[n] = request.order
            n += 1
    if n:
        return n
    for i in range(codec.held):
        request = m.requests[m.slots[k, i]]
        underrun_at = request.first_audio + request.emitted * FRAME_SECONDS
        started = request.first_audio != NEVER and request.fed > request.taken
        if started and underrun_at - now <= UNDERRUN_MARGIN_SECONDS:
            request.due = underrun_at
            request.wanted = request.fed - request.taken
            batch[n] = request.order
            n += 1
    if n == 0:
        _wake_at(m, k, wake, now)
    return n


@njit(cache=True)
def codec_turn(m: Memory, k: int, now: float) -> None:
    """Ends decoded streams and starts the most urgent call. Rows with the same number of frames share it."""
    _finish_streams(m, k, now)
    poll(m, k, now)
    n = _ready_rows(m, k, now)
    if n == 0:
        return
    batch = m.batch[k]
    first = m.requests[batch[0]]
    for i in range(1, n):
        if _precedes(m.requests[batch[i]], first):
            first = m.requests[batch[i]]
    same = 0
    for i in range(n):
        if m.requests[batch[i]].wanted == first.wanted:
            batch[same] = batch[i]
            same += 1
    _decode(m, k, _select(m, batch, same, m.replicas[k].rows), first.wanted, now)


@njit(cache=True)
def _decode(m: Memory, k: int, n: int, wanted: int, now: float) -> None:
    """Starts a call of the batch, at the captured shape with the least work that fits, if there is one."""
    codec, w = m.replicas[k], m.pipeline[0]
    rows, frames, result = n, wanted, EAGER
    for i in range(codec.pairs):
        high, wide = codec.shapes[i, 0], codec.shapes[i, 1]
        if high < n or wide < wanted:
            continue
        if result == EAGER or high * wide < rows * frames or (high * wide == rows * frames and high < rows):
            rows, frames = high, wide
            result = HIT if (rows == n and frames == wanted) else PADDED
    cost = w.eager if result == EAGER else w.captured
    seconds = cost[0] + cost[1] * rows + cost[2] * rows * (frames + w.context_frames)
    first = m.batch[k, 0]
    for i in range(1, n):
        first = min(first, m.batch[k, i])
    seconds *= codec.speed * _noise(m, 2, first, m.requests[first].taken) * _slowdown(m, k)
    codec.batch, codec.batch_frames, codec.batch_result, codec.busy = n, wanted, result, True
    codec.batch_seconds = seconds
    push(m, now + seconds, DECODED, k, codec.life)


@njit(cache=True)
def _finish_decode(m: Memory, k: int, now: float) -> None:
    """Counts a finished call and sends the audio to the listeners, except for replayed frames."""
    w, codec = m.pipeline[0], m.replicas[k]
    message = m.messages[w.sent % len(m.messages)]
    rows, frames, result = codec.batch, codec.batch_frames, codec.batch_result
    if m.columns[rows, frames, result] < 0:
        m.columns[rows, frames, result] = w.columns
        w.columns += 1
    call = m.calls[m.columns[rows, frames, result], k - w.talkers]
    call.rows, call.frames, call.result = rows, frames, result
    call.count += 1
    call.seconds += codec.batch_seconds
    _count_step(codec)
    codec.frames += rows * frames
    n = 0
    for i in range(rows):
        request = m.requests[m.batch[k, i]]
        request.taken += frames
        if request.replay_frames > 0:
            request.replay_frames -= frames
            continue
        request.emitted += frames
        if request.first_audio == NEVER:
            request.first_audio = now
        if request.codec < 0:
            request.codec = k - w.talkers
            request.candidate = codec.limited or m.replicas[request.talker].limited
        message[n].request, message[n].frames = m.batch[k, i], request.emitted
        n += 1
    codec.busy = False
    if n:
        _send(m, AUDIO, n, now)
    codec_turn(m, k, now)


# Listeners ----------------------------------------------------------------------------------------------------


@njit(cache=True)
def _ask(m: Memory, listener: int, task: int, now: float) -> None:
    """Sends the next request of a closed-loop listener."""
    r = m.pipeline[0].requests
    m.pipeline[0].requests += 1
    m.requests[r].listener, m.requests[r].task = listener, task
    _admit(m, r, now)
    if m.requests[r].refused:
        push(m, now + POLL_SECONDS, ASK, listener, task)


@njit(cache=True)
def _deliver_audio(m: Memory, number: int, size: int, now: float) -> None:
    """Delivers audio to the listeners and reports the playback position to their talkers."""
    message = m.messages[number % len(m.messages)]
    for i in range(size):
        request = m.requests[message[i].request]
        if message[i].frames != END:
            _play(m, message[i].request, message[i].frames, now)
            _turn(m, request.holder[TALKER], now)
            continue
        request.finished = now
        m.pipeline[0].streams_ended += 1
        if request.listener >= 0:
            push(m, now, ASK, request.listener, request.task)
    m.pipeline[0].delivered += 1


@njit(cache=True)
def _log(m: Memory, r: int, underrun: bool, now: float) -> None:
    w = m.pipeline[0]
    entry = m.log[w.logged]
    entry.at, entry.request, entry.underrun = now, r, underrun
    w.logged += 1


@njit(cache=True)
def _play(m: Memory, r: int, frames: int, now: float) -> None:
    """Updates the player: it starts with the first audible sample and stalls when its buffer is empty.

    Leading silence is not sent.
    """
    w, request = m.pipeline[0], m.requests[r]
    had = max(0.0, request.delivered * FRAME_SECONDS - w.silence)
    has = max(0.0, frames * FRAME_SECONDS - w.silence)
    starts = now if had == 0 else max(now, request.plays_until)
    if request.delivered == 0:
        w.streams_started += 1
    if request.first_reported_at == NEVER:
        request.first_reported_at = now + w.hop
    if math.isnan(request.ttfa) and has > 0:
        request.ttfa = starts - request.accepted
        _log(m, r, False, now)
    request.plays_until = starts + has - had
    request.delivered = frames
    if has > 0 and not request.check_scheduled and not request.underrun and frames < request.frames:
        request.check_scheduled = True
        push(m, request.plays_until, UNDERRUN_CHECK, r, 0)


@njit(cache=True)
def _check_underrun(m: Memory, r: int, now: float) -> None:
    """Records an underrun if the buffer is empty, else schedules the next check."""
    request = m.requests[r]
    request.check_scheduled = request.delivered < request.frames and request.plays_until > now
    if request.check_scheduled:
        push(m, request.plays_until, UNDERRUN_CHECK, r, 0)
    elif request.delivered < request.frames:
        request.underrun = True
        _log(m, r, True, now)


# Failures -----------------------------------------------------------------------------------------------------


@njit(cache=True)
def _kill(m: Memory, k: int, now: float) -> None:
    """Kills a replica with its current computation. Its claims remain until their lease expires."""
    replica = m.replicas[k]
    stage, pollers = m.stages[replica.stage], m.pollers[replica.stage]
    replica.up = replica.busy = replica.polling = replica.limited = False
    replica.life += 1
    replica.wake = replica.mean_seconds = np.inf
    tail = stage.pollers_head
    for i in range(stage.pollers_head, stage.pollers_tail):
        if pollers[i % len(pollers)] != k:
            pollers[tail % len(pollers)] = pollers[i % len(pollers)]
            tail += 1
    stage.pollers_tail = tail
    push(m, now + LEASE_SECONDS, LEASE_ENDS, k, replica.life)


@njit(cache=True)
def _end_lease(m: Memory, k: int, now: float) -> None:
    replica = m.replicas[k]
    s = replica.stage
    stage = m.stages[s]
    if replica.up:
        return
    for i in range(replica.held):
        m.orphans[s, stage.orphans_tail % m.orphans.shape[1]] = m.slots[k, i]
        stage.orphans_tail += 1
        m.requests[m.slots[k, i]].holder[s] = -1
    replica.held = 0
    _dispatch(m, s, now)
    for other in range(len(m.replicas)):
        if m.replicas[other].stage == s and stage.orphans_head < stage.orphans_tail:
            poll(m, other, now)


@njit(cache=True)
def _return(m: Memory, k: int, now: float) -> None:
    """Restarts a replica. It reclaims its requests that were not taken over, and polls."""
    replica = m.replicas[k]
    held = replica.held
    replica.up, replica.unstarted, replica.waiting, replica.held = True, 0, 0, 0
    replica.restarts += 1
    replica.prepares_until = now
    for i in range(held):
        _claim(m, k, m.slots[k, i], now)
    poll(m, k, now)


# The loop -----------------------------------------------------------------------------------------------------


@njit(cache=True)
def _handle(m: Memory, kind: int, a: int, b: int, now: float) -> None:
    if kind >= WAKES and m.replicas[a].life != b:
        return
    if kind == STEPPED:
        _finish_step(m, a, now)
    elif kind == CODES:
        _deliver_codes(m, a, b, now)
    elif kind == DECODED:
        _finish_decode(m, a, now)
    elif kind == AUDIO:
        _deliver_audio(m, a, b, now)
    elif kind == WAKES:
        m.replicas[a].wake = np.inf
        _turn(m, a, now)
    elif kind == UNDERRUN_CHECK:
        _check_underrun(m, a, now)
    elif kind == PREPARED:
        _finish_prepare(m, a, b, now)
    elif kind == PREFILLED:
        _finish_prefill(m, a, now)
    elif kind == REFERENCE:
        _deliver_reference(m, a, now)
    elif kind == ASK:
        _ask(m, a, b, now)
    elif kind == DIES:
        _kill(m, a, now)
    elif kind == LEASE_ENDS:
        _end_lease(m, a, now)
    else:
        _return(m, a, now)


@njit(cache=True)
def advance(m: Memory, until: float) -> bool:
    """Simulates up to a time. Returns False if the memory must grow first."""
    w = m.pipeline[0]
    size, width = m.messages.shape
    while True:
        if w.sent - w.delivered > size - width - 4 or w.heap > len(m.heap) - 8 * width - 256:
            return False
        if w.closed and w.requests >= len(m.requests) - 4:
            return False
        arrival = m.requests[w.requests].accepted if not w.closed and w.requests < len(m.requests) else np.inf
        following = m.heap[0].due if w.heap > 0 else np.inf
        if min(arrival, following) > until:
            return True
        if arrival <= following:
            w.requests += 1
            _admit(m, w.requests - 1, arrival)
        else:
            now, kind, a, b = _pop(m)
            _handle(m, kind, a, b, now)
