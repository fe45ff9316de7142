"""The Redis in memory replies as a real one to random commands, in scripts too."""

import random
import uuid

import pytest
from redis import Redis

from support import streams
from support.memory_redis import tcp

SEEDS = range(12)
COMMANDS = 300
IDS = ["0-1", "1-0", "2-0", "2-9", "3", "5-1", "9-9", "20-0"]
NAMES = ["a", "b"]
SCRIPT = "local reply = redis.pcall(unpack(ARGV)) if reply == false then return 'nil' end return reply"


def random_command(random, prefix):
    """One command on few keys, groups, consumers and IDs, so that most commands meet what earlier ones left."""
    key = f"{prefix}:{random.choice('xyz')}"
    text = f"{prefix}:text"
    pick, one = lambda *values: random.choice(values), lambda: random.choice(IDS)
    group, consumer = random.choice(["g", "h"]), random.choice(NAMES)
    trim = pick((), ("MAXLEN", pick("=", "~"), pick(0, 2)), ("MINID", one()), ("MAXLEN", 1))
    count = pick((), ("COUNT", pick(1, 2)))
    read = ("XREADGROUP", "GROUP", group, consumer, *count, "STREAMS", key)
    claim = ("XCLAIM", key, group, consumer, 0, one(), one())
    return random.choice(
        [
            ("XADD", key, *pick((), ("NOMKSTREAM",)), *trim, one(), "d", random.choice(NAMES)),
            ("XADD", key, "NOMKSTREAM", one(), "d", "1", "e", "2"),
            (
                pick("XRANGE", "XREVRANGE"),
                key,
                pick("-", "+", one(), "(" + one()),
                pick("+", one(), "(" + one()),
                *count,
            ),
            ("XLEN", key),
            ("XDEL", key, one(), one()),
            ("XTRIM", key, pick("MINID", "MAXLEN"), pick(0, 1, 2)),
            ("XREAD", *count, "STREAMS", key, f"{prefix}:y", one(), one()),
            (*read, ">"),
            (*read, ">"),
            ("XACK", key, group, one(), one()),
            ("XPENDING", key, group),
            ("XPENDING", key, group, "-", "+", 10, *pick((), (consumer,))),
            ("XPENDING", key, group, "IDLE", 30_000, pick("-", one()), pick("+", one()), 1),
            (*claim, *pick((), ("JUSTID",), ("IDLE", 86_400_000, "RETRYCOUNT", 3, "JUSTID"))),
            ("XCLAIM", key, group, consumer, 3_000_000, one()),
            ("XGROUP", "CREATE", key, group, pick("0", one()), "MKSTREAM"),
            ("XGROUP", "DELCONSUMER", key, group, consumer),
            ("XINFO", pick("STREAM", "GROUPS"), key),
            ("XINFO", "CONSUMERS", key, group),
            (pick("DEL", "UNLINK", "EXISTS"), key, text),
            (pick("TTL", "XLEN", "GET"), pick(key, text)),
            ("EXPIRE", pick(key, text), 100),
            ("SET", text, pick("v", "7"), *pick((), ("EX", 60))),
            ("HSET", f"{text}s", pick(*NAMES), pick(1, "q"), "c", 2),
            (pick("HGET", "HDEL"), pick(f"{text}s", text), pick(*NAMES)),
            ("ZADD", f"{text}z", pick(1, 5), pick(*NAMES)),
            ("ZADD", f"{text}z", 1_732_700_000_000, pick(*NAMES), 2, "c"),
            ("ZRANGEBYSCORE", pick(f"{text}z", text), pick("-inf", 1, 2), pick("+inf", 2), *pick((), ("LIMIT", 0, 1))),
            ("ZCOUNT", f"{text}z", pick(2, 1_732_699_999_999.5), "+inf"),
            (pick("ZREM", "ZSCORE"), f"{text}z", pick(*NAMES)),
            ("ZADD", f"{text}l", 0, pick(*NAMES), 0, pick("ab", "c")),
            (
                pick("ZLEXCOUNT", "ZREMRANGEBYLEX"),
                pick(f"{text}l", text),
                pick("-", "[a", "(a"),
                pick("+", "(b", "[c"),
            ),
            ("ZREVRANGEBYLEX", f"{text}l", pick("+", "(c", "-"), pick("-", "[ab"), *pick((), ("LIMIT", 0, 1))),
        ]
    )


def comparable(reply):
    """A reply without what differs between servers: idle times, details that are not emulated, the order of hashes."""
    if isinstance(reply, Exception):
        return str(reply).split()[0], "smaller" in str(reply)
    if isinstance(reply, list):
        if reply and reply[0] == b"length":
            pairs = dict(zip(reply[::2], reply[1::2], strict=True))
            return [pairs[name] for name in (b"length", b"last-generated-id", b"groups", b"first-entry", b"last-entry")]
        if len(reply) == 4 and isinstance(reply[2], int):
            return [*map(comparable, reply[:2]), reply[2] >= 30_000, reply[3]]
        if len(reply) == 6 and reply[4] == b"idle":
            return reply[:4]
        return [comparable(item) for item in reply]
    return reply


@pytest.fixture(scope="module")
def servers():
    with tcp.serve() as url:
        clients = [Redis.from_url(each, protocol=2) for each in (streams.redis_url(), url)]
        for client in clients:
            client.response_callbacks.clear()
        yield clients
        for client in clients:
            client.close()


def reply_of(client, command):
    try:
        return client.execute_command(*command)
    except Exception as error:
        return error


@pytest.mark.parametrize("seed", SEEDS)
def test_replies_are_those_of_a_real_redis(servers, seed):
    chance, prefix = random.Random(seed), f"{{{uuid.uuid4().hex}}}"
    history = []
    for _ in range(COMMANDS):
        command = random_command(chance, prefix)
        if chance.random() < 0.3 and "STREAMS" not in command:
            command = ("EVAL", SCRIPT, 1, prefix, *command)
        history.append(command)
        real, simulated = (comparable(reply_of(client, command)) for client in servers)
        assert simulated == real, f"after {history[-3:]}"
    for key in "xyz":
        servers[0].delete(f"{prefix}:{key}", f"{prefix}:text", f"{prefix}:texts", f"{prefix}:textz", f"{prefix}:textl")
