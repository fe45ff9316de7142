"""What Redis must allow, and how it should be set. Checked without a change to its data.

`COMMANDS` is all that Syrinx sends to a server with streams, also from scripts. The commands are queued in a
transaction that is discarded: Redis checks rights when it queues a command, and none of them runs.
"""

import re
from collections.abc import Mapping, Sequence

from syrinx_stages.connector.base import ServerReport
from syrinx_stages.connector.redis.connection import Command
from syrinx_stages.connector.redis.pool import CommandPool, Rejected

MIN_VERSION = (6, 2)
COMMANDS: dict[str, Sequence[str | int]] = {
    "client|id": (),
    "client|unblock": (0,),
    "eval": ("return 0", 0),
    "evalsha": ("0" * 40, 0),
    "exists": ("KEY",),
    "expire": ("KEY", 1),
    "get": ("KEY",),
    "getex": ("KEY", "EX", 1),
    "hdel": ("KEY", "f"),
    "hexists": ("KEY", "f"),
    "hget": ("KEY", "f"),
    "hgetall": ("KEY",),
    "hlen": ("KEY",),
    "hmget": ("KEY", "f"),
    "hset": ("KEY", "f", "v"),
    "hvals": ("KEY",),
    "sadd": ("KEY", "m"),
    "scard": ("KEY",),
    "set": ("KEY", "v"),
    "setrange": ("KEY", 0, ""),
    "smembers": ("KEY",),
    "srem": ("KEY", "m"),
    "time": (),
    "unlink": ("KEY",),
    "xack": ("KEY", "g", "0-1"),
    "xadd": ("KEY", "*", "f", "v"),
    "xclaim": ("KEY", "g", "c", 0, "0-1"),
    "xdel": ("KEY", "0-1"),
    "xgroup|create": ("KEY", "g", 0),
    "xgroup|delconsumer": ("KEY", "g", "c"),
    "xinfo|groups": ("KEY",),
    "xinfo|stream": ("KEY",),
    "xlen": ("KEY",),
    "xpending": ("KEY", "g"),
    "xrange": ("KEY", "-", "+"),
    "xread": ("STREAMS", "KEY", 0),
    "xreadgroup": ("GROUP", "g", "c", "STREAMS", "KEY", ">"),
    "xrevrange": ("KEY", "+", "-"),
    "xtrim": ("KEY", "MAXLEN", 0),
    "zadd": ("KEY", 0, "m"),
    "zcount": ("KEY", 0, 0),
    "zlexcount": ("KEY", "-", "+"),
    "zrangebyscore": ("KEY", 0, 0),
    "zrem": ("KEY", "m"),
    "zremrangebylex": ("KEY", "-", "+"),
    "zrevrangebylex": ("KEY", "+", "-"),
    "zscore": ("KEY", "m"),
}
"""By the name of an ACL rule: valid arguments, where KEY is a key of the pipeline."""
OPTIONAL: dict[str, Sequence[str | int]] = {
    "info": (),
    "wait": (0, 0),
    "client|setname": ("syrinx",),
}
"""Further commands, with arguments."""
_WITHOUT = {
    "info": "requests are not refused before Redis is full, and its settings are not checked",
    "wait": "a fail-over may lose requests that were accepted",
    "client|setname": "CLIENT LIST does not name the connections",
}
"""What is missing without an optional command."""
CHECKING = ("multi", "discard")
"""The commands without which rights are not checked."""
_DENIED_KEY = re.compile(r"NOPERM .*access .*key")


async def check_server(pool: CommandPool, key: str, voices_key: str) -> ServerReport:
    """Returns what the server of a pool lacks. The keys are two of the pipeline. Raises `ConnectorError`."""
    errors, warnings = await _check_rights(pool, key, voices_key)
    settings = await _settings(pool)
    version = settings.get("redis_version", "")
    if version and tuple(map(int, re.findall(r"\d+", version)[:2])) < MIN_VERSION:
        errors.append(f"its version is {version}; at least {'.'.join(map(str, MIN_VERSION))} is needed")
    policy, memory = settings.get("maxmemory_policy", "noeviction"), int(settings.get("maxmemory", 0))
    if policy != "noeviction":
        when = f"at {memory / 2**20:.0f} MiB (maxmemory)" if memory else "once maxmemory is set"
        warnings.append(f"maxmemory-policy is {policy}: {when} Redis deletes streams that are spoken; set noeviction")
    name = pool.address.name
    obstacle = f"{name}: {'; '.join(errors)}" if errors else None
    return ServerReport(obstacle, tuple(f"{name}: {each}" for each in warnings), _summary(name, settings))


async def _check_rights(pool: CommandPool, key: str, voices_key: str) -> tuple[list[str], list[str]]:
    """Returns errors and warnings about the rights of the user."""
    asked = [(name, _command(name, arguments, key)) for name, arguments in (COMMANDS | OPTIONAL).items()]
    asked.append(("exists", (b"EXISTS", voices_key)))
    commands: list[Command] = [(b"MULTI",), *(command for _, command in asked), (b"DISCARD",)]
    started, *replies, _ = map(str, await pool.call_together(commands))
    if _is_denied(started):
        return [], [f"rights are not checked, because the user may not run {' and '.join(CHECKING)}"]
    refused = {name: reply for (name, _), reply in zip(asked, replies, strict=True) if _is_denied(reply)}
    denied_keys = {name for name, reply in refused.items() if _DENIED_KEY.match(reply)}
    missing = [name for name in refused if name in COMMANDS and name not in denied_keys]
    unknown = [name for name in missing if not refused[name].startswith("NOPERM")]
    errors = []
    if denied_keys:
        errors.append(f"the user may not use the keys of the pipeline; allow ~{key.partition(':')[0]}:*")
    if unknown:
        errors.append(f"there is no command {', '.join(unknown)}: it is disabled or renamed, or the version is too old")
    if denied := [name for name in missing if name not in unknown]:
        rules = " ".join(f"+{name}" for name in denied)
        errors.append(f"the user may not run {', '.join(denied)}; allow it with ACL SETUSER USER {rules}")
    optional = [name for name in refused if name in OPTIONAL]
    return errors, [f"the user may not run {name}: {_WITHOUT[name]}; allow +{name}" for name in optional]


def _command(name: str, arguments: Sequence[str | int], key: str) -> Command:
    return (*name.upper().split("|"), *(key if each == "KEY" else each for each in arguments))


def _is_denied(reply: str) -> bool:
    """Returns whether the user may not run a command, or the server does not have it."""
    return reply.startswith(("NOPERM", "ERR unknown command", "ERR unknown subcommand", "ERR Unknown subcommand"))


async def _settings(pool: CommandPool) -> dict[str, str]:
    """Returns what INFO says; nothing without the right to it."""
    try:
        found: bytes = await pool.call(b"INFO")
    except Rejected:
        return {}
    return dict(re.findall(r"^(\w+):(.*?)\r?$", found.decode(errors="replace"), re.MULTILINE))


def _summary(name: str, settings: Mapping[str, str]) -> str:
    """Returns version and settings of a server that says them."""
    if "redis_version" not in settings:
        return ""
    memory, policy = int(settings.get("maxmemory", 0)), settings.get("maxmemory_policy")
    parts = [
        f"version {settings['redis_version']}",
        f"{f'{memory / 2**20:.0f} MiB' if memory else 'no limit'} of memory ({policy})",
        f"{'an' if settings.get('aof_enabled') == '1' else 'no'} append-only file",
        f"{settings.get('connected_slaves', '0')} replicas",
    ]
    return f"{name}: {', '.join(parts)}"
