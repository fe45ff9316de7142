"""Operations that must be atomic in Redis: the Lua scripts in `lua/`. They use no command newer than Redis 6.2.

All keys are passed in KEYS and carry the shard's hash tag. ARGV[1] is "1" if an earlier attempt of the same call may
have been executed: its connection was lost before the reply arrived. The only field of an entry is `d`.
"""

import hashlib
from pathlib import Path

FEED_RETENTION_SECONDS = 5
"""How long change feeds keep entries. A reader that was away for longer reads the request streams themselves."""
QUEUE_TTL_SECONDS = 2 * 3600
"""Time to live of the request stream after a submission or a sign of life of any consumer. Longer than any request may
wait, so it only removes the stream of a generation that has neither requests nor replicas."""


class Script:
    """A script after the shared functions that it calls, and its SHA-1 digest, under which Redis caches it."""

    def __init__(self, *names: str) -> None:
        source = "".join("\n" + (Path(__file__).parent / "lua" / f"{name}.lua").read_text() for name in names)
        source = source.replace("FEED_RETENTION_SECONDS", str(FEED_RETENTION_SECONDS))
        self.source = source.replace("QUEUE_TTL_SECONDS", str(QUEUE_TTL_SECONDS)).encode()
        self.digest = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()


SUBMIT = Script("waiting", "touch_queue", "submit")
APPEND = Script("finish", "notify", "append")
REPORT_PLAYBACK = Script("notify", "report_playback")
RELEASE = Script("release")
LAST_POSITION = Script("last_id", "last_position")
QUEUE = Script("waiting", "queue")
HAS_LIVE_CONSUMER = Script("has_live_consumer")
ACCEPT = Script("finish", "last_id", "accept")
FINISH = Script("finish", "finish_claim")
TAKE_OVER = Script("touch_queue", "take_over")
REFRESH = Script("finish", "touch_queue", "refresh")
HAND_OVER = Script("hand_over")
JOIN = Script("touch_queue", "join")
LEAVE = Script("leave")
