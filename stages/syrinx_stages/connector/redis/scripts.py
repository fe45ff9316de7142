"""Operations that must be atomic in Redis: the Lua scripts in `lua/`. They use no command newer than Redis 6.2.

All keys are passed in KEYS and carry the shard's hash tag. ARGV[1] is "1" if an earlier attempt of the same call may
have been executed: its connection was lost before the reply arrived.
The first field of an entry, `d`, is its message; a request also has `c`, its client, and `i`, its ID.
"""

import hashlib
from pathlib import Path

from syrinx_stages.contract.admission import ARRIVALS_SECONDS, BURST_SHARE, STANDING_SHARE

INBOX_RETENTION_SECONDS = 5
"""How long inboxes keep entries. A reader that was away for longer reads the request streams themselves."""
INBOX_TTL_SECONDS = 60
"""Time to live of an inbox after a sign of life of its reader."""
MAX_INLINE_BYTES = 12 * 1024
"""Maximum size of an entry in an inbox: codes, or a first chunk of audio. Larger ones would be in Redis twice."""
CAPACITY_SECONDS = 2
"""A replica that has not reported its capacity for this long no longer counts."""
REPEAT_MS = 600
"""An equal report of a replica is not stored again within this time."""
FAIRNESS_REQUESTS = 128
"""Number of requests over which the shares of clients are counted."""
TURN_SECONDS = 10
"""How long, at most, the next free place is kept for a refused client that has fewer requests than another one."""
TOUCH_SECONDS = 10
"""A write extends the life of its keys unless its process did so less than this long ago: that costs as much again."""
GONE_SECONDS = 600
"""A consumer without claims that has not renewed its lease for this long is forgotten. Far longer than any of its
commands can be under way: a late one could be given a request that nobody looks for."""
QUEUE_TTL_SECONDS = 2 * 3600
"""Time to live of the request stream after a submission or a sign of life of any consumer. Longer than any request may
wait, so it only removes the stream of a generation that has neither requests nor replicas."""
STREAM_BYTES = 1 << 20
"""Memory of Redis reserved for each unfinished request: the codes of segments that are not delivered (4,096 frames are
0.3 MB), 9.5 s of audio (the default lead limit, a chunk, and what a playback report waits: 0.46 MB), and its share of
the inboxes."""
VOICES_SHARE = 4
"""Kept voices take at most this part of Redis' memory; the rest is for streams."""

_CONSTANTS = {
    "INBOX_RETENTION_SECONDS": INBOX_RETENTION_SECONDS,
    "INBOX_TTL_SECONDS": INBOX_TTL_SECONDS,
    "MAX_INLINE_BYTES": MAX_INLINE_BYTES,
    "CAPACITY_SECONDS": CAPACITY_SECONDS,
    "REPEAT_MS": REPEAT_MS,
    "BURST_SHARE": BURST_SHARE,
    "STANDING_SHARE": STANDING_SHARE,
    "ARRIVALS_SECONDS": ARRIVALS_SECONDS,
    "FAIRNESS_REQUESTS": FAIRNESS_REQUESTS,
    "TURN_SECONDS": TURN_SECONDS,
    "GONE_SECONDS": GONE_SECONDS,
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


SUBMIT = Script("clock", "waiting", "touch_queue", "capacity", "has_room", "displace", "turn", "submit")
APPEND = Script("last_id", "owner", "finish", "inbox", "append")
ATTACH = Script("attach")
APPEND_TEXT = Script("last_id", "inbox", "append_text")
REPORT_PLAYBACK = Script("last_id", "owner", "inbox", "report_playback")
OPEN_INBOX = Script("open_inbox")
READ = Script("last_id", "owner", "inbox", "read")
RELEASE = Script("clock", "waiting", "cancel", "release")
WITHDRAW = Script("clock", "waiting", "cancel", "withdraw")
PROGRESS = Script("clock", "last_id", "progress")
LAST_POSITION = Script("last_id", "last_position")
QUEUE = Script("clock", "waiting", "capacity", "queue")
REPORT_CAPACITY = Script("touch_queue", "clock", "lease", "capacity", "report_capacity")
HAS_LIVE_CONSUMER = Script("clock", "has_live_consumer")
ACCEPT = Script("last_id", "owner", "touch_queue", "finish", "accept")
FINISH = Script("finish", "finish_claim")
FIND_DUE = Script("touch_queue", "clock", "lease", "find_due")
TAKE_OVER = Script("touch_queue", "clock", "lease", "take_over")
REFRESH = Script("last_id", "owner", "finish", "touch_queue", "clock", "lease", "refresh")
RELEASE_UNKNOWN = Script("touch_queue", "clock", "lease", "release_unknown")
HAND_OVER = Script("touch_queue", "clock", "lease", "hand_over")
JOIN = Script("touch_queue", "clock", "lease", "join")
LEAVE = Script("leave")
FIND_VOICE = Script("find_voice")
LIST_VOICES = Script("list_voices")
KEEP_VOICE = Script("keep_voice")
PREPARE_VOICE = Script("prepare_voice")
DELETE_VOICE = Script("delete_voice")
