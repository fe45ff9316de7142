"""The Redis servers under test: one server, or a primary with replicas and three sentinels."""

import asyncio
import contextlib
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

import redis.asyncio

from syrinx_stages.connector.server import RedisServerError, find_redis_server, free_port
from syrinx_stages.processes import die_with_parent

SERVICE = "soak"
"""The name of the primary at the sentinels."""
SENTINELS = 3
READY_SECONDS = 20.0
RESTART_SECONDS = 6.0
"""From the death of a server to its restart: a sentinel has promoted the replica by then."""


class Layout(StrEnum):
    """The Redis servers of a run."""

    SINGLE = "single"
    """One server that persists nothing. It has no faults: its death would end all streams."""
    AOF = "aof"
    """One server with an append-only file, restarted at once when it is killed."""
    SENTINEL = "sentinel"
    """A primary and two replicas, each with an append-only file, and three sentinels. A primary without a replica takes
    no writes."""
    PAIR = "pair"
    """A primary and one replica, which take writes alone, and three sentinels."""

    @property
    def replicas(self) -> int:
        """Number of replicas; those with any have sentinels."""
        return {Layout.SENTINEL: 2, Layout.PAIR: 1}.get(self, 0)


_SERVER = """\
bind 127.0.0.1
port {port}
requirepass {password}
masterauth {password}
dir {directory}
save ""
appendonly {appendonly}
maxmemory-policy noeviction
repl-diskless-sync yes
repl-diskless-sync-delay 0
min-replicas-to-write {min_replicas}
"""
_SENTINEL = """\
bind 127.0.0.1
port {port}
dir {directory}
sentinel monitor {service} 127.0.0.1 {primary} 2
sentinel auth-pass {service} {password}
sentinel down-after-milliseconds {service} 500
sentinel failover-timeout {service} 5000
"""


class Server:
    """A redis-server process with a configuration file."""

    def __init__(self, name: str, port: int, directory: Path, config: str, options: tuple[str, ...] = ()) -> None:
        self.name, self.port = name, port
        self._directory = directory
        self._options = options
        directory.mkdir()
        self._config = directory / "redis.conf"
        self._config.write_text(config)
        self._config.chmod(0o600)
        self.process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The process id, or None while it is down."""
        return self.process.pid if self.process is not None and self.process.returncode is None else None

    async def start(self) -> None:
        """Starts the server."""
        with (self._directory / "redis.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, die_with_parent.__file__, str(os.getpid())),
                *(str(find_redis_server()), str(self._config), *self._options),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def stop(self) -> None:
        """Kills the server."""
        if self.pid is not None and self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            await self.process.wait()


class Servers:
    """The servers of a run, with a client of each."""

    def __init__(self, layout: Layout, directory: Path) -> None:
        """Writes the configurations into `directory`."""
        self.layout = layout
        self.password = secrets.token_urlsafe(24)
        self.servers = [self._server(f"redis-{index}", directory) for index in range(1 + layout.replicas)]
        self.sentinels: list[Server] = []
        for server in self.servers[1:]:
            with (directory / server.name / "redis.conf").open("a") as config:
                config.write(f"replicaof 127.0.0.1 {self.servers[0].port}\n")
        if layout.replicas:
            self.sentinels = [self._sentinel(f"sentinel-{index}", directory) for index in range(SENTINELS)]
        passwords = {server: self.password for server in self.servers} | dict.fromkeys(self.sentinels)
        # redis-py's replies have no usable types.
        self._clients: dict[str, Any] = {
            server.name: redis.asyncio.Redis(port=server.port, password=password, socket_timeout=1.0, protocol=2)
            for server, password in passwords.items()
        }

    def _server(self, name: str, directory: Path) -> Server:
        port, home = free_port(), directory / name
        appendonly = "no" if self.layout is Layout.SINGLE else "yes"
        config = _SERVER.format(
            port=port,
            password=self.password,
            directory=home,
            appendonly=appendonly,
            min_replicas=int(self.layout is Layout.SENTINEL),
        )
        return Server(name, port, home, config)

    def _sentinel(self, name: str, directory: Path) -> Server:
        port, home, primary = free_port(), directory / name, self.servers[0].port
        config = _SENTINEL.format(port=port, directory=home, primary=primary, password=self.password, service=SERVICE)
        return Server(name, port, home, config, ("--sentinel",))

    def url(self, port_of: Callable[[int], int]) -> str:
        """Returns the value of `REDIS_URL`; `port_of` maps a server's port to that of a proxy."""
        if not self.layout.replicas:
            return f"redis://127.0.0.1:{port_of(self.servers[0].port)}/0"
        hosts = ",".join(f"127.0.0.1:{port_of(sentinel.port)}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{SERVICE}/0"

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs the servers, and restarts those that die."""
        supervising = []
        try:
            # The sentinels start last: they look for replicas at their start, and then every 10 s.
            for servers in (self.servers, self.sentinels):
                for server in servers:
                    await server.start()
                    supervising.append(asyncio.create_task(self._supervise(server)))
                await _until(self._replication_problem if servers is self.servers else self.unready)
            yield
        finally:
            for task in supervising:
                task.cancel()
            for server in (*self.sentinels, *self.servers):
                await server.stop()
            for client in self._clients.values():
                await client.aclose()

    async def primary(self) -> tuple[Server, Any] | None:
        """Returns the primary that the sentinels name and a client of it, or None if no sentinel answers."""
        port = self.servers[0].port
        if self._watched:
            port = (await self._sentinel_state()).get("port", 0)
        return next(((server, self._clients[server.name]) for server in self.servers if server.port == port), None)

    async def unready(self) -> str | None:
        """Returns why the fault of a server would lose data or would not lead to a failover; None otherwise."""
        if self._watched:
            state = await self._sentinel_state()
            if (state.get("flags"), state.get("num-other-sentinels")) != ("master", SENTINELS - 1):
                return f"the sentinels' view: {state or 'none'}"
            if state["num-slaves"] != len(self.servers) - 1:
                return "the sentinels do not know the replicas"
        return await self._replication_problem()

    @property
    def _watched(self) -> bool:
        """The sentinels have been started."""
        return any(sentinel.pid is not None for sentinel in self.sentinels)

    async def _sentinel_state(self) -> dict[str, Any]:
        """Returns the fields of the primary as a sentinel sees it; empty if none answers."""
        for sentinel in self.sentinels:
            with contextlib.suppress(redis.RedisError, OSError):
                state: dict[str, Any] = await self._clients[sentinel.name].sentinel_master(SERVICE)
                return state
        return {}

    async def _replication_problem(self) -> str | None:
        if (found := await self.primary()) is None:
            return "no primary"
        with contextlib.suppress(redis.RedisError, OSError):
            info = await found[1].info("replication")
            online = sum(value.get("state") == "online" for key, value in info.items() if key.startswith("slave"))
            if info["role"] != "master":
                return "the primary is a replica"
            return None if online == len(self.servers) - 1 else "a replica is not in sync"
        return "the primary does not answer"

    async def _supervise(self, server: Server) -> None:
        while True:
            assert server.process is not None
            await server.process.wait()
            await asyncio.sleep(RESTART_SECONDS if self.layout.replicas else 0.0)
            await server.start()


async def _until(problem: Callable[[], Awaitable[str | None]]) -> None:
    """Waits until `problem` returns None. Raises `RedisServerError`."""
    deadline = time.monotonic() + READY_SECONDS
    while (reason := await problem()) is not None:
        if time.monotonic() > deadline:
            raise RedisServerError(f"after {READY_SECONDS:.0f} s: {reason}")
        await asyncio.sleep(0.05)
