"""The store of kept voices on a real Redis: what it keeps, refuses and says about itself."""

from collections.abc import AsyncIterator

import pytest

from support.streams import Streams
from syrinx_stages.connector.base import StorageFull
from syrinx_stages.connector.redis.scripts import VOICES_SHARE
from syrinx_stages.connector.redis.streams import RedisConnector
from syrinx_stages.connector.redis.voices import RedisVoices, StoredVoice, VoiceExists, VoicesFull
from syrinx_stages.connector.server import RedisServer
from syrinx_stages.contract.keys import Keys
from syrinx_stages.contract.settings import VoiceLimits

LIMITS = VoiceLimits(max_per_key=2, max_total=3)
MIB = 2**20


def voice(name: str, owner: str = "a", size: int = 10) -> StoredVoice:
    record = f"{owner}/{name}".encode()
    return StoredVoice(
        id=f"id of {owner}/{name}", owner=owner, name=name, record=record, source=bytes(size), prepared=b"p"
    )


@pytest.fixture
async def streams() -> AsyncIterator[Streams]:
    """Streams in a Redis of their own, whose configuration a test changes."""
    with RedisServer() as server:
        it = Streams(url=server.url_with_password)
        yield it
        await it.close()


@pytest.fixture
def voices(streams: Streams) -> RedisVoices:
    return streams.connector().voices()


async def test_a_voice_is_found_by_its_owner_and_name_or_by_its_id(voices: RedisVoices):
    await voices.keep(voice("anna"), LIMITS)
    await voices.keep(voice("anna", owner="b"), LIMITS)
    assert [await voices.find(owner, "Anna") for owner in "abc"] == [b"a/anna", b"b/anna", None]
    assert await voices.find("c", "id of a/anna") == b"a/anna", "the gateway checks whose it is"
    assert await voices.of_owner("a") == [b"a/anna"]
    assert await voices.source("id of a/anna") == bytes(10)


async def test_names_and_limits_are_per_owner_and_in_all(voices: RedisVoices):
    await voices.keep(voice("anna"), LIMITS)
    with pytest.raises(VoiceExists):
        await voices.keep(voice("anna"), LIMITS)
    await voices.keep(voice("bert"), LIMITS)
    with pytest.raises(VoicesFull, match="maxPerKey is 2"):
        await voices.keep(voice("carl"), LIMITS)
    await voices.keep(voice("anna", owner="b"), LIMITS)
    with pytest.raises(VoicesFull, match="maxTotal is 3"):
        await voices.keep(voice("bert", owner="b"), LIMITS)
    await voices.delete("id of a/bert", "a", "bert")
    await voices.keep(voice("bert", owner="b"), LIMITS)


async def test_without_keys_only_the_limit_in_all_applies(voices: RedisVoices):
    for name in ("anna", "bert", "carl"):
        await voices.keep(voice(name, owner=""), LIMITS)
    with pytest.raises(VoicesFull, match="maxTotal is 3"):
        await voices.keep(voice("dora", owner=""), LIMITS)


async def test_voices_take_a_part_of_the_memory_only(streams: Streams, voices: RedisVoices):
    streams.raw.config_set("maxmemory", 64 * MIB)
    share = 64 * MIB // VOICES_SHARE
    await voices.keep(voice("anna", size=share - MIB), LIMITS)
    with pytest.raises(VoicesFull, match="more than 16 MiB of Redis' memory"):
        await voices.keep(voice("bert", size=MIB), LIMITS)
    await voices.keep(voice("bert", size=MIB // 2), LIMITS)


async def test_a_full_redis_keeps_nothing_of_a_voice_and_can_delete_one(streams: Streams, voices: RedisVoices):
    await voices.keep(voice("anna"), LIMITS)
    streams.raw.config_set("maxmemory", streams.raw.info("memory")["used_memory"] - 1)
    with pytest.raises(StorageFull):
        await voices.keep(voice("bert"), LIMITS)
    assert await voices.of_owner("a") == [b"a/anna"]
    await voices.delete("id of a/anna", "a", "anna")
    assert await voices.of_owner("a") == []


async def test_generations_and_namespaces(streams: Streams, voices: RedisVoices):
    """All generations of a pipeline have its voices, each prepared for itself; pipelines of a name have their own."""
    await voices.keep(voice("anna"), LIMITS)
    pipeline, url = streams.keys.pipeline, streams._url
    later, other = (RedisConnector(url, keys) for keys in (Keys(pipeline, "2"), Keys(pipeline, "1", namespace="b")))
    try:
        assert await later.voices().find("a", "anna") == b"a/anna"
        assert await later.voices().prepared("id of a/anna") is None
        await later.voices().set_prepared("id of a/anna", b"p2")
        assert (await voices.prepared("id of a/anna"), await later.voices().prepared("id of a/anna")) == (b"p", b"p2")
        assert await other.voices().find("a", "anna") is None
        await voices.delete("id of a/anna", "a", "anna")
        await later.voices().set_prepared("id of a/anna", b"p3")
        assert await later.voices().prepared("id of a/anna") == b"p2", "a deleted voice is not prepared again"
    finally:
        await later.close()
        await other.close()


async def test_only_what_can_be_made_again_expires(streams: Streams, voices: RedisVoices):
    await voices.keep(voice("anna"), LIMITS)
    ttls = {key.decode(): streams.raw.ttl(key) for key in streams.raw.scan_iter()}
    assert {key for key, ttl in ttls.items() if ttl != -1} == {streams.keys.prepared_voice("id of a/anna")}


async def test_voices_are_durable_with_an_append_only_file(streams: Streams, voices: RedisVoices):
    assert not await voices.durable()
    streams.raw.config_set("appendonly", "yes")
    assert await voices.durable()
    # Else the server would first write the file before it stops.
    streams.raw.config_set("appendonly", "no")
