"""`POST /v1/audio/speech/batch`: several texts in one request, in the shape of vLLM-Omni's API.

Each item is a request of its own: it is admitted, served and counted like one, and fails alone.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct, structs
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from syrinx_stages.contract.api import SpeechFields
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import EndReason
from syrinx_stages.gateway.clients.client import current_client
from syrinx_stages.gateway.errors import ApiError, bad_request
from syrinx_stages.gateway.fields.json_objects import RawBody, Sent, check_commas, decode, put_back, take_out_references
from syrinx_stages.gateway.fields.parse import Parsed, parse_object
from syrinx_stages.gateway.http.delivery import ClientConnection, usage
from syrinx_stages.gateway.service import GatewayService
from syrinx_stages.gateway.speech.request import ParsedRequest, model_not_found, parse, voice_to_clone
from syrinx_stages.gateway.voices.kept_voices import Cloned
from syrinx_stages.gateway.voices.voices import KeptVoice
from syrinx_stages.runtime.clock import monotonic

MAX_ITEMS = 32
MAX_BATCH_TEXT = 32_768
"""Characters of `input` in all items together."""
MAX_REFERENCES = 8
"""Different values of `ref_audio` in a batch."""
CONCURRENT = 8
"""Items in progress at the same time; their results are sent in order."""
PATIENCE_SECONDS = 60.0
"""How long an item that is not admitted is tried again. Meanwhile it is not in the queue, so that streams go first."""
NOT_SHARED = ("input", "stream", "stream_format")
"""Fields that a batch does not have besides its items."""


class _Items(Struct):
    items: list[Sent]


_Shared: Any = msgspec.defstruct(
    "_Shared", [("input", str, "")], bases=(FAMILY.request_fields,), frozen=True, kw_only=True
)
"""The fields besides the items, which have the texts."""


class Item(Struct, frozen=True):
    """A valid item."""

    parsed: ParsedRequest
    voice: Cloned | None


class ItemResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of an item."""

    index: int
    """Position of the item in the request, from 0."""
    status: Literal["success", "error"]
    audio_data: bytes | None = None
    """The whole file, in base64."""
    media_type: str | None = None
    sample_rate: int | None = None
    audio_seconds: float | None = None
    seed: int | None = None
    finish_reason: EndReason | None = None
    retries: int = 0
    """The number of attempts at segments that were dropped."""
    incomplete: list[tuple[int, int]] = []
    """The characters of segments without a complete attempt."""
    usage: dict[str, int] | None = None
    """Numbers of text tokens and of frames, as in `speech.audio.done`."""
    warnings: list[str] = []
    """Fields of the item that have no effect."""
    error: str | None = None
    """The message of the error; `code` and `param` are as in an error response."""
    code: str | None = None
    param: str | None = None
    retry_after: float | None = None
    """Seconds after which the same item may succeed."""


def parse_batch(body: RawBody) -> list[Parsed]:
    """Returns the fields of each item, with those that all items share, and warnings about both.

    Raises `ApiError`: 400 if anything has the wrong type, or there is too much of it; it names `items[INDEX].FIELD`.
    413 as `parse_fields`.
    """
    rest, references = take_out_references(body)
    check_commas(bytes(rest).count(b","), "body")
    items, common = decode(rest, _Items).items, decode(rest, Sent)
    del common["items"]
    if not 1 <= len(items) <= MAX_ITEMS:
        raise bad_request("items", f"has {len(items):,} items; send 1 to {MAX_ITEMS}")
    shared = _parse(common, _Shared)
    if shared.fields.input:
        with shared.naming():
            raise bad_request("input", "goes into the items; leave it out here")
    placed = (_parse_item(index, item, shared) for index, item in enumerate(items))
    found = [structs.replace(each, fields=put_back(each.fields, references)) for each in placed]
    if (characters := sum(len(each.fields.input) for each in found)) > MAX_BATCH_TEXT:
        message = f"have {characters:,} characters of input together; at most {MAX_BATCH_TEXT:,} are accepted"
        raise bad_request("items", message)
    if len({each.fields.ref_audio for each in found if each.fields.ref_audio}) > MAX_REFERENCES:
        raise bad_request("items", f"have too many different ref_audio; at most {MAX_REFERENCES} are accepted")
    return found


def _parse_item(index: int, item: Sent, shared: Parsed) -> Parsed:
    try:
        own = _parse(item, FAMILY.request_fields)
    except ApiError as error:
        param = f"items[{index}]"
        message = f"{param}: {error.message}"
        param += f".{error.param}" if error.param else ""
        raise ApiError(error.status, message, param=param, code=error.code) from None
    absent = [name for name in own.fields.__struct_fields__ if getattr(own.fields, name) is None]
    inherited = {name: getattr(shared.fields, name) for name in absent}
    names = {name: shared.names[name] for name in absent if name in shared.names}
    fields = structs.replace(own.fields, **(inherited | {"stream": False}))
    return Parsed(fields, [*shared.warnings, *own.warnings], {**names, **own.names})


def _parse(sent: Sent, kind: type[SpeechFields]) -> Parsed:
    parsed = parse_object(sent, kind)
    for name in ("stream", "stream_format"):
        if getattr(parsed.fields, name):
            raise bad_request(name, "is not for batches, which have no streams; leave it out")
    return parsed


async def prepare(service: GatewayService, parsed: list[Parsed], request_id: str, client: str) -> list[Item | ApiError]:
    """Returns the items, with the error of each that is invalid. Raises `ApiError` 404 if all name another model.

    Each item counts toward the limit of requests of the client. Each voice is found, and each reference decoded, once.
    """
    if (sender := current_client.get()) is not None:
        sender.allowance.charge(len(parsed) - 1)
    models = {each.fields.model for each in parsed}
    if all(model is not None and not service.catalog.has_model(model) for model in models):
        with parsed[0].naming():
            raise model_not_found(str(parsed[0].fields.model), service.catalog, "model: ")
    found = dict[str | None, KeptVoice | None]()
    decoded = dict[str, asyncio.Future[bytes]]()
    items: list[Item | ApiError] = []
    for index, each in enumerate(parsed):
        fields = each.fields
        try:
            with each.naming():
                name = voice_to_clone(fields, service.catalog)
                if name not in found:
                    found[name] = await service.voices.find(name)
                item_id = f"{request_id}-{index}"
                request = await parse(fields, service.catalog, item_id, time.time(), client, found[name])
                request.warnings.extend(each.warnings)
                if not (reference := fields.ref_audio):
                    items.append(Item(*await service.clone(fields, request, found[name])))
                    continue
                if reference not in decoded:
                    decoded[reference] = asyncio.ensure_future(service.decode_reference(reference))
                items.append(Item(request, Cloned(await decoded[reference])))
        except ApiError as error:
            service.count_refusal()
            items.append(error)
    return items


class BatchResponse(Response):
    """Serves the items and sends their results in order, each when it is complete.

    A client that disconnects cancels all items. `trace`: fields by which the items continue the batch's trace.
    """

    def __init__(
        self, service: GatewayService, batch_id: str, items: list[Item | ApiError], trace: Mapping[str, str]
    ) -> None:
        super().__init__()
        self._trace = trace
        self._service = service
        self._id = batch_id
        self._items = items

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves the batch."""
        client = ClientConnection(receive, send)
        await client.run(self._deliver(client))

    async def _deliver(self, client: ClientConnection) -> None:
        succeeded = 0
        async with contextlib.aclosing(self._results()) as results:
            separator = f'{{"id": "speech-batch-{self._id}", "results": ['.encode()
            async for success, result in results:
                if separator != b", ":
                    await client.start({"Content-Type": "application/json", "Cache-Control": "no-store"})
                await client.send(separator + result)
                succeeded, separator = succeeded + success, b", "
        total = len(self._items)
        tail = msgspec.json.encode({"total": total, "succeeded": succeeded, "failed": total - succeeded})
        await client.finish(b"], " + tail.removeprefix(b"{"))

    async def _results(self) -> AsyncGenerator[tuple[bool, bytes]]:
        """Yields whether each item succeeded, and its result as JSON. At most `CONCURRENT` are in memory."""
        running: deque[asyncio.Task[tuple[bool, bytes]]] = deque()
        waiting = deque(enumerate(self._items))
        wanted, client = min(CONCURRENT, len(waiting)), current_client.get()
        with contextlib.nullcontext(wanted) if client is None else client.allowance.reserve(wanted) as concurrent:
            try:
                while running or waiting:
                    while waiting and len(running) < concurrent:
                        running.append(asyncio.create_task(self._serve(*waiting.popleft())))
                    yield await running[0]
                    running.popleft()
            finally:
                for task in running:
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)

    async def _serve(self, index: int, item: Item | ApiError) -> tuple[bool, bytes]:
        try:
            if isinstance(item, ApiError):
                raise item
            return True, await self._speak_when_admitted(index, item)
        except ApiError as error:
            return False, msgspec.json.encode(
                ItemResult(
                    index=index,
                    status="error",
                    error=error.message,
                    code=error.code,
                    param=error.param,
                    retry_after=error.retry_after,
                )
            )

    async def _speak_when_admitted(self, index: int, item: Item) -> bytes:
        end = monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return await self._speak(index, item)
            except ApiError as error:
                wait = error.retry_after
                if error.code != "queue_full" or wait is None or monotonic() + wait > end:
                    raise
            await asyncio.sleep(wait)

    async def _speak(self, index: int, item: Item) -> bytes:
        # An item that waits for others has not been accepted yet.
        request = structs.replace(item.parsed.request, accepted_at=time.time(), **self._trace)
        parsed, audio = item.parsed, item.parsed.audio
        async with self._service.open_stream(request, item.voice, monotonic(), audio.speed) as stream:
            file, seconds = await stream.file(audio)
            tokens = usage(await asyncio.to_thread(self._service.input_tokens, request), stream.listener.frames)

            def encoded() -> bytes:
                return msgspec.json.encode(
                    ItemResult(
                        index=index,
                        status="success",
                        audio_data=b"".join(file),
                        media_type=audio.media_type,
                        sample_rate=audio.rate,
                        audio_seconds=round(seconds, 3),
                        seed=request.seed,
                        finish_reason=stream.end.reason,
                        retries=stream.end.retries,
                        incomplete=parsed.spelling.places(stream.end.incomplete),
                        usage=tokens,
                        warnings=parsed.warnings,
                    )
                )

            result = await asyncio.to_thread(encoded)
            stream.listener.complete()
            return result
