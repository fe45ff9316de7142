"""Lua scripts with `redis.call` and `redis.pcall`, and the conversions between Lua's and Redis' values."""

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from lupa import lua51

from support.memory_redis.values import Encoded, ErrorReply, Status

Call = Callable[[bytes, Sequence[bytes]], Any]
"""Runs a command by its name in capitals and its arguments; raises `ErrorReply`."""

MAX_PACKED = 1000
"""Smaller tables are made of the arguments of a call; Lua allows 8000."""

_SETUP = b"""
redis = {call = call, pcall = pcall_}
function redis.error_reply(text) return {err = text} end
function redis.status_reply(text) return {ok = text} end
function redis.sha1hex(text) return sha1(text) end

local function encode(value)
  local kind = type(value)
  if kind == 'string' then return '$' .. #value .. '\\r\\n' .. value .. '\\r\\n' end
  if kind == 'number' then return string.format(':%d\\r\\n', value) end
  if not value then return '$-1\\r\\n' end
  if value == true then return ':1\\r\\n' end
  if value.err then return '-' .. value.err .. '\\r\\n' end
  if value.ok then return '+' .. value.ok .. '\\r\\n' end
  local items = {}
  while value[#items + 1] ~= nil do items[#items + 1] = encode(value[#items + 1]) end
  return '*' .. #items .. '\\r\\n' .. table.concat(items)
end

function pack(...) return {...} end

function run(script, keys, arguments)
  KEYS, ARGV = keys, arguments
  return encode(script())
end
"""


class Lua:
    """One Lua interpreter. Scripts must not set globals, as in Redis."""

    def __init__(self) -> None:
        self._lua = lua51.LuaRuntime(encoding=None, unpack_returned_tuples=True)
        names = self._lua.globals()
        names[b"call"] = self._call
        names[b"pcall_"] = self._pcall
        names[b"sha1"] = lambda text: hashlib.sha1(text).hexdigest().encode()
        self._lua.execute(_SETUP)
        self._run_script = names[b"run"]
        self._pack = names[b"pack"]
        self._compile = functools.lru_cache(maxsize=256)(self._lua.compile)
        self._run: Call

    def run(self, source: bytes, keys: Sequence[bytes], arguments: Sequence[bytes], call: Call) -> Encoded:
        """Runs a script and returns its reply. Raises `ErrorReply`."""
        self._run = call
        try:
            return Encoded(self._run_script(self._compile(source), self._table(keys), self._table(arguments)))
        except lua51.LuaError as error:
            raise ErrorReply(f"ERR Error running script: {error}") from None
        finally:
            del self._run  # It refers to the server.

    def _call(self, name: bytes, *arguments: Any) -> Any:
        values = [value if type(value) is bytes else _argument(value) for value in arguments]
        return self._value(self._run(name.upper(), values))

    def _pcall(self, name: bytes, *arguments: Any) -> Any:
        try:
            return self._call(name, *arguments)
        except ErrorReply as error:
            return self._lua.table_from({b"err": str(error).encode()})

    def _table(self, items: Sequence[Any]) -> Any:
        """Returns a Lua table. `table_from` takes twice as long, and a call has a limited number of arguments."""
        return self._pack(*items) if len(items) < MAX_PACKED else self._lua.table_from(items)

    def _value(self, reply: Any) -> Any:
        """Converts a reply to Lua."""
        kind = type(reply)
        if kind is bytes or kind is int:
            return reply
        if reply is None:
            return False
        if kind is Status:
            return self._lua.table_from({b"ok": bytes(reply)})
        return self._table([item if type(item) is bytes else self._value(item) for item in reply])


def _argument(value: Any) -> bytes:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ErrorReply("ERR Lua redis() command arguments must be strings or integers")
    return b"%d" % value if isinstance(value, int) else b"%.17g" % value


@functools.cache
def interpreter() -> Lua:
    """Returns the interpreter of this process: creating one and compiling the scripts takes a millisecond."""
    return Lua()
