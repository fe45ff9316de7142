"""The kept voices of a pipeline in Redis: all gateways of all its generations share them.

A voice has an encoded record, its source, and for each model generation what the talkers need of it. Records and
sources do not expire. A prepared voice does when no gateway has loaded it for long, because it can be made again.
"""

from collections.abc import Sequence

from msgspec import Struct

from syrinx_stages.connector.base import ConnectorError
from syrinx_stages.connector.redis import scripts
from syrinx_stages.connector.redis.connection import Command
from syrinx_stages.connector.redis.pool import CommandPool, Rejected
from syrinx_stages.contract.keys import Keys
from syrinx_stages.contract.settings import VoiceLimits

PREPARED_TTL_SECONDS = 30 * 86_400
"""Time to live of a prepared voice after a gateway last loaded it."""


class VoiceExists(ConnectorError):
    """The owner has a voice with this name."""


class VoicesFull(ConnectorError):
    """A limit of the kept voices is reached; the message says which."""


class StoredVoice(Struct, frozen=True, kw_only=True):
    """A voice to keep."""

    id: str
    """Random: never used again."""
    owner: str
    """Identifies the API key; empty without keys."""
    name: str
    """In lower case; unique among the owner's voices."""
    record: bytes
    source: bytes
    prepared: bytes
    """For the talkers of this generation."""


class RedisVoices:
    """Access to the voices. Every method raises `ConnectorError` as the connector does."""

    def __init__(self, pool: CommandPool, keys: Keys) -> None:
        self._pool = pool
        self._keys = keys

    async def find(self, owner: str, name: str) -> bytes | None:
        """Returns the record of the owner's voice with this name, else of the voice with this id, whoever owns it."""
        keys: Command = [self._keys.voices, self._keys.voice_names]
        record: bytes | None = await self._pool.run(scripts.FIND_VOICE, keys, [f"{owner}/{name.lower()}", name])
        return record

    async def of_owner(self, owner: str) -> Sequence[bytes]:
        """Returns the records of the owner's voices."""
        keys: Command = [self._keys.voices, self._keys.voice_owner(owner)]
        records: Sequence[bytes] = await self._pool.run(scripts.LIST_VOICES, keys, [])
        return records

    async def keep(self, voice: StoredVoice, limits: VoiceLimits) -> None:
        """Keeps a voice. Raises `VoiceExists`, `VoicesFull`, and `StorageFull` if Redis has no memory left."""
        arguments: Command = [voice.record, voice.source, voice.prepared, PREPARED_TTL_SECONDS]
        maximum: Command = [limits.max_per_key if voice.owner else 0, limits.max_total]
        names: Command = [f"{voice.owner}/{voice.name}", voice.id]
        keys = self._keys_of(voice.id, voice.owner)
        run = self._pool.run(scripts.KEEP_VOICE, keys, [*names, *arguments, *maximum], replicated=True)
        status, *details = await run
        match status:
            case b"exists":
                raise VoiceExists(voice.name)
            case b"owner":
                raise VoicesFull(f"this API key has {details[0]} voices, and maxPerKey is {limits.max_per_key}")
            case b"total":
                raise VoicesFull(f"{details[0]} voices are kept, and maxTotal is {limits.max_total}")
            case b"memory":
                raise VoicesFull(f"the voices would take more than {details[0] / 2**20:.0f} MiB of Redis' memory")

    async def delete(self, voice_id: str, owner: str, name: str) -> None:
        """Deletes a voice; `name` is in lower case. Idempotent."""
        arguments: Command = [f"{owner}/{name}", voice_id]
        await self._pool.run(scripts.DELETE_VOICE, self._keys_of(voice_id, owner), arguments, replicated=True)

    async def source(self, voice_id: str) -> bytes | None:
        """Returns what a voice was made from; None if it was deleted."""
        source: bytes | None = await self._pool.call(b"GET", self._keys.voice_source(voice_id))
        return source

    async def prepared(self, voice_id: str) -> bytes | None:
        """Returns a voice for the talkers of this generation; None if it is not prepared for them."""
        command: Command = [b"GETEX", self._keys.prepared_voice(voice_id), b"EX", PREPARED_TTL_SECONDS]
        prepared: bytes | None = await self._pool.call(*command)
        return prepared

    async def set_prepared(self, voice_id: str, prepared: bytes, is_kept: bool = True) -> None:
        """Stores a voice for the talkers of this generation, unless it is a kept one that was deleted."""
        keys: Command = [self._keys.voices, self._keys.prepared_voice(voice_id)]
        if not is_kept:
            await self._pool.call(b"SET", keys[1], prepared, b"EX", PREPARED_TTL_SECONDS)
            return
        await self._pool.run(scripts.PREPARE_VOICE, keys, [voice_id, prepared, PREPARED_TTL_SECONDS])

    async def durable(self) -> bool:
        """Returns whether the voices survive the loss of a server: it has an append-only file or a replica."""
        try:
            persistence = await self._pool.call(b"INFO", b"persistence")
            replication = await self._pool.call(b"INFO", b"replication")
        except Rejected:
            # The user may not run INFO.
            return False
        return b"aof_enabled:1" in persistence or b"connected_slaves:0" not in replication

    def _keys_of(self, voice_id: str, owner: str) -> Command:
        keys = self._keys
        shared = keys.voices, keys.voice_names, keys.voice_sizes, keys.voice_owner(owner)
        return [*shared, keys.voice_source(voice_id), keys.prepared_voice(voice_id)]
