"""Tests of one connection to a real Redis: addresses, large commands, and servers that are not Redis."""

import asyncio
import shutil
import subprocess
import tempfile
from pathlib import Path

import hiredis
import pytest
from redis import Redis as Client

from syrinx_stages.connector.base import ConnectorError
from syrinx_stages.connector.redis import connection as redis_connection
from syrinx_stages.connector.redis.connection import (
    SEND_BLOCK_BYTES,
    TURN_BLOCKS,
    Address,
    Connection,
    Refused,
    ReplyError,
)
from syrinx_stages.connector.redis.streams import RedisConnector
from syrinx_stages.connector.server import RedisServer, find_redis_server
from syrinx_stages.contract.keys import Keys

SECONDS = 5.0


@pytest.fixture(scope="module")
def server():
    with RedisServer() as server:
        yield server


async def call(url, *command):
    connection = await Connection.open(Address(url))
    try:
        return await connection.call(command, SECONDS)
    finally:
        connection.close()


@pytest.mark.parametrize("sizes", [(), (3,), (4096,), (100_000, 3, 5_000), (200_000,) * 3], ids=str)
async def test_commands_of_any_size_arrive_complete(server, sizes):
    payloads = [bytes([65 + index]) * size for index, size in enumerate(sizes)]
    script = "local all = {} for i = 1, #ARGV do all[i] = ARGV[i] end return all"
    command = ("EVAL", script, 0, "ä", 12, *payloads)
    assert b"".join(redis_connection._blocks(command)) == hiredis.pack_command(command)
    assert await call(server.url_with_password, *command) == ["ä".encode(), b"12", *payloads]


async def test_an_address_names_user_and_database(server):
    with Client.from_url(server.url_with_password) as client:
        client.execute_command("ACL", "SETUSER", "an@na", "on", ">p:w/d", "~*", "+@all")
    url = f"redis://an%40na:p%3Aw%2Fd@localhost:{server.port}"
    assert await call(f"{url}/3", "ACL", "WHOAMI") == b"an@na"
    assert await call(f"{url}/3", "SET", "here", "x") == b"OK"
    assert [await call(url + where, "EXISTS", "here") for where in ("", "/0", "/3", "?db=3")] == [0, 0, 1, 1]


@pytest.fixture
def local_socket():
    """The Unix socket of a private server."""
    folder = Path(tempfile.mkdtemp(prefix="syrinx-"))
    command = [find_redis_server(), "--port", "0", "--unixsocket", f"{folder}/s", "--dir", str(folder), "--save", ""]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        yield folder / "s"
        process.terminate()
    shutil.rmtree(folder)


async def test_an_address_can_be_a_unix_socket(local_socket, until):
    connector = RedisConnector(f"unix://{local_socket}?db=2", Keys("p", "g"))

    async def responds():
        try:
            await connector.queue()
        except ConnectorError:
            return False
        return True

    await until(responds)
    await connector.close()


@pytest.mark.parametrize(
    "url",
    ["", "localhost:6379", "redis://h:port", "redis://h/x", "redis://h?timeout=3", "redis://h/1#x", "unix://", "unix:"],
)
def test_an_invalid_address_is_refused(url):
    with pytest.raises(ValueError, match="redis://HOST:PORT/DB"):
        Address(url)


async def test_an_error_reply_is_raised_and_keeps_the_connection(server):
    connection = await Connection.open(Address(server.url_with_password))
    with pytest.raises(ReplyError, match="unknown command"):
        await connection.call(("NO-SUCH", "x" * 10_000), SECONDS)
    assert await connection.call(("PING",), SECONDS) == b"PONG"
    connection.close()
    with pytest.raises(ConnectionResetError):
        await connection.call(("PING",), SECONDS)


async def test_commands_are_pipelined_behind_a_large_one(server):
    connection, replies = await Connection.open(Address(server.url_with_password)), []
    large = b"x" * (3 * TURN_BLOCKS * SEND_BLOCK_BYTES)
    for command in (("ECHO", large), ("ECHO", "small"), ("BLPOP", "nothing", "0.01"), ("ECHO", "last")):
        connection.send_with_callback(command, SECONDS, replies.append)
    assert await connection.call(("PING",), SECONDS) == b"PONG"
    assert replies == [large, b"small", None, b"last"]
    connection.close()


async def test_a_lost_connection_fails_all_that_is_outstanding(server):
    connection, replies = await Connection.open(Address(server.url_with_password)), []
    for _ in range(3):
        connection.send_with_callback(("BLPOP", "nothing", 5), SECONDS, replies.append)
    connection.close()
    assert [type(reply) for reply in replies] == 3 * [ConnectionResetError]


@pytest.mark.parametrize("password", ["wrong", ""])
async def test_a_wrong_password_raises_refused(server, password):
    with pytest.raises(Refused):
        await call(f"redis://:{password}@127.0.0.1:{server.port}", "PING")


async def test_a_late_reply_is_an_error(server):
    connection = await Connection.open(Address(server.url_with_password))
    with pytest.raises(TimeoutError, match="no reply"):
        await connection.call(("BLPOP", "nothing", 5), 0.05)
    assert not connection.is_open


async def test_a_server_that_is_not_redis_is_an_error():
    async def greet(reader, writer):
        writer.write(b"SSH-2.0-OpenSSH\r\n")
        await reader.read()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as other:
        with pytest.raises(OSError, match=r"not Redis|closed"):
            await call(f"redis://127.0.0.1:{other.sockets[0].getsockname()[1]}", "PING")
