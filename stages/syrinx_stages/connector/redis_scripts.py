"""Operations that must be atomic in Redis: the Lua scripts in `lua/`. They use no command newer than Redis 6.2.

All keys are passed in KEYS and carry the shard's hash tag. ARGV[1] is "1" if an earlier attempt of the same call may
have been executed: its connection was lost before the reply arrived.
The first field of an entry, `d`, is its message; a request also has `c`, its client, and `i`, its ID.
"""

import hashlib
from pathlib import Path

FEED_RETENTION_SECONDS = 5
"""How long change feeds keep entries. A reader that was away for longer reads the request streams themselves."""
CAPACITY_SECONDS = 2
"""A replica that has not reported its capacity for this long no longer counts."""
BURST_SHARE = 2
"""A request is admitted if its expected wait is within this part of `max_queue_seconds`: requests are longer or shorter
than expected, and few that are admitted shall be refused later."""
STANDING_SHARE = 9
"""The same in an overload for all but the first in the queue: a longer one would only delay those who are admitted, and
not serve more."""
ARRIVALS_SECONDS = 3
"""Time constant of the rate at which requests arrive. In an overload more of them arrive than are served."""
FAIRNESS_REQUESTS = 128
"""Number of requests over which the shares of clients are counted."""
TURN_SECONDS = 10
"""How long, at most, the next free place is kept for a refused client that has fewer requests than another one."""
QUEUE_TTL_SECONDS = 2 * 3600
"""Time to live of the request stream after a submission or a sign of life of any consumer. Longer than any request may
wait, so it only removes the stream of a generation that has neither requests nor replicas."""
STREAM_BYTES = 1 << 20
"""Memory of Redis reserved for each unfinished request: 4,096 frames of codes (0.3 MB), 9 s of audio (the default
lead limit and a chunk, 0.43 MB), and its share of the change feeds."""
VOICES_SHARE = 4
"""Kept voices take at most this part of Redis' memory; the rest is for streams."""

_CONSTANTS = {
    "FEED_RETENTION_SECONDS": FEED_RETENTION_SECONDS,
    "CAPACITY_SECONDS": CAPACITY_SECONDS,
    "BURST_SHARE": BURST_SHARE,
    "STANDING_SHARE": STANDING_SHARE,
    "ARRIVALS_SECONDS": ARRIVALS_SECONDS,
    "FAIRNESS_REQUESTS": FAIRNESS_REQUESTS,
    "TURN_SECONDS": TURN_SECONDS,
    "QUEUE_TTL_SECONDS": QUEUE_TTL_SECONDS,
    "STREAM_BYTES": STREAM_BYTES,
    "VOICES_SHARE": VOICES_SHARE,
}


class Script:
    """A script after the shared functions that it calls, and its SHA-1 digest, under which Redis caches it."""

    def __init__(self, *names: str) -> None:
        source = "".join("\n" + (Path(__file__).parent / "lua" / f"{name}.lua").read_text() for name in names)
        for name, value in _CONSTANTS.items():
            source = source.replace(name, str(value))
        self.source = source.encode()
        self.digest = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()


SUBMIT = Script("waiting", "touch_queue", "capacity", "has_room", "displace", "turn", "submit")
APPEND = Script("owner", "finish", "notify", "append")
REPORT_PLAYBACK = Script("notify", "report_playback")
RELEASE = Script("cancel", "release")
WITHDRAW = Script("waiting", "cancel", "withdraw")
LAST_POSITION = Script("last_id", "last_position")
QUEUE = Script("waiting", "capacity", "queue")
REPORT_CAPACITY = Script("capacity", "report_capacity")
HAS_LIVE_CONSUMER = Script("has_live_consumer")
ACCEPT = Script("owner", "touch_queue", "finish", "accept")
FINISH = Script("finish", "finish_claim")
TAKE_OVER = Script("touch_queue", "take_over")
REFRESH = Script("owner", "finish", "touch_queue", "refresh")
HAND_OVER = Script("hand_over")
JOIN = Script("touch_queue", "join")
LEAVE = Script("leave")
FIND_VOICE = Script("find_voice")
LIST_VOICES = Script("list_voices")
KEEP_VOICE = Script("keep_voice")
PREPARE_VOICE = Script("prepare_voice")
DELETE_VOICE = Script("delete_voice")
