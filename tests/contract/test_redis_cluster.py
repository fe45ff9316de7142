"""Tests of a Redis Cluster: the primary of a slot is found, and followed while it changes."""

import asyncio

import pytest

from support.redis_cluster import redis_cluster
from support.tls import Authority, tls_front
from support.writing import chained, failure
from syrinx_stages.connector.base import Capacity, StreamEntry
from syrinx_stages.connector.redis import scripts
from syrinx_stages.connector.redis.connection import Connection, Unavailable
from syrinx_stages.connector.redis.pool import CommandPool
from syrinx_stages.connector.redis.scripts import Script
from syrinx_stages.connector.redis.streams import RedisConnector
from syrinx_stages.connector.redis.voices import StoredVoice
from syrinx_stages.connector.server import RedisServer
from syrinx_stages.connector.servers.address import redis_address
from syrinx_stages.connector.servers.cluster import _addresses, _owner, slot_of
from syrinx_stages.contract.keys import STREAM_CREATED, Keys, Position, StreamKind
from syrinx_stages.contract.messages import Codes, Text
from syrinx_stages.contract.settings import StageConfig, VoiceLimits
from syrinx_stages.contract.stages import Stage
from syrinx_stages.runtime.start import connect_redis

NIGHT = pytest.mark.night
"""Of fail-overs, which take seconds of real time."""

NODES = """\
aa 10.0.0.1:6379@16379,one,shard-id=x myself,slave bb 0 1 7 connected
bb 10.0.0.2:6379@16379 master,fail? - 1 1 7 connected 0-99 101 [101->-aa]
cc 10.0.0.3:6379@16379 master - 0 1 9 connected 102-16383
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Nodes that do not take each other for dead soon: all changes are those of the tests."""
    with redis_cluster(tmp_path_factory.mktemp("cluster"), node_timeout_ms=4_000) as cluster:
        yield cluster


@pytest.fixture
async def world(world_of, cluster):
    cluster.until_ready()
    world = world_of(cluster.url)
    world.slot = slot_of(world.keys.prefix)
    yield world
    # The owner of the slot may be another one.
    await world.raw.aclose()
    world.raw = world_of(cluster.url, world.keys).raw
    await world.close()


def test_the_slot_is_that_of_the_hash_tag():
    assert slot_of("foo") == 12182, "the example of the specification of Redis Cluster"
    assert slot_of("{foo}:bar") == slot_of("{foo}") == 12182


def test_the_owner_of_a_slot_and_whether_it_is_reached_are_read_from_the_list_of_nodes():
    assert _owner(NODES, 99) == _owner(NODES, 101) == ("bb", ["master", "fail?"], 7)
    assert _owner(NODES, 16_383) == ("cc", ["master"], 9)
    assert _owner(NODES, 100) is None


def test_a_node_without_an_address_is_reached_as_the_one_that_was_asked():
    asked = redis_address("redis://seed:1")
    servers = [[0, 9, [b"h1", 1, b"aa"]], [10, 19, [None, 2, b"bb", []], [b"?", 3, b"cc"], [b"", 4, b"dd"]]]
    found = {"bb": ("seed", 2), "cc": ("seed", 3), "dd": ("seed", 4), "aa": ("h1", 1)}
    assert _addresses(servers, 15, asked) == found
    assert list(_addresses(servers, 15, asked)) == list(found), "those of the slot first"


@pytest.mark.parametrize(
    "url",
    [
        "redis+cluster://",
        "redis+cluster://a,,b",
        "redis+cluster://a/0",
        "redis+cluster://a:b",
        "rediss+cluster://a?db=1",
    ],
)
def test_an_invalid_url_says_what_is_expected(url):
    with pytest.raises(ValueError, match=r"redis\+cluster://HOST:PORT,HOST:PORT"):
        redis_address(url)


async def test_a_cluster_accepts_the_keys_of_every_script(world, monkeypatch):
    """All keys of a script are in one slot, and none is missing from KEYS."""
    used, run = {scripts.OPEN_INBOX.digest}, CommandPool.run

    def recorded(pool, script, *arguments, **options):
        used.add(script.digest)
        return run(pool, script, *arguments, **options)

    monkeypatch.setattr(CommandPool, "run", recorded)
    gateway, stages = world.connector(), world.connector()
    talker, codec = stages.consumer(Stage.TALKER, "t"), stages.consumer(Stage.CODEC, "c")
    requests = [world.request(name, streams_text=True) for name in ("one", "two", "three")]
    tickets = [await gateway.submit(request, world.admission, b"pcm", gateway="token") for request in requests]
    assert await gateway.withdraw(tickets[2])
    assert await gateway.attach("one", "token") is not None
    (claim, other), audio = await talker.claim(2), await codec.claim(2)
    reader = gateway.reader()
    reader.subscribe("one", StreamKind.CODES, STREAM_CREATED)
    assert await stages.append(chained(claim, StreamKind.CODES, (Position(1), Codes(b"x")))) == [None]
    assert [event.position for event in await reader.read()] == [Position(1)]
    assert (await gateway.progress(tickets[0])).codes == Position(1)
    await gateway.report_playback({"one": 1}, spoken={"one": 1})
    text = StreamEntry("one", StreamKind.TEXT, Position(3), Text("two"))
    assert await gateway.append_text("one", STREAM_CREATED, [text]) is None
    assert await stages.last_position("one", StreamKind.TEXT) == Position(3)
    assert await gateway.has_live_consumer(Stage.TALKER, 60)
    assert await talker.report(Capacity(1, 1.0)) is None
    assert (await gateway.queue()).length == 0
    assert list(await talker.refresh([claim.entry_id])) == []
    await talker.hand_over([other.entry_id])
    assert [taken.request.id for taken in await stages.consumer(Stage.TALKER, "u").take_over(9)] == ["two"]
    await codec.finish(audio[1].entry_id)
    for ticket in tickets[:2]:
        await gateway.release(ticket)
    await codec.close()
    voice = StoredVoice(id="id", owner="a", name="anna", record=b"r", source=b"s", prepared=b"p")
    await gateway.voices().keep(voice, VoiceLimits(max_per_key=1, max_total=1))
    assert await gateway.voices().find("a", "anna") == b"r"
    assert await gateway.voices().of_owner("a") == [b"r"]
    await gateway.voices().set_prepared("id", b"q")
    await gateway.voices().delete("id", "a", "anna")
    unused = {name for name, each in vars(scripts).items() if isinstance(each, Script) and each.digest not in used}
    assert unused == set()


@NIGHT
async def test_all_connections_follow_a_fail_over(world, cluster, until):
    gateway, stages = world.connector(), world.connector()
    consumer, reader = stages.consumer(Stage.TALKER, "a"), gateway.reader()
    _, claim = await world.submit_claimed(gateway, consumer)
    reader.subscribe("one", StreamKind.CODES, STREAM_CREATED)
    reading, claiming = asyncio.create_task(reader.read()), asyncio.create_task(claim_one(consumer))
    former = cluster.owner(world.slot)
    cluster.fail_over(world.slot)
    assert list(await stages.append(chained(claim, StreamKind.CODES, (Position(1), Codes(b"x"))))) == [None]
    await world.submit(gateway, "two")
    assert [event.position for event in await reading] == [Position(1)]
    assert (await claiming).request.id == "two"
    assert cluster.owner(world.slot) is not former


@NIGHT
async def test_a_script_waits_until_the_slot_has_moved(world, cluster, until):
    """Its keys are divided: some are at the source, some at the target, and those of a new request at neither."""
    gateway, stages = world.connector(), world.connector()
    consumer, reader = stages.consumer(Stage.TALKER, "a"), gateway.reader()
    _, claim = await world.submit_claimed(gateway, consumer)
    reader.subscribe("one", StreamKind.CODES, STREAM_CREATED)
    reading = asyncio.create_task(reader.read())
    source, target = cluster.begin_move(world.slot)
    assert cluster.move_keys(world.slot, source, target, count=2) == 2
    errors = world.errors
    appending = asyncio.ensure_future(
        stages.append(chained(claim, StreamKind.CODES, (Position(1), Codes(b"x")), (Position(2), Codes(b"y"))))
    )
    submitting = asyncio.create_task(world.submit(gateway, "two"))
    await until(lambda: reached(world, errors + 4))
    assert not appending.done() and not submitting.done()
    assert gateway._pool.connected_seconds < 1, "owners cannot renew their leases, so others have to wait"
    while cluster.move_keys(world.slot, source, target):
        pass
    cluster.end_move(world.slot, target)
    assert list(await appending) == [None, None]
    assert [event.position for event in await reading] == [Position(1), Position(2)]
    assert (await claim_one(consumer)).entry_id == (await submitting).entry_id


@NIGHT
async def test_a_former_primary_is_left_although_it_still_replies(world, cluster, monkeypatch):
    """The nodes know the owner with the newest epoch, and the connections to the one before it are closed."""
    address = redis_address(cluster.url).for_key(world.keys.prefix)
    connection = await Connection.open(address)
    await address.confirm_primary()
    cluster.fail_over(world.slot)
    with pytest.raises(Unavailable, match="is now the primary"):
        await address.confirm_primary()
    await asyncio.sleep(0)
    assert not connection.is_open
    address.close()


@NIGHT
async def test_a_request_that_a_paused_primary_took_is_submitted_to_its_successor(world, cluster, until):
    """It is in the connection when the replica is promoted, and nothing but the request itself notices that."""
    gateway = world.connector()
    await world.submit(gateway, "before")
    gateway._pool.address._watching.cancel()
    former = cluster.owner(world.slot)
    replica = cluster.replica(former)
    former.pause()
    submitting = asyncio.create_task(world.submit(gateway))
    await until(lambda: sent(gateway))
    await asyncio.to_thread(cluster.promote, replica, world.slot, "TAKEOVER")
    former.resume()
    ticket = await submitting
    assert cluster.owner(world.slot) is replica
    (*_, (entry_id, _)) = replica.client.xrange(world.keys.requests)
    assert entry_id.decode() == ticket.entry_id


@NIGHT
async def test_the_voices_are_in_a_slot_of_their_own(cluster):
    names = (f"demo-{number}" for number in range(100))
    keys = next(
        keys
        for keys in (Keys(pipeline=name, generation="1") for name in names)
        if cluster.owner(slot_of(keys.prefix)) is not cluster.owner(slot_of(keys.voices))
    )
    connector = RedisConnector(cluster.url, keys)
    voice = StoredVoice(id="id", owner="a", name="anna", record=b"record", source=b"source", prepared=b"prepared")
    try:
        await connector.voices().keep(voice, VoiceLimits(max_per_key=1, max_total=1))
        cluster.fail_over(slot_of(keys.voices))
        assert await connector.voices().find("a", "anna") == b"record"
        assert await connector.voices().prepared("id") == b"prepared"
        assert await connector.voices().durable(), "it has a replica"
        await connector.voices().delete("id", "a", "anna")
        assert (await connector.queue()).length == 0
    finally:
        await connector.close()


@NIGHT
async def test_a_user_with_few_rights_is_enough(world, cluster):
    for node in cluster.nodes:
        rules = "on", ">own", "~{*}*", "+@all", "-@admin", "-@dangerous", "+info", "+cluster|nodes", "+cluster|slots"
        node.client.execute_command("ACL", "SETUSER", "stages", *rules)
    connector = RedisConnector(cluster.url.replace(f":{cluster.password}@", "stages@"), world.keys, password="own")
    await world.submit(connector)
    assert (await connector.queue()).length == 1
    await connector.close()


@NIGHT
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda cluster, url: url.replace(cluster.password, "wrong"), "refused the user or password"),
        (lambda cluster, url: "redis+cluster://127.0.0.1:1,127.0.0.1:2", "cannot be reached"),
        (lambda cluster, url: url.replace("+cluster", "").partition(",")[0], "use redis+cluster://HOST:PORT"),
    ],
    ids=["password", "no node", "not as a Cluster"],
)
async def test_a_connector_that_cannot_be_served_says_why(cluster, make, message):
    slots = {slot_of(f"{{demo-{number}:1:0}}"): number for number in range(100)}
    number = next(number for slot, number in slots.items() if cluster.owner(slot) is not cluster.nodes[1])
    keys = Keys(pipeline=f"demo-{number}", generation="1")
    assert message in await failure(RedisConnector(make(cluster, cluster.url), keys))


@NIGHT
async def test_a_stand_alone_redis_is_no_cluster():
    with RedisServer() as server:
        url = server.url_with_password.replace("redis:", "redis+cluster:").removesuffix("/0")
        assert "cluster support disabled" in await failure(RedisConnector(url, Keys(pipeline="demo", generation="1")))


@NIGHT
@pytest.mark.parametrize(
    ("names", "message"), [("DNS:localhost,IP:127.0.0.1", ""), ("DNS:localhost", "IP address mismatch")]
)
async def test_the_names_of_all_nodes_are_verified(tmp_path, names, message):
    """A node is reached by the address that it announces, here that of a TLS proxy."""
    authority = Authority(tmp_path / "ca")
    certificate = authority.server(*names.split(","))
    ports: dict[int, int] = {}

    def announce(node):
        ports[node.port] = port = node.port + 5000
        return f"cluster-announce-port {port}\ncluster-announce-bus-port {node.port + 10_000}"

    with redis_cluster(tmp_path / "nodes", replicas=0, configure=announce) as cluster:
        fronts = [tls_front(node.port, *certificate, own=ports[node.port]) for node in cluster.nodes]
        async with fronts[0], fronts[1], fronts[2]:
            url = f"rediss+cluster://localhost:{ports[cluster.nodes[0].port]}"
            secrets = {"REDIS_PASSWORD": cluster.password, "REDIS_CA_FILE": str(authority.ca_file)}
            config = StageConfig(pipeline="demo", generation="1", model="bundled")
            connector = connect_redis(config, {"REDIS_URL": url, **secrets})
            if message:
                assert message in await failure(connector)
                return
            assert (await connector.queue()).length == 0
            await connector.close()


async def claim_one(consumer):
    while True:
        if claims := await consumer.claim(1):
            return claims[0]


async def reached(world, errors):
    return world.errors >= errors


async def sent(connector):
    """Returns whether a command of a connector awaits its reply."""
    return bool(connector._pool._others.connection._pending)
