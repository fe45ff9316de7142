"""The server: clients, blocking reads, scripts and what else belongs to no key."""

import hashlib
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import hiredis

from support.memory_redis import group_commands, stream_commands
from support.memory_redis import sorted_set_commands as sorted_set_commands
from support.memory_redis.commands import DENY_OOM, READ_ONLY, run_command
from support.memory_redis.scripting import interpreter
from support.memory_redis.store import OnAppend, Store
from support.memory_redis.streams import Stream
from support.memory_redis.values import (
    NULL_ARRAY,
    OK,
    Encoded,
    EntryId,
    ErrorReply,
    Status,
    encode,
    entry_id,
)

OUT_OF_MEMORY = "OOM command not allowed when used memory > 'maxmemory'."


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Prevents the call."""


@dataclass(eq=False)
class Client:
    """A connection. `write` gets encoded replies, `close` ends it."""

    number: int
    write: Callable[[bytes], None]
    close: Callable[[], None]
    parser: hiredis.Reader = field(default_factory=hiredis.Reader)
    waiting: list[list[bytes]] = field(default_factory=list)
    """Commands that were received while an earlier one blocks."""
    retry: Callable[[], Any] | None = None
    """Reads again for the command that blocks; its reply is None while there is nothing."""
    timer: Timer | None = None
    queues: bool = False
    """A transaction has begun."""


class MemoryRedis:
    """One server. `clock` returns Unix seconds, `call_later` runs a function after a number of seconds."""

    def __init__(
        self,
        clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Timer],
        on_append: OnAppend = lambda key, at, fields: None,
    ) -> None:
        self.store = Store(clock)
        self.full = False
        """The memory limit is reached: commands that need memory are refused."""
        self.replicas = 0
        """Connected replicas."""
        self.replicas_lag = False
        """No replica acknowledges what is written."""
        self.clients: dict[int, Client] = {}
        self._call_later = call_later
        self._on_append = on_append
        self._last_client = 0
        self._scripts: dict[bytes, bytes] = {}
        self._blocked: dict[int, Client] = {}
        """Clients with a blocking read, the longest waiting first."""
        self._script_wrote = False
        """The script that runs has written: Redis then refuses none of its commands."""
        self._changed = False
        """An entry was added or a key deleted since blocked clients were last served."""

    # Connections ------------------------------------------------------------------------------------------------

    def connect(self, write: Callable[[bytes], None], close: Callable[[], None]) -> Client:
        """Adds a client."""
        self._last_client += 1
        client = self.clients[self._last_client] = Client(self._last_client, write, close)
        return client

    def disconnect(self, client: Client) -> None:
        """Removes a client whose connection has ended."""
        self._unblock(client)
        self.clients.pop(client.number, None)

    def receive(self, client: Client, data: bytes) -> None:
        """Executes the commands in what a client has sent."""
        client.parser.feed(data)
        while (arguments := client.parser.gets()) is not False:
            client.waiting.append(arguments)
        self._proceed(client)

    def _proceed(self, client: Client) -> None:
        while client.waiting and client.retry is None and client.number in self.clients:
            arguments = client.waiting.pop(0)
            reply = self.execute(client, arguments)
            if client.retry is None:
                client.write(encode(reply))
            self._serve_blocked()

    # Data -------------------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Returns a copy of the data."""
        return pickle.dumps((self.store.values, self.store.expires))

    def restart(self, snapshot: bytes | None = None) -> None:
        """Disconnects all clients, forgets the scripts and continues with a snapshot, or empty."""
        for client in list(self.clients.values()):
            self.disconnect(client)
            client.close()
        self._scripts.clear()
        self.store.values, self.store.expires = pickle.loads(snapshot) if snapshot is not None else ({}, {})

    def added(self, key: bytes, at: EntryId, fields: tuple[bytes, ...]) -> None:
        self._changed = True
        self._on_append(key, at, fields)

    def deleted(self, key: bytes) -> None:
        self._changed = True

    # Commands ---------------------------------------------------------------------------------------------------

    def execute(self, client: Client, arguments: Sequence[bytes]) -> Any:
        """Executes a command and returns its reply; None and `client.retry` if it blocks."""
        self.store.update_now()
        name = arguments[0].upper()
        if client.queues:
            client.queues = name != b"DISCARD"
            return Status(b"QUEUED") if client.queues else OK
        try:
            if (special := _SPECIAL.get(name)) is not None:
                return special(self, client, arguments[1:])
            return self._command(name, arguments[1:])
        except ErrorReply as error:
            return error

    def _command(self, name: bytes, arguments: Sequence[bytes]) -> Any:
        if self.full and not self._script_wrote and name in DENY_OOM:
            raise ErrorReply(OUT_OF_MEMORY)
        return run_command(self, name, arguments)

    def _client(self, client: Client, arguments: Sequence[bytes]) -> Any:
        kind = arguments[0].upper()
        if kind == b"ID":
            return client.number
        if kind == b"UNBLOCK":
            blocked = self.clients.get(int(arguments[1]))
            if blocked is None or blocked.retry is None:
                return 0
            self._reply_blocked(blocked, NULL_ARRAY)
            return 1
        if kind == b"KILL":
            others = [each for each in list(self.clients.values()) if each is not client]
            for other in others:
                self.disconnect(other)
                other.close()
            return len(others)
        if kind in (b"SETINFO", b"SETNAME"):
            return OK
        raise ErrorReply(f"ERR unknown subcommand '{kind.decode()}'")

    def _multi(self, client: Client, arguments: Sequence[bytes]) -> Status:
        """Queues commands until DISCARD; EXEC is not supported."""
        client.queues = True
        return OK

    def _info(self, client: Client, arguments: Sequence[bytes]) -> bytes:
        """Returns the section on replication, whatever is asked for."""
        return b"# Replication\r\nrole:master\r\nconnected_slaves:%d\r\n" % self.replicas

    def _wait(self, client: Client, arguments: Sequence[bytes]) -> int | None:
        """Returns the number of replicas that have everything; blocks while these are too few."""

        def acknowledged() -> int:
            return 0 if self.replicas_lag else self.replicas

        if acknowledged() >= int(arguments[0]):
            return acknowledged()
        client.retry = lambda: None
        self._blocked[client.number] = client
        seconds = int(arguments[1]) / 1000
        client.timer = self._call_later(seconds, lambda: self._reply_blocked(client, acknowledged()))
        return None

    # Scripts ----------------------------------------------------------------------------------------------------

    def _eval(self, client: Client, arguments: Sequence[bytes]) -> Any:
        source, *rest = arguments
        self._scripts[hashlib.sha1(source).hexdigest().encode()] = source
        return self._run_script(source, rest)

    def _evalsha(self, client: Client, arguments: Sequence[bytes]) -> Any:
        digest, *rest = arguments
        source = self._scripts.get(digest.lower())
        if source is None:
            raise ErrorReply("NOSCRIPT No matching script. Please use EVAL.")
        return self._run_script(source, rest)

    def _run_script(self, source: bytes, arguments: Sequence[bytes]) -> Encoded:
        count = int(arguments[0])
        keys, rest = arguments[1 : 1 + count], arguments[1 + count :]
        self._script_wrote = False
        try:
            return interpreter().run(source, keys, rest, self._call_from_script)
        finally:
            self._script_wrote = False

    def _call_from_script(self, name: bytes, arguments: Sequence[bytes]) -> Any:
        reply = self._command(name, arguments)
        self._script_wrote |= name not in READ_ONLY
        return reply

    # Blocking reads ---------------------------------------------------------------------------------------------

    def _xread(self, client: Client, arguments: Sequence[bytes]) -> Any:
        return self._read_or_block(client, b"XREAD", arguments)

    def _xreadgroup(self, client: Client, arguments: Sequence[bytes]) -> Any:
        return self._read_or_block(client, b"XREADGROUP", arguments)

    def _read_or_block(self, client: Client, name: bytes, arguments: Sequence[bytes]) -> Any:
        read, block = self._read(name, arguments)
        reply = read()
        if reply is not None or block is None:
            return NULL_ARRAY if reply is None else reply
        client.retry = read
        self._blocked[client.number] = client
        if block:
            client.timer = self._call_later(block / 1000, lambda: self._reply_blocked(client, NULL_ARRAY))
        return None

    def _read(self, name: bytes, arguments: Sequence[bytes]) -> tuple[Callable[[], Any], int | None]:
        """Returns the function that reads, and for how many milliseconds it blocks (None: not at all)."""
        options: dict[bytes, Sequence[bytes]] = {}
        start = 0
        while (option := arguments[start].upper()) != b"STREAMS":
            end = start + (3 if option == b"GROUP" else 2)
            options[option], start = arguments[start + 1 : end], end
        middle = (start + 1 + len(arguments)) // 2
        keys, ids = arguments[start + 1 : middle], arguments[middle:]
        count = int(options[b"COUNT"][0]) or None if b"COUNT" in options else None
        block = int(options[b"BLOCK"][0]) if b"BLOCK" in options else None
        if name == b"XREADGROUP":
            return self._group_read(options[b"GROUP"], keys[0], count), block
        after = [(key, entry_id(at)) for key, at in zip(keys, ids, strict=True)]
        return lambda: stream_commands.read_after(self, after, count), block

    def _group_read(self, owner: Sequence[bytes], key: bytes, count: int | None) -> Callable[[], Any]:
        """Supports only `>`, the new entries."""
        group, consumer = owner
        group_commands.find_group(self, key, group)

        def read() -> Any:
            if self.store.get(key, Stream) is None:
                return ErrorReply("UNBLOCKED the stream key no longer exists")
            return group_commands.read_new(self, key, group, consumer, count)

        return read

    def _serve_blocked(self) -> None:
        """Serves blocked clients, the longest waiting first, when a stream that one may wait for has changed."""
        if not self._changed:
            return
        self._changed = False
        for client in list(self._blocked.values()):
            if client.retry is None:
                continue
            try:
                reply = client.retry()
            except ErrorReply as error:
                reply = error
            if reply is not None:
                self._reply_blocked(client, reply)

    def _reply_blocked(self, client: Client, reply: Any) -> None:
        if client.retry is None:
            return
        self._unblock(client)
        client.write(encode(reply))
        self._proceed(client)

    def _unblock(self, client: Client) -> None:
        client.retry = None
        self._blocked.pop(client.number, None)
        if client.timer is not None:
            client.timer.cancel()
            client.timer = None


_SPECIAL: dict[bytes, Callable[[MemoryRedis, Client, Sequence[bytes]], Any]] = {
    b"INFO": MemoryRedis._info,
    b"WAIT": MemoryRedis._wait,
    b"MULTI": MemoryRedis._multi,
    b"CLIENT": MemoryRedis._client,
    b"EVAL": MemoryRedis._eval,
    b"EVALSHA": MemoryRedis._evalsha,
    b"XREAD": MemoryRedis._xread,
    b"XREADGROUP": MemoryRedis._xreadgroup,
}
"""Commands of a connection rather than of a key; `execute` handles them."""
