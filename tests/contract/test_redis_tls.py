"""Tests of Redis over TLS: every kind of connection works, and servers are authenticated."""

import asyncio
import re

import pytest

from support.tls import Authority, tls_front, tls_redis
from support.writing import chained, failure
from syrinx_stages.connector.redis.streams import RedisConnector
from syrinx_stages.connector.server import RedisServer
from syrinx_stages.contract.keys import STREAM_START, Keys, Position, StreamKind
from syrinx_stages.contract.messages import Codes
from syrinx_stages.contract.settings import StageConfig
from syrinx_stages.contract.stages import Stage
from syrinx_stages.runtime.errors import StartError
from syrinx_stages.runtime.start import connect_redis

KEYS = Keys(pipeline="tls", generation="1")
CONFIG = StageConfig(pipeline="tls", generation="1", replica="talker-0", model="bundled")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def certificate(authority):
    """A certificate for localhost only."""
    return authority.server("DNS:localhost")


@pytest.fixture(params=["behind a TLS proxy", "speaks TLS"])
async def tls_port(request, authority, certificate):
    """Port and password of a Redis with TLS."""
    if request.param == "behind a TLS proxy":
        with RedisServer() as server:
            async with tls_front(server.port, *certificate) as port:
                yield port, server.password
        return
    with tls_redis(*certificate, authority.ca_file) as (port, password):
        yield port, password


async def test_commands_blocking_reads_and_wake_ups_work_over_tls(authority, tls_port, world_of):
    port, password = tls_port
    environment = {
        "REDIS_URL": f"rediss://localhost:{port}/0",
        "REDIS_PASSWORD": password,
        "REDIS_CA_FILE": str(authority.ca_file),
    }
    connector = connect_redis(CONFIG, environment)
    try:
        reader, consumer = connector.reader(), connector.consumer(Stage.TALKER, "talker-0")
        reading = asyncio.create_task(reader.read())
        claiming = asyncio.create_task(consumer.claim(1))
        ticket = await connector.submit(world_of.request(), world_of.admission)
        (claim,) = await claiming
        reader.subscribe("one", StreamKind.CODES, STREAM_START)
        opened, *_ = await reading
        assert opened.kind == StreamKind.CODES and claim.entry_id == ticket.entry_id
        reading = asyncio.create_task(reader.read())
        await connector.append(chained(claim, StreamKind.CODES, (Position(1), Codes(b"x" * 100_000))))
        (frame,) = await reading
        assert len(frame.entry.codes) == 100_000
        waiting = asyncio.create_task(consumer.claim(1))
        consumer.interrupt()
        assert not await waiting
        await connector.release(ticket)
    finally:
        await connector.close()


async def test_refuses_a_server_with_another_name(authority, tls_port):
    port, password = tls_port
    url = f"rediss://:{password}@127.0.0.1:{port}/0"
    message = await failure(RedisConnector(url, KEYS, ca_file=str(authority.ca_file)))
    assert re.search(r"cannot be reached.*IP address mismatch", message), message


async def test_refuses_a_server_of_another_authority(tmp_path, tls_port):
    port, password = tls_port
    url = f"rediss://:{password}@localhost:{port}/0"
    for ca_file in (str(Authority(tmp_path / "theirs").ca_file), None):
        message = await failure(RedisConnector(url, KEYS, ca_file=ca_file))
        assert re.search(r"cannot be reached.*certificate verify failed", message, re.IGNORECASE), message
        assert password not in message


async def test_a_server_without_tls_is_an_error_not_a_hang(authority):
    with RedisServer() as server:
        url = f"rediss://:{server.password}@localhost:{server.port}/0"
        assert "cannot be reached" in await failure(RedisConnector(url, KEYS, ca_file=str(authority.ca_file)))


@pytest.mark.parametrize(
    ("url", "content", "message"),
    [
        ("rediss://r", None, r"REDIS_CA_FILE: cannot read .*/ca\.pem: No such file"),
        ("rediss://r", "", r"REDIS_CA_FILE: .*/ca\.pem holds no certificate in PEM format"),
        ("rediss://r", "no certificate", r"REDIS_CA_FILE: .*/ca\.pem holds no certificate in PEM format"),
        ("redis://r", "any", r"REDIS_CA_FILE is set, but REDIS_URL is not a rediss:// address"),
    ],
)
def test_an_unusable_ca_file_is_a_start_error(tmp_path, url, content, message):
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(StartError, match=message):
        connect_redis(CONFIG, {"REDIS_URL": url, "REDIS_CA_FILE": str(path)})


@pytest.mark.parametrize(
    ("environment", "pipeline", "message"),
    [
        ({}, "p", "REDIS_URL is not set"),
        ({"REDIS_URL": "http://r"}, "p", "REDIS_URL: the Redis URL is not valid"),
        ({"REDIS_URL": "redis://r"}, "p q", "pipeline 'p q': letters"),
    ],
)
def test_an_invalid_address_or_name_is_a_start_error(environment, pipeline, message):
    config = StageConfig(pipeline=pipeline, generation="g", model="bundled")
    with pytest.raises(StartError, match=message):
        connect_redis(config, environment)
