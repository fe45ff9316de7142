"""Lua scripts with `redis.call` and `redis.pcall`, and the conversions between Lua's and Redis' values."""

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from lupa import lua51

from support.memory_redis.values import ErrorReply, Status

Call = Callable[[bytes, Sequence[bytes]], Any]
"""Runs a command by its name in capitals and its arguments; raises `ErrorReply`."""

_SETUP = b"""
redis = {}
function redis.call(...) return call(...) end
function redis.pcall(...) return pcall_(...) end
function redis.error_reply(text) return {err = text} end
function redis.status_reply(text) return {ok = text} end
function redis.sha1hex(text) return sha1(text) end
"""


class Lua:
    """One Lua interpreter. Scripts must not set globals, as in Redis."""

    def __init__(self) -> None:
        self._lua = lua51.LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self._globals = self._lua.globals()
        self._globals[b"call"] = self._call
        self._globals[b"pcall_"] = self._pcall
        self._globals[b"sha1"] = lambda text: hashlib.sha1(text).hexdigest().encode()
        self._lua.execute(_SETUP)
        self._compile = functools.lru_cache(maxsize=256)(self._lua.compile)
        self._run: Call

    def run(self, source: bytes, keys: Sequence[bytes], arguments: Sequence[bytes], call: Call) -> Any:
        """Runs a script and returns its reply. Raises `ErrorReply`."""
        self._globals[b"KEYS"] = self._lua.table_from(keys)
        self._globals[b"ARGV"] = self._lua.table_from(arguments)
        self._run = call
        try:
            result = self._compile(source)()
        except lua51.LuaError as error:
            raise ErrorReply(f"ERR Error running script: {error}") from None
        return self._reply(result)

    def _call(self, name: bytes, *arguments: Any) -> Any:
        return self._value(self._run(name.upper(), [_argument(value) for value in arguments]))

    def _pcall(self, name: bytes, *arguments: Any) -> Any:
        try:
            return self._call(name, *arguments)
        except ErrorReply as error:
            return self._lua.table_from({b"err": str(error).encode()})

    def _value(self, reply: Any) -> Any:
        """Converts a reply to Lua."""
        kind = type(reply)
        if kind is bytes or kind is int:
            return reply
        if reply is None:
            return False
        if kind is Status:
            return self._lua.table_from({b"ok": bytes(reply)})
        return self._lua.table_from([self._value(item) for item in reply])

    def _reply(self, value: Any) -> Any:
        """Converts a value of Lua to a reply."""
        if value is None or value is False:
            return None
        if value is True:
            return 1
        if isinstance(value, bytes):
            return value
        if isinstance(value, int | float):
            return int(value)
        if (error := value[b"err"]) is not None:
            raise ErrorReply(error.decode())
        if (status := value[b"ok"]) is not None:
            return Status(status)
        items: list[Any] = []
        while (item := value[len(items) + 1]) is not None:
            try:
                items.append(self._reply(item))
            except ErrorReply as error:
                items.append(error)
        return items


def _argument(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ErrorReply("ERR Lua redis() command arguments must be strings or integers")
    return b"%d" % value if isinstance(value, int) else b"%.17g" % value


@functools.cache
def interpreter() -> Lua:
    """Returns the interpreter of this process: creating one and compiling the scripts takes a millisecond."""
    return Lua()
