"""The cloned voices of a gateway: clients' in Redis, the resource's, and a cache of what talkers need of them."""

import asyncio
import functools
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from syrinx_stages.connector.base import ConnectorError, StorageFull
from syrinx_stages.connector.redis.voices import RedisVoices, StoredVoice, VoiceExists, VoicesFull
from syrinx_stages.contract import metrics as m
from syrinx_stages.contract.messages import PreparedVoice, decode_voice, encode
from syrinx_stages.contract.settings import VoiceLimits
from syrinx_stages.gateway.cells.monitor import CONNECTOR_SECONDS
from syrinx_stages.gateway.clients.client import voice_owner
from syrinx_stages.gateway.errors import ApiError, bad_request, unavailable, unsupported
from syrinx_stages.gateway.speech.request import ParsedRequest
from syrinx_stages.gateway.voices.catalog import Catalog
from syrinx_stages.gateway.voices.shared_voices import Decode, LoadedVoice
from syrinx_stages.gateway.voices.voices import KeptVoice, decode_record, encode_record
from syrinx_stages.runtime.telemetry.metrics import Metrics

MAX_CACHED = 256
"""Prepared voices in memory: of 30 s each, about 5 MB."""
_RETRY_SECONDS = 5.0
"""`Retry-After` while Redis has no memory left or cannot be reached."""
_T = TypeVar("_T")

OnPrepared = Callable[[PreparedVoice | None], Awaitable[None]]
"""Gets what a talker has prepared; None if the request failed before."""


class Cloned(Struct, frozen=True):
    """The voice that a request clones."""

    data: bytes
    """Reference audio or an encoded `PreparedVoice`: see `SpeechRequest`."""
    on_prepared: OnPrepared | None = None
    """Called when the request is over, with what its talker has prepared, if it asks for it."""


class KeptVoices:
    """The voices of all clients. Methods raise `ApiError` 503 if Redis cannot be reached."""

    def __init__(
        self, store: RedisVoices, catalog: Catalog, limits: VoiceLimits, decode: Decode, metrics: Metrics
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._limits = limits
        self._decode = decode
        self._metrics = metrics
        self.shared: Mapping[str, LoadedVoice] = {}
        """The resource's voices by name; complete before the first request."""
        self._prepared: OrderedDict[str, bytes] = OrderedDict()
        """By id. A voice never changes, and no id is used again."""

    def embedding_size(self, field: str) -> int:
        """Returns the numbers of a speaker embedding. Raises 422, naming `field`, if voices cannot be kept here."""
        size = self._catalog.checkpoint.embedding_size
        if size is None:
            task = self._catalog.checkpoint.task_type
            raise unsupported(field, f"cloning a voice needs a Base checkpoint; this one does {task}")
        return size

    async def find(self, name: str | None) -> KeptVoice | None:
        """Returns the voice to clone with this name, alias or id: the resource's, or the client's."""
        if name is None or self._catalog.checkpoint.embedding_size is None:
            return None
        if self._catalog.has_voice(name):
            shared = self._catalog.voice(name)
            return None if shared is None else self.shared[shared].voice
        record = await self._reached(self._store.find(voice_owner(), name))
        voice = None if record is None else decode_record(record)
        return voice if voice is not None and voice.owner == voice_owner() else None

    async def of_client(self) -> Sequence[KeptVoice]:
        """Returns the client's voices, the oldest first."""
        if self._catalog.checkpoint.embedding_size is None:
            return []
        records = await self._reached(self._store.of_owner(voice_owner()))
        return sorted(map(decode_record, records), key=lambda voice: (voice.created_at, voice.id))

    async def durable(self) -> bool:
        """Returns whether the voices survive a restart of Redis."""
        return await self._reached(self._store.durable())

    async def check(self, name: str) -> None:
        """Raises 400 if the name stands for something else, 409 if the client has a voice with it, 422 as `keep`."""
        if self._limits.max_total == 0:
            raise unsupported("audio_sample", "voices are not kept here: spec.gateway.voices.maxTotal is 0")
        if self._catalog.has_voice(name):
            raise bad_request("name", f"{name!r} is a voice or an alias of this service; choose another name")
        if (voice := await self.find(name)) is not None:
            raise _exists(voice.name)

    async def keep(self, voice: KeptVoice, source: bytes, prepared: PreparedVoice) -> None:
        """Keeps a voice. Raises 409 if the client has one with this name, 422 at a limit, 503 if Redis is full."""
        data = encode(prepared)
        stored = StoredVoice(
            id=voice.id,
            owner=voice.owner,
            name=voice.name.lower(),
            record=encode_record(voice),
            source=source,
            prepared=data,
        )
        try:
            await self._reached(self._store.keep(stored, self._limits))
        except VoiceExists:
            raise _exists(voice.name) from None
        except VoicesFull as error:
            message = f"{error}; delete a voice that you no longer need, or ask for a higher limit"
            raise ApiError(422, message, code="too_many_voices") from None
        self._remember(voice.id, data)
        self._count("kept")

    async def delete(self, voice: KeptVoice) -> None:
        """Deletes a voice. Requests in progress keep theirs."""
        await self._reached(self._store.delete(voice.id, voice.owner, voice.name.lower()))
        self._prepared.pop(voice.id, None)
        self._count("deleted")

    async def clone(self, parsed: ParsedRequest, voice: KeptVoice) -> tuple[ParsedRequest, Cloned]:
        """Returns the request with a voice, and what the talker needs of it. Raises 400 if it was just deleted."""
        if (data := await self._load(voice)) is not None:
            return parsed.with_fields(reference_prepared=True), Cloned(data)
        shared = self._shared(voice)
        source = await self._reached(self._store.source(voice.id)) if shared is None else shared.source
        if source is None:
            raise bad_request("voice", f"{voice.name!r} was deleted")
        pcm = source if voice.keeps_samples else await self._decode(source)
        if parsed.request.x_vector_only != voice.x_vector_only:
            return parsed, Cloned(pcm)
        return parsed.with_fields(returns_voice=True), Cloned(pcm, functools.partial(self._save, voice))

    def count_request(self, speaker: str | None, voice: KeptVoice | None) -> None:
        """Counts a request by its voice: a speaker of the checkpoint, one to clone, or neither."""
        source, name = "request" if speaker is None else "checkpoint", speaker or ""
        if voice is not None:
            source, name = ("client", "") if self._shared(voice) is None else ("resource", voice.name)
        self._metrics[m.VOICE_REQUESTS].labels(source, name).inc()

    def _count(self, change: str) -> None:
        self._metrics[m.VOICE_CHANGES].labels(change).inc()

    def _shared(self, voice: KeptVoice) -> LoadedVoice | None:
        """Returns the voice if it is one of the resource's."""
        found = self.shared.get(voice.name)
        return found if found is not None and found.voice.id == voice.id else None

    async def _load(self, voice: KeptVoice) -> bytes | None:
        """Returns the prepared voice; None if this checkpoint's talkers have not prepared it yet. Raises 422."""
        if voice.id not in self._prepared:
            if voice.seconds is None:
                data = await self._reached(self._store.source(voice.id))
                self._check_embedding(voice, data)
            else:
                data = await self._reached(self._store.prepared(voice.id))
            if data is None:
                return None
            self._remember(voice.id, data)
        self._prepared.move_to_end(voice.id)
        return self._prepared[voice.id]

    def _check_embedding(self, voice: KeptVoice, data: bytes | None) -> None:
        """Raises 422 if an uploaded embedding is that of another checkpoint."""
        size = self.embedding_size("voice")
        if data is not None and (found := len(decode_voice(data).embedding) // 4) != size:
            message = f"{voice.name!r} is an embedding of {found:,} numbers, and this checkpoint's have {size:,}"
            raise unsupported("voice", message)

    async def _save(self, voice: KeptVoice, prepared: PreparedVoice | None) -> None:
        if prepared is not None:
            await self._store.set_prepared(voice.id, encode(prepared), is_kept=self._shared(voice) is None)
            self._count("prepared")

    async def _reached(self, call: Awaitable[_T]) -> _T:
        try:
            async with asyncio.timeout(CONNECTOR_SECONDS):
                return await call
        except StorageFull as error:
            raise unavailable(f"the voice cannot be kept: {error}", _RETRY_SECONDS, "redis_full") from None
        except (VoiceExists, VoicesFull):
            raise
        except (ConnectorError, TimeoutError):
            raise unavailable("the service cannot reach its voices", _RETRY_SECONDS) from None

    def _remember(self, voice_id: str, data: bytes) -> None:
        self._prepared[voice_id] = data
        if len(self._prepared) > MAX_CACHED:
            self._prepared.popitem(last=False)


def _exists(name: str) -> ApiError:
    message = f"name: you have a voice {name!r}; delete it first, or choose another name"
    return ApiError(409, message, param="name", code="voice_exists")
