"""The gateway of one process: admission, submission and release of requests, readiness and drain."""

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

import httpx

from syrinx_stages.connector.base import ConnectorError
from syrinx_stages.connector.redis.streams import RedisConnector
from syrinx_stages.contract import logs
from syrinx_stages.contract import metrics as m
from syrinx_stages.contract.api import SpeechFields
from syrinx_stages.contract.messages import EndReason, PreparedVoice, SpeechRequest, TaskType, encode
from syrinx_stages.contract.settings import GatewaySettings, StageConfig
from syrinx_stages.families import IMPLEMENTATION
from syrinx_stages.gateway.cells.cell import Queued
from syrinx_stages.gateway.cells.cells import Cells
from syrinx_stages.gateway.clients.access import ApiKeys
from syrinx_stages.gateway.clients.client import Refusals, count_request
from syrinx_stages.gateway.errors import ApiError, bad_request, unavailable
from syrinx_stages.gateway.fields.json_objects import MAX_BODY
from syrinx_stages.gateway.http.active_requests import ActiveRequests
from syrinx_stages.gateway.http.body import MAX_REFERENCE_BODY, Uploads
from syrinx_stages.gateway.http.delivery import ClientDisconnected
from syrinx_stages.gateway.speech.listener import Listener
from syrinx_stages.gateway.speech.live_text import LiveText
from syrinx_stages.gateway.speech.outcomes import StreamOutcome, StreamOutcomes
from syrinx_stages.gateway.speech.request import ParsedRequest, parse, voice_to_clone
from syrinx_stages.gateway.speech.speech import SpeechStream
from syrinx_stages.gateway.speech.submission import (
    RESUME_SECONDS,
    UNREACHABLE,
    UNREACHABLE_SECONDS,
    Resumption,
    Submission,
    Submissions,
)
from syrinx_stages.gateway.speech.texts import MAX_TEXT
from syrinx_stages.gateway.speech.trace import SpeechSpan
from syrinx_stages.gateway.voices import reference
from syrinx_stages.gateway.voices.catalog import Catalog
from syrinx_stages.gateway.voices.kept_voices import Cloned, KeptVoices
from syrinx_stages.gateway.voices.shared_voices import load_voices
from syrinx_stages.gateway.voices.voices import KeptVoice, encode_embedding
from syrinx_stages.normalization.normalize import load_languages
from syrinx_stages.runtime.http.listening import is_loopback
from syrinx_stages.runtime.settings import LiveSettings
from syrinx_stages.runtime.tasks import Tasks
from syrinx_stages.runtime.telemetry.metrics import Metrics, export_settings

log = logging.getLogger(__name__)

STALL_SECONDS = 180.0
"""A request without progress for this long has failed: a segment may take three attempts before it is sent."""
DECODERS = 2
"""References decoded at the same time: each takes up to 100 MB."""
STAGE = "gateway"


class GatewayService:
    """State shared by all HTTP requests.

    Raises `CheckpointError` if the checkpoint's configuration is invalid, and `StartError` if a voice, an alias or the
    API keys are.
    """

    def __init__(
        self,
        config: StageConfig,
        connectors: Sequence[RedisConnector],
        metrics: Metrics,
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        """`connectors`: one for each cell."""
        self.live = LiveSettings[GatewaySettings](config.gateway, config.settings_generation)
        self._tasks = Tasks()
        self.failed = self._tasks.failed
        self.created = int(time.time())
        self.checkpoint = IMPLEMENTATION.describe(config.model)
        self.catalog = Catalog(self.checkpoint, config.model_name, config.api, config.shared_voices)
        self._tokenizer = IMPLEMENTATION.load_tokenizer(config.model)
        self._hosts = config.reference_hosts
        self._metrics = metrics
        self.tracer = metrics.tracer
        self._stall_seconds = stall_seconds
        self.api_keys = None if config.api_keys_file is None else ApiKeys(config.api_keys_file, metrics)
        self.cors_origins = config.cors_origins
        self.is_private = is_loopback(config.public_host) and self.api_keys is None and not config.trusted_proxies
        """Whether whoever reaches the gateway may use it, and only this machine reaches it."""
        self.playground = config.playground
        self.tls = config.tls
        self.refusals = Refusals()
        self.outcomes = StreamOutcomes(metrics, self.live, self.checkpoint.task_type)
        self.cells = Cells(connectors, self.live, metrics)
        self.submissions = Submissions(self.cells, self.live, self.refusals, metrics)
        self.requests = ActiveRequests()
        self._closed: str | None = "starting"
        """Why new requests are refused; None while the gateway is open."""
        # The first cell keeps the voices: only gateways use them.
        self.voices = KeptVoices(connectors[0].voices(), self.catalog, config.voices, self.decode_audio, metrics)
        # Proxies from the environment would bypass the list of allowed hosts.
        self._http = httpx.AsyncClient(trust_env=False, timeout=reference.FETCH_SECONDS)
        cloning = self.checkpoint.task_type is TaskType.BASE
        self.max_body = MAX_REFERENCE_BODY if cloning else MAX_BODY
        """Bytes of a request's body."""
        self.uploads = Uploads()
        self._decoders = ThreadPoolExecutor(DECODERS, "reference")

    # Process lifecycle --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts the background tasks. If Redis cannot be reached yet, the gateway is not ready.

        Raises `StartError` if a voice of the resource cannot be used.
        """
        self.voices.shared = await load_voices(self.catalog.shared, self.created, self._fetch, self.decode_audio)
        for gauge in (m.LIVE_STREAMS, m.QUEUE_LENGTH, m.QUEUE_AGE, m.EXPECTED_WAIT):
            self._metrics[gauge].set(0)
        # Both series must exist from the start: `rate` ignores the first value of a series.
        for outcome in (EndReason.ERROR, EndReason.REFUSED):
            self._metrics[m.REQUESTS].labels(self.checkpoint.task_type, outcome)
        self.outcomes.start()
        for forwarded in ("answered", "fallback", "failed"):
            self._metrics[m.CANARY_FORWARDS].labels(forwarded)
        for change in ("kept", "deleted", "prepared"):
            self._metrics[m.VOICE_CHANGES].labels(change)
        self.settings_changed()
        await asyncio.to_thread(load_languages, self.checkpoint.languages)
        await self.cells.start(self._tasks)
        if self.api_keys is not None:
            self._tasks.spawn(self.api_keys.run())
        self._closed = None

    def ready(self) -> str | None:
        """None if the gateway is ready, otherwise the reason it is not."""
        draining = "draining" if self.requests.draining else None
        return self._closed or draining or self._tasks.failure or self.cells.unready()

    def warnings(self) -> Sequence[str]:
        """What may cost requests or streams although the gateway is ready."""
        return self.cells.warnings()

    def settings_changed(self) -> None:
        """Exports the settings as metrics; admission reads the settings at every request."""
        export_settings(self._metrics, STAGE, self.live)

    async def drain(self, seconds: float) -> None:
        """Waits up to `seconds` until no request is active, and cuts off those that still are.

        The gateway is no longer ready, so new clients go elsewhere. Requests that still arrive are served in that time,
        and their connections close with the response. After a failure nothing can finish.
        """
        await self.requests.drain(0.0 if self.failed.is_set() else seconds)

    async def close(self) -> None:
        """Releases the last requests, stops all tasks and closes all connections except those of the connector."""
        self._closed = "closed"
        await self.cells.settle()
        await self._tasks.cancel()
        await self.cells.close()
        await self._http.aclose()
        self._decoders.shutdown(wait=False, cancel_futures=True)

    # Requests -----------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raises 503 unless new requests are accepted."""
        if self._closed is not None:
            raise unavailable(f"this gateway accepts no requests: {self._closed}", 1)
        if (error := self.cells.missing_stage_error()) is not None:
            raise error

    def count_refusal(self, task_type: str = "unknown") -> None:
        """Counts a request that was refused before it reached the stages."""
        count_request(self._metrics, task_type, EndReason.REFUSED)

    @contextlib.contextmanager
    def counting_refusals(self, live: bool) -> Iterator[None]:
        """Counts a request that the block refuses. live: it counts as a stream, too, if the service is unavailable."""
        try:
            yield
        except (ApiError, asyncio.CancelledError) as error:
            self.count_refusal()
            if live and isinstance(error, ApiError) and error.status == HTTPStatus.SERVICE_UNAVAILABLE:
                self.outcomes.refuse()
            raise

    def count_forward(self, outcome: str) -> None:
        """Counts a request that was forwarded to a canary: answered, fallback or failed."""
        self._metrics[m.CANARY_FORWARDS].labels(outcome).inc()

    async def parse(
        self, fields: SpeechFields, request_id: str, accepted_at: float, client: str
    ) -> tuple[ParsedRequest, KeptVoice | None]:
        """Returns a request as `parse_request`, and the kept voice that it names. Raises as that, and 503."""
        kept = await self.voices.find(voice_to_clone(fields, self.catalog))
        return await parse(fields, self.catalog, request_id, accepted_at, client, kept), kept

    async def clone(
        self, fields: SpeechFields, parsed: ParsedRequest, kept: KeptVoice | None
    ) -> tuple[ParsedRequest, Cloned | None]:
        """Returns the request for the stages, and the voice that it clones. Raises `ApiError` 400, 413, 422 or 503."""
        self.voices.count_request(parsed.request.voice, kept)
        if kept is not None:
            return await self.voices.clone(parsed, kept)
        if fields.speaker_embedding is not None:
            size = self.voices.embedding_size("speaker_embedding")
            voice = PreparedVoice(encode_embedding(fields.speaker_embedding, size))
            return parsed.with_fields(reference_prepared=True), Cloned(encode(voice))
        return parsed, Cloned(await self.decode_reference(fields.ref_audio)) if fields.ref_audio else None

    async def decode_audio(self, data: bytes) -> bytes:
        """Returns the PCM of an audio file. Raises 400 or 413."""
        if len(data) > reference.MAX_FILE:
            raise reference.file_too_large()
        return await asyncio.get_running_loop().run_in_executor(self._decoders, reference.decode_audio, data)

    async def decode_reference(self, ref_audio: str) -> bytes:
        """Returns the PCM of a reference. Raises 400 or 413."""
        decode = functools.partial(asyncio.get_running_loop().run_in_executor, self._decoders)
        if not reference.is_url(ref_audio):
            return await decode(lambda: reference.decode_audio(reference.decode_base64(ref_audio)))
        return await decode(reference.decode_audio, await self._fetch(ref_audio))

    async def _fetch(self, url: str) -> bytes:
        """Returns the file at a URL. Raises 400 or 413."""
        checked = reference.check_url(url, self._hosts)
        try:
            async with asyncio.timeout(reference.FETCH_SECONDS):
                return await reference.fetch(self._http, checked)
        except (httpx.HTTPError, TimeoutError) as error:
            raise bad_request(reference.FIELD, f"cannot be fetched: {str(error) or type(error).__name__}") from None

    def open_text(self, request: SpeechRequest) -> LiveText:
        """Returns the text of a request that is spoken while it arrives. request: see `LiveText`."""
        return LiveText(request, self.checkpoint.reading, self._tokenizer)

    def input_tokens(self, request: SpeechRequest) -> int:
        """Number of text tokens in the request's texts. A long one is counted in pieces: tokenizers hold the GIL."""
        size = MAX_TEXT // 4
        pieces = (request.text[start : start + size] for start in range(0, len(request.text), size))
        texts = (*pieces, request.instructions, request.reference_text)
        return sum(len(self._tokenizer.encode(text)) for text in texts if text)

    @contextlib.asynccontextmanager
    async def open_stream(
        self,
        request: SpeechRequest,
        voice: Cloned | None,
        accepted: float,
        speed: float = 1.0,
        span: SpeechSpan | None = None,
        text: LiveText | None = None,
        resumption: Resumption | None = None,
    ) -> AsyncIterator[SpeechStream]:
        """Submits a request and yields its stream; releases the request on exit. `accepted` is in monotonic seconds.

        voice: what the request clones. speed: at which the client plays the audio. span: that of the request, if it is
        traced. text: that of a request with `streams_text`, which begins with that of the request.
        resumption: whether and how the client may continue it, or does.

        Raises 503 if the request is not admitted. One that no talker claims within `max_queue_seconds` ends as refused.
        """
        resumption = resumption or Resumption()
        tracker = self.outcomes.open(request, accepted, text)
        listener = Listener(request, accepted, speed, self._metrics, tracker, span, text)
        try:
            queued = resumption.queued or await self._admit(request, voice, listener, resumption.token)
            submission = Submission(self.submissions, queued, listener, voice, text, resumption)
            keep_seconds = RESUME_SECONDS if resumption.token else 0.0
            try:
                yield SpeechStream(submission, listener, self._stall_seconds, resumption.first_sample)
            except (asyncio.CancelledError, ClientDisconnected):
                # A client that has lost its connection may come back.
                if self.requests.expired:
                    listener.outcome = EndReason.ERROR
                if resumption.is_discarded:
                    keep_seconds = 0.0
                raise
            except Exception as error:
                keep_seconds = 0.0
                if not isinstance(error, ApiError):  # Otherwise the stream knows its outcome.
                    listener.outcome = EndReason.ERROR
                raise
            finally:
                submission.close(keep_seconds)
        finally:
            listener.record_outcome()
            if text is not None:
                self.outcomes.count_text(text.text)

    async def attach(self, request_id: str, token: str) -> tuple[Queued, LiveText] | None:
        """Returns a request that its client continues, and its text; None if there is none. Raises 503."""
        try:
            if (found := await self.cells.attach(request_id, token)) is None:
                return None
        except (ConnectorError, TimeoutError) as error:
            log.warning("request %s cannot be continued: %s", request_id, error, extra=logs.of_request(request_id))
            raise unavailable(UNREACHABLE, UNREACHABLE_SECONDS) from None
        queued, entries = found
        request = queued.request
        text = self.open_text(request)
        await asyncio.to_thread(text.restore, request.text, entries)
        return queued, text

    async def _admit(self, request: SpeechRequest, voice: Cloned | None, listener: Listener, gateway: str) -> Queued:
        """Submits a request. Raises 503 if it is not admitted."""
        started = time.perf_counter()
        try:
            self.check_open()
            queued = await self.submissions.queue(request, voice, gateway)
        except BaseException:
            listener.outcome = EndReason.REFUSED
            listener.tracker.settle(StreamOutcome.REFUSED)
            raise
        self._metrics[m.REDIS_SECONDS].labels(STAGE).observe(time.perf_counter() - started)
        return queued
