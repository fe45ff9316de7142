"""The simulated network between the processes and Redis: delays, partitions of either direction, lost connections.

Bytes of one connection arrive in order, those of different connections in any. A partition holds back what is sent;
when it heals, the bytes arrive, as retransmitted by TCP, even if the sender has given up in the meantime.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

from support.memory_redis import Client, MemoryRedis
from support.simulation.loop import Process, SimulatedLoop

UP, DOWN = "up", "down"
"""To Redis, and from Redis."""


class Link:
    """The network between one process and Redis."""

    def __init__(self) -> None:
        self.blocked: set[str] = set()
        self.delay = 0.001
        """Largest one-way delay, in seconds."""
        self.connections: list[Connection] = []
        self.healed = asyncio.Event()


class _Socket:
    def setsockopt(self, *arguments: Any) -> None:
        """Ignored."""


class _Transport(asyncio.Transport):
    """The process's end of a connection."""

    def __init__(self, connection: "Connection") -> None:
        super().__init__({"socket": _Socket()})
        self._connection = connection

    def write(self, data: Any) -> None:
        self._connection.send(UP, bytes(data))

    def is_closing(self) -> bool:
        return self._connection.closed_by_process

    def close(self) -> None:
        self._connection.close_by_process()

    abort = close


class Connection:
    """One TCP connection between a process and Redis."""

    def __init__(self, network: "Network", process: Process, link: Link, protocol: asyncio.BufferedProtocol) -> None:
        self._network = network
        self._process = process
        self._link = link
        self._protocol = protocol
        self._last_arrival = {UP: 0.0, DOWN: 0.0}
        self._held: dict[str, list[bytes | None]] = {UP: [], DOWN: []}
        self.closed_by_process = False
        self.client: Client | None = network.redis.connect(lambda data: self.send(DOWN, data), self.close_by_redis)
        """None once Redis has closed the connection."""
        link.connections = [*(each for each in link.connections if not each.is_over), self]

    def open(self) -> _Transport:
        """Tells the process that the connection is made."""
        transport = _Transport(self)
        self._protocol.connection_made(transport)
        return transport

    def send(self, direction: str, data: bytes | None) -> None:
        """Sends bytes, or None for the end of the connection."""
        if direction == DOWN and self._network.redis_is_down and data is not None:
            return
        if direction == UP and self.closed_by_process and data is not None:
            return
        at = max(self._last_arrival[direction], self._network.arrival(self._link))
        self._last_arrival[direction] = at
        self._network.loop.call_outside(at, self._arrive, direction, data)

    def _arrive(self, direction: str, data: bytes | None) -> None:
        if direction in self._link.blocked or self._held[direction]:
            self._held[direction].append(data)
        elif direction == UP:
            self._arrive_at_redis(data)
        else:
            self._network.loop.run_in(self._process, self._arrive_at_process, data)

    def _arrive_at_redis(self, data: bytes | None) -> None:
        if self.client is None:
            # Redis does not know the connection any more: it resets it.
            self.send(DOWN, None)
        elif data is not None:
            self._network.redis.receive(self.client, data)
        else:
            self._network.redis.disconnect(self.client)
            self.client = None

    def _arrive_at_process(self, data: bytes | None) -> None:
        if self.closed_by_process:
            return
        if data is None:
            self.closed_by_process = True
            self._protocol.connection_lost(ConnectionResetError("the connection was reset"))
            return
        while data:
            buffer = self._protocol.get_buffer(len(data))
            part, data = data[: len(buffer)], data[len(buffer) :]
            buffer[: len(part)] = part
            self._protocol.buffer_updated(len(part))

    def heal(self) -> None:
        """Delivers what a partition has held back."""
        for direction in (UP, DOWN):
            if direction not in self._link.blocked:
                held, self._held[direction] = self._held[direction], []
                for data in held:
                    self._arrive(direction, data)

    def close_by_process(self) -> None:
        """Closes the connection; Redis learns of it later."""
        if not self.closed_by_process:
            self.closed_by_process = True
            self._network.loop.call_soon(self._protocol.connection_lost, None)
            self.send(UP, None)

    def close_by_redis(self) -> None:
        """Closes the connection; the process learns of it later."""
        if self.client is not None:
            self.client = None
            self.send(DOWN, None)

    @property
    def is_over(self) -> bool:
        """Neither end uses the connection any more."""
        return self.client is None and self.closed_by_process and not any(self._held.values())


class Network:
    """The links of all processes."""

    def __init__(self, loop: "NetworkLoop", redis: MemoryRedis, chance: random.Random) -> None:
        self.loop = loop
        self.redis = redis
        self.redis_is_down = False
        """Nobody listens: connections are refused."""
        self._chance = chance
        self._links: dict[str, Link] = {}

    def link(self, name: str) -> Link:
        """Returns the link of a process; a restarted process has that of its predecessor."""
        return self._links.setdefault(name, Link())

    def arrival(self, link: Link) -> float:
        """Returns when what is sent now arrives."""
        return self.loop.time() + self._chance.random() * link.delay

    async def connect(self, factory: Callable[[], Any]) -> tuple[_Transport, Any]:
        """Opens a connection of the running process. Raises `ConnectionRefusedError`."""
        process = self.loop.process
        assert process is not None
        link = self.link(process.name)
        while link.blocked:
            link.healed.clear()
            await link.healed.wait()
        await asyncio.sleep(2 * (self.arrival(link) - self.loop.time()))
        if self.redis_is_down:
            raise ConnectionRefusedError("connection refused")
        protocol = factory()
        return Connection(self, process, link, protocol).open(), protocol

    def block(self, name: str, directions: set[str]) -> None:
        """Cuts a process off from Redis."""
        self.link(name).blocked |= directions

    def heal(self, name: str) -> None:
        """Ends a partition."""
        link = self.link(name)
        link.blocked.clear()
        link.healed.set()
        for connection in link.connections:
            connection.heal()

    def reset(self, name: str) -> None:
        """Resets all connections of a process: what is on its way is lost."""
        for connection in self.link(name).connections:
            if connection.client is not None:
                self.redis.disconnect(connection.client)
                connection.close_by_redis()

    def end(self, name: str, noticed: bool) -> None:
        """A process has crashed. If its machine is lost, Redis does not notice (`noticed`)."""
        for connection in self.link(name).connections:
            if not connection.closed_by_process:
                connection.closed_by_process = True
                if noticed:
                    connection.send(UP, None)

    def drop_dead(self, name: str) -> None:
        """Redis notices which processes of this name are gone."""
        for connection in self.link(name).connections:
            if connection.closed_by_process:
                connection.send(UP, None)


class NetworkLoop(SimulatedLoop):
    """An event loop whose connections go through the simulated network, whatever the address."""

    network: Network

    async def create_connection(self, factory: Callable[[], Any], *address: Any, **options: Any) -> Any:
        return await self.network.connect(factory)
