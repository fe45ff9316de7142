"""The address of a Redis primary that sentinels name, and change when they promote a replica."""

import asyncio
import contextlib
from collections.abc import Sequence
from urllib.parse import urlsplit

from syrinx_stages.connector.redis.connection import LOST, Address, Connection, ReplyError, Unavailable
from syrinx_stages.connector.servers.primary import OBSERVER_SECONDS, PrimaryAddress, View

SENTINEL_PORT = 26379
REPLICA_SECONDS = 0.2
"""Time in which a replica that is being promoted must say whether it is the primary."""
SCHEMES = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}


class SentinelAddress(PrimaryAddress):
    """A redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB URL, or rediss+sentinel:// with TLS to sentinels and servers.

    User and password are those of the servers; sentinels need none.
    """

    def __init__(self, url: str, password: str = "", ca_file: str | None = None) -> None:
        try:
            parts = urlsplit(url)
            user, at, hosts = parts.netloc.rpartition("@")
            self._service, *database = parts.path.strip("/").split("/")
            if not (self._service and hosts) or len(database) > 1:
                raise ValueError
            scheme = SCHEMES[parts.scheme]
            sentinels = [
                Address(
                    f"{scheme}://{host}" if urlsplit(f"//{host}").port else f"{scheme}://{host}:{SENTINEL_PORT}",
                    "",
                    ca_file,
                )
                for host in hosts.split(",")
            ]
            super().__init__(f"{scheme}://{user}{at}", f"/{''.join(database)}", sentinels, password, ca_file)
        except ValueError:
            raise ValueError(
                "the Redis URL is not valid: redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB or rediss+sentinel://…"
            ) from None
        self.name = f"Redis primary {self._service} of the sentinels at {hosts}"

    async def verify(self, connection: Connection) -> None:
        """Raises `Unavailable` unless the server is a primary: a sentinel may not know of a fail-over yet."""
        if not await _is_primary(connection):
            raise Unavailable(f"{self._host}:{self._port} is not the primary")

    def _unknown(self) -> Exception:
        return ConnectionError(f"no sentinel names a primary for {self._service}")

    async def _view(self, observer: Address) -> View | None:
        try:
            async with asyncio.timeout(OBSERVER_SECONDS):
                connection = await Connection.open(observer)
            with contextlib.closing(connection):
                state = await connection.call((b"SENTINEL", b"MASTER", self._service), OBSERVER_SECONDS)
                command = (b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self._service)
                host, port = await connection.call(command, OBSERVER_SECONDS)
                fields = _fields(state)
                # A sentinel that fails over names the new primary as soon as it knows that the replica is promoted, and
                # before its own state has it: only until then the primary is in doubt.
                in_doubt = b"failover_in_progress" in fields[b"flags"] and (fields[b"ip"], fields[b"port"]) == (
                    host,
                    port,
                )
                promoted = await self._promoted(connection) if in_doubt else None
        except (ReplyError, *LOST):
            return None
        epoch, down = int(fields[b"config-epoch"]), b"s_down" in fields[b"flags"]
        if promoted is not None:
            return View(promoted, epoch + 1, failing_over=False, down=down)
        return View((host.decode(), int(port)), epoch, in_doubt, down)

    async def _promoted(self, sentinel: Connection) -> tuple[str, int] | None:
        """Returns the replica that this sentinel has just made the primary, if any.

        The sentinel itself asks it only once a second.
        """
        for state in await sentinel.call((b"SENTINEL", b"REPLICAS", self._service), OBSERVER_SECONDS):
            replica = _fields(state)
            if b"promoted" in replica[b"flags"].split(b","):
                host, port = replica[b"ip"].decode(), int(replica[b"port"])
                with contextlib.suppress(ReplyError, *LOST):
                    async with asyncio.timeout(REPLICA_SECONDS):
                        connection = await Connection.open(self._server(host, port))
                        with contextlib.closing(connection):
                            return (host, port) if await _is_primary(connection) else None
        return None


async def _is_primary(connection: Connection) -> bool:
    return b"role:master" in await connection.call((b"INFO", b"replication"), OBSERVER_SECONDS)


def _fields(state: Sequence[bytes]) -> dict[bytes, bytes]:
    """Returns the fields of a server in a sentinel's reply."""
    return dict(zip(state[::2], state[1::2], strict=True))
