"""The gateway of one process: admission, submission and release of requests, readiness and drain."""

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx
from msgspec import Struct, structs

from syrinx_stages.connector.base import RETRY_SECONDS, ConnectorError, QueueFull, RequestExists
from syrinx_stages.connector.redis.streams import RedisConnector
from syrinx_stages.contract import logs
from syrinx_stages.contract import metrics as m
from syrinx_stages.contract.api import SpeechFields
from syrinx_stages.contract.messages import EndReason, PreparedVoice, SpeechRequest, TaskType
from syrinx_stages.contract.settings import GatewaySettings, StageConfig
from syrinx_stages.families import IMPLEMENTATION
from syrinx_stages.gateway.cells.cell import Cell, Queued
from syrinx_stages.gateway.cells.cells import Cells
from syrinx_stages.gateway.cells.monitor import ALIVE_SECONDS, CONNECTOR_SECONDS
from syrinx_stages.gateway.clients.access import ApiKeys
from syrinx_stages.gateway.clients.client import Refusals, count_request
from syrinx_stages.gateway.clients.origins import is_loopback
from syrinx_stages.gateway.errors import ApiError, bad_request, unavailable
from syrinx_stages.gateway.http.active_requests import ActiveRequests
from syrinx_stages.gateway.http.body import MAX_REFERENCE_BODY, Uploads
from syrinx_stages.gateway.http.fields import MAX_BODY
from syrinx_stages.gateway.speech.listener import Listener
from syrinx_stages.gateway.speech.live_text import LiveText
from syrinx_stages.gateway.speech.outcomes import StreamOutcome, StreamOutcomes
from syrinx_stages.gateway.speech.request import ParsedRequest
from syrinx_stages.gateway.speech.speech import Resubmitted, SpeechStream
from syrinx_stages.gateway.speech.texts import MAX_TEXT
from syrinx_stages.gateway.speech.trace import SpeechSpan
from syrinx_stages.gateway.voices import reference
from syrinx_stages.gateway.voices.catalog import Catalog
from syrinx_stages.gateway.voices.kept_voices import Cloned, KeptVoices, OnPrepared, clone_prepared
from syrinx_stages.gateway.voices.shared_voices import load_voices
from syrinx_stages.gateway.voices.voices import KeptVoice, encode_embedding
from syrinx_stages.model.streamed_text import StreamedText
from syrinx_stages.normalization.durations import spoken_characters
from syrinx_stages.normalization.normalize import load_languages
from syrinx_stages.runtime.clock import monotonic
from syrinx_stages.runtime.settings import LiveSettings
from syrinx_stages.runtime.tasks import Tasks
from syrinx_stages.runtime.telemetry.metrics import Metrics, export_settings

log = logging.getLogger(__name__)

SILENT_SECONDS = 5.0
"""A stream of which nothing comes for this long, and whose client has nothing left to play, is named."""
STALL_SECONDS = 180.0
"""A request without progress for this long has failed: a segment may take three attempts before it is sent."""
DECODERS = 2
"""References decoded at the same time: each takes up to 100 MB."""
WITHDRAW_SECONDS = RETRY_SECONDS
"""How long the gateway tries to remove a request that has waited for `max_queue_seconds` from the queue."""
RESUME_SECONDS = 15.0
"""How long an utterance with a `request_id` is kept for a client that has lost its connection..."""
RESUME_FRAMES = 87
"""...and how many of the frames before those that were sent: what the buffers of a connection hold, 7 s."""
UNREACHABLE, UNREACHABLE_SECONDS = "the service cannot reach its queue", 2.0
"""Message and `Retry-After` while Redis cannot be reached."""
STAGE = "gateway"


@dataclass
class _Submission:
    """A request in a queue: in another one, or with another ticket, once it was submitted again."""

    request: SpeechRequest
    voice: Cloned | None
    queued: Queued
    text: LiveText | None = None
    """The text of a request with `streams_text`."""
    is_continued: bool = False
    """It was submitted by another connection: what it clones is not known here."""
    expiry: asyncio.TimerHandle | None = None
    writing: asyncio.Task[None] | None = None
    """Writes the text to the cell."""
    is_missing: bool = False
    """Redis did not have it at the last check."""
    is_silent: bool = False
    """It was named as a stream that stands still."""

    @property
    def cell(self) -> Cell:
        """The cell that has the request."""
        return self.queued.cell


class Resumption(Struct):
    """A request that its client may continue on another connection."""

    token: str
    """Of this connection: only the last one may release the request."""
    queued: Queued | None = None
    """The request to continue; None for a new one."""
    first_sample: int = 0
    """Number of the first sample that the client has not got."""
    is_discarded: bool = False
    """The client does not come back for it."""


class GatewayService:
    """State shared by all HTTP requests.

    Raises `CheckpointError` if the checkpoint's configuration is invalid, and `StartError` if an alias or the API keys
    are.
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
        self.admin_targets = (self,)
        self.created = int(time.time())
        self.checkpoint = IMPLEMENTATION.describe(config.model)
        shared = tuple(each.name for each in config.shared_voices)
        self.catalog = Catalog(self.checkpoint, config.model_name, config.api, shared)
        self._shared_voices = config.shared_voices
        self._tokenizer = IMPLEMENTATION.load_tokenizer(config.model)
        self._hosts = config.reference_hosts
        self._metrics = metrics
        self.tracer = metrics.tracer
        self._stall_seconds = stall_seconds
        self.api_keys = None if config.api_keys_file is None else ApiKeys(config.api_keys_file, metrics)
        self.cors_origins = config.cors_origins
        self.is_private = is_loopback(config.host) and self.api_keys is None and not config.trusted_proxies
        """Whether whoever reaches the gateway may use it, and only this machine reaches it."""
        self.playground = config.playground
        self.tls = config.tls
        self.refusals = Refusals()
        self.outcomes = StreamOutcomes(metrics, self.live, self.checkpoint.task_type)
        self.cells = Cells(connectors, self.live, metrics)
        self.requests = ActiveRequests()
        self._closed: str | None = "starting"
        """Why new requests are refused; None while the gateway is open."""
        self._texts: set[LiveText] = set()
        """Of the requests in progress whose text is not complete."""
        for connector in connectors:
            connector.on_reconnect(self._check_texts)
        # The first cell keeps the voices: only gateways use them.
        self.voices = KeptVoices(connectors[0].voices(), self.catalog, config.voices, self.decode_audio)
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
        voices = self._shared_voices, self.checkpoint, self.created, self._fetch, self.decode_audio
        self.voices.shared = await load_voices(*voices)
        for gauge in (m.LIVE_STREAMS, m.QUEUE_LENGTH, m.QUEUE_AGE, m.EXPECTED_WAIT):
            self._metrics[gauge].set(0)
        # Both series must exist from the start: `rate` ignores the first value of a series.
        for outcome in (EndReason.ERROR, EndReason.REFUSED):
            self._metrics[m.REQUESTS].labels(self.checkpoint.task_type, outcome)
        self.outcomes.start()
        for forwarded in ("answered", "fallback", "failed"):
            self._metrics[m.CANARY_FORWARDS].labels(forwarded)
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

    def count_forward(self, outcome: str) -> None:
        """Counts a request that was forwarded to a canary: answered, fallback or failed."""
        self._metrics[m.CANARY_FORWARDS].labels(outcome).inc()

    async def clone(
        self, fields: SpeechFields, parsed: ParsedRequest, kept: KeptVoice | None
    ) -> tuple[ParsedRequest, Cloned | None]:
        """Returns the request for the stages, and the voice that it clones. Raises `ApiError` 400, 413, 422 or 503."""
        if kept is not None:
            return await self.voices.clone(parsed, kept)
        if fields.speaker_embedding is not None:
            size = self.voices.embedding_size("speaker_embedding")
            voice = PreparedVoice(encode_embedding(fields.speaker_embedding, size))
            request, cloned = clone_prepared(parsed.request, voice)
            return structs.replace(parsed, request=request), cloned
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

    def open_text(self, languages: Sequence[str], needs_end: bool) -> LiveText:
        """Returns the text of a request that may be spoken while it arrives.

        languages: see `SpeechRequest`. needs_end: see `LiveText`.
        """
        return LiveText(StreamedText(self._tokenizer, languages), needs_end)

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
        resumption: if the client may continue it, or does.

        Raises 503 if the request is not admitted. One that no talker claims within `max_queue_seconds` ends as refused.
        """
        tracker = self.outcomes.open(request, accepted)
        listener = Listener(request, accepted, speed, self._metrics, tracker, span)
        try:
            async with self._open(request, voice, listener, text, resumption) as stream:
                yield stream
        finally:
            listener.record_outcome()

    @contextlib.asynccontextmanager
    async def _open(
        self,
        request: SpeechRequest,
        voice: Cloned | None,
        listener: Listener,
        text: LiveText | None,
        resumption: Resumption | None,
    ) -> AsyncIterator[SpeechStream]:
        continued = None if resumption is None else resumption.queued
        token = "" if resumption is None else resumption.token
        queued = await self._admit(request, voice, listener, token) if continued is None else continued
        submission = _Submission(request, voice, queued, text, is_continued=continued is not None)
        if resumption is not None:
            queued.cell.playback.keep(request.id, RESUME_FRAMES)
        stream = SpeechStream(
            request,
            queued.cell.fanout.open(request.id),
            listener,
            self._stall_seconds,
            report_playback=lambda *report: submission.cell.playback.report(*report),
            # What is kept for another connection is released later.
            on_end=lambda: None if resumption is not None else self._end(submission),
            check=lambda seconds: self._check(submission, stream, seconds),
            storage_full=lambda: submission.cell.storage.full,
            refusal=lambda message: self._refusal(submission.cell, message),
            text_frames=None if text is None else lambda: text.frames,
            first_sample=0 if resumption is None else resumption.first_sample,
        )
        keep_seconds = 0.0 if resumption is None else RESUME_SECONDS
        self._expire_later(submission, stream)
        self._write_text(submission)
        if text is not None:
            self._texts.add(text)
        try:
            yield stream
        except asyncio.CancelledError:
            if self.requests.expired:
                listener.outcome = EndReason.ERROR
            if resumption is not None and resumption.is_discarded:
                keep_seconds = 0.0
            raise
        except ApiError:
            keep_seconds = 0.0
            raise  # The stream knows its outcome.
        except Exception:
            keep_seconds = 0.0
            listener.outcome = EndReason.ERROR
            raise
        finally:
            if submission.expiry is not None:
                submission.expiry.cancel()
            if submission.writing is not None:
                submission.writing.cancel()
            if text is not None:
                self._texts.discard(text)
            self._end(submission, keep_seconds)
            submission.cell.playback.forget(request.id)

    def _write_text(self, submission: _Submission) -> None:
        """Starts to write the text of a request to its stream in its cell as it arrives, until cancelled."""
        text, request = submission.text, submission.request
        if text is None:
            return

        if submission.writing is not None:
            submission.writing.cancel()
        submission.writing = asyncio.create_task(text.write(request.id, submission.cell.connector.append_text))

    def _check_texts(self) -> None:
        for text in self._texts:
            text.check()

    def spoken_characters(self, request: SpeechRequest, text: LiveText, frames: int) -> int:
        """Returns up to which character of its text the first frames of a request probably go.

        The model reads ahead of what it speaks, so that this follows from how long the speech of a text is.
        """
        durations = self.checkpoint.reading.durations
        spoken = spoken_characters(text.spoken, durations, request.voice, frames)
        return min(text.written_end(spoken), text.read_characters(frames))

    async def attach(self, request_id: str, token: str) -> tuple[Queued, SpeechRequest, LiveText] | None:
        """Returns a request that its client continues, and its text; None if there is none. Raises 503."""
        try:
            if (found := await self.cells.attach(request_id, token)) is None:
                return None
        except (ConnectorError, TimeoutError) as error:
            log.warning("request %s cannot be continued: %s", request_id, error, extra=logs.of_request(request_id))
            raise unavailable(UNREACHABLE, UNREACHABLE_SECONDS) from None
        queued, request, entries = found
        text = self.open_text(request.languages, needs_end=False)
        await asyncio.to_thread(text.restore, request.text, entries)
        if not request.streams_text and not text.ended:
            text.end()
        return queued, request, text

    def _end(self, submission: _Submission, delay: float = 0.0) -> None:
        """Releases a request, once, after a delay in seconds."""
        if submission.cell.fanout.close(submission.request.id):
            submission.cell.in_background(self._finish(submission, delay))

    async def _finish(self, submission: _Submission, delay: float) -> None:
        await asyncio.sleep(delay)
        if submission.voice is not None and submission.voice.on_prepared is not None:
            await self._pass_on(submission, submission.voice.on_prepared)
        await submission.cell.release(submission.queued.ticket)

    async def _pass_on(self, submission: _Submission, on_prepared: OnPrepared) -> None:
        """Passes on the voice that a talker has prepared, if it has."""
        request = submission.request
        try:
            async with asyncio.timeout(CONNECTOR_SECONDS):
                await on_prepared(await submission.cell.connector.published_voice(request.id))
        except (ConnectorError, TimeoutError) as error:
            log.warning("the voice of request %s is not kept: %s", request.id, error, extra=_fields(request))

    async def _check(self, submission: _Submission, stream: SpeechStream, seconds: float) -> None:
        """Raises `ApiError` if no more audio can arrive, after so many seconds without any.

        Submits a request again that Redis has lost, or that another cell can serve and its own cannot, and raises
        `Resubmitted`.
        """
        request, cell = submission.request, submission.cell
        has_begun = stream.sent if request.live else stream.started
        if not has_begun and not submission.is_continued and not cell.is_serving and self.cells.has_other(cell):
            log.warning("request %s is queued in another cell", request.id, extra=_fields(request))
            await self._submit_again(submission, stream, without=cell)
            raise Resubmitted
        try:
            exists = await cell.exists(request.id)
        except (ConnectorError, TimeoutError) as error:
            log.warning("request %s cannot be checked: %s", request.id, error, extra=_fields(request))
            return
        if exists:
            submission.is_missing = False
            submission.is_silent = await self._is_silent(submission, stream, seconds)
            # A stream that has begun may still be taken over by another replica, until the stall timeout.
            if not stream.started and (missing := cell.monitor.missing_stage_error()) is not None:
                raise missing
            return
        if cell.fanout.has_entries(request.id) or not submission.is_missing:
            # It was just withdrawn, or made room for another client's: its end has arrived, or is under way.
            submission.is_missing = True
            return
        if submission.is_continued:
            raise unavailable("Redis has lost this request; send its text again", 1, "request_lost")
        message = "Redis has lost request %s after %d frames: it is queued again"
        log.warning(message, request.id, stream.frames, extra=_fields(request))
        await self._submit_again(submission, stream)
        raise Resubmitted

    async def _is_silent(self, submission: _Submission, stream: SpeechStream, seconds: float) -> bool:
        """Returns whether a stream stands still, of which nothing has come for so long. Names it once."""
        if seconds < SILENT_SECONDS or submission.is_silent or not stream.listener.is_starved:
            return submission.is_silent and seconds >= SILENT_SECONDS
        request, cell = submission.request, submission.cell
        try:
            async with asyncio.timeout(CONNECTOR_SECONDS):
                progress = await cell.connector.progress(submission.queued.ticket)
        except (ConnectorError, TimeoutError):
            return False
        if not progress.is_served(ALIVE_SECONDS):
            return False
        self._metrics[m.SILENT_STREAMS].inc()
        message = "request %s: nothing for %.0f s after %d frames, although it is served: %s"
        log.warning(message, request.id, seconds, stream.frames, progress, extra=_fields(request))
        return True

    async def _submit_again(self, submission: _Submission, stream: SpeechStream, without: Cell | None = None) -> None:
        """Queues a request again, in a cell other than `without`, from its client's segment on. Raises 503."""
        before, request = submission.queued, submission.request
        if submission.text is not None:
            request = structs.replace(request, text=submission.text.text)
        request = structs.replace(request, resumes=stream.segment if stream.sent else None)
        queued = await self._queue(request, submission.voice, before.ticket.gateway, without)
        before.cell.playback.forget(request.id)
        if before.ticket.gateway:
            queued.cell.playback.keep(request.id, RESUME_FRAMES)
        queued.cell.fanout.open(request.id, before.cell.fanout.detach(request.id))
        if queued.cell is not before.cell:
            before.cell.in_background(before.cell.release(before.ticket))
        submission.request, submission.queued = request, queued
        if submission.text is not None:
            submission.text.restart(len(request.text))
            self._write_text(submission)
        self._expire_later(submission, stream)

    async def _admit(self, request: SpeechRequest, voice: Cloned | None, listener: Listener, gateway: str) -> Queued:
        """Submits a request. Raises 503 if it is not admitted."""
        started = time.perf_counter()
        try:
            self.check_open()
            queued = await self._queue(request, voice, gateway)
        except BaseException:
            listener.outcome = EndReason.REFUSED
            listener.tracker.settle(StreamOutcome.REFUSED)
            raise
        self._metrics[m.REDIS_SECONDS].labels(STAGE).observe(time.perf_counter() - started)
        return queued

    async def _queue(
        self, request: SpeechRequest, voice: Cloned | None, gateway: str, without: Cell | None = None
    ) -> Queued:
        """Queues a request, as `Cells.queue`. Raises 409 or 503."""
        data = None if voice is None else voice.data
        try:
            return await self.cells.queue(request, data, gateway, without)
        except QueueFull as error:
            refusal = unavailable(f"the service is at its limit: {error}", error.retry_after, error.code)
            self.refusals.add(request.client, refusal, request.live, monotonic())
            raise refusal from None
        except RequestExists:
            message = "request_id: is in use; send audio_offset to continue that utterance, or another request_id"
            raise ApiError(409, message, param="request_id", code="request_in_use") from None
        except (ConnectorError, TimeoutError) as error:
            log.warning("request %s could not be queued: %s", request.id, error, extra=_fields(request))
            raise unavailable(UNREACHABLE, UNREACHABLE_SECONDS) from None

    def _expire_later(self, submission: _Submission, stream: SpeechStream) -> None:
        """Withdraws a request after `max_queue_seconds` unless its audio has begun."""

        def expire() -> None:
            if not stream.started:
                submission.cell.in_background(self._withdraw(stream, submission.queued))

        if submission.expiry is not None:
            submission.expiry.cancel()
        submission.expiry = asyncio.get_running_loop().call_later(self.live.current.max_queue_seconds, expire)

    async def _withdraw(self, stream: SpeechStream, queued: Queued) -> None:
        """Removes a request from the queue unless a talker has claimed it. Its stream then ends as refused.

        It also ends if Redis cannot be reached: nobody knows then whether a talker has claimed the request.
        """
        cell = queued.cell
        try:
            async with asyncio.timeout(WITHDRAW_SECONDS):
                await cell.monitor.measure()
                withdrawn = await cell.connector.withdraw(queued.ticket)
        except (ConnectorError, TimeoutError) as error:
            request, reason = stream.request, str(error) or "no answer"
            log.warning("request %s could not be withdrawn: %s", request.id, reason, extra=_fields(request))
            withdrawn = not stream.started
        if withdrawn:
            # Of no effect if another cell has the request now.
            cell.fanout.refuse(queued.ticket.request_id)

    def _refusal(self, cell: Cell, message: str) -> ApiError:
        """Returns the error of a queued request that is refused: no Redis, a missing stage, or too much load."""
        if cell.monitor.unreachable:
            return unavailable(UNREACHABLE, UNREACHABLE_SECONDS)
        wait = cell.monitor.queue.expected_seconds
        busy = unavailable(f"the service is at its limit: {message}", wait, "queue_full")
        return cell.monitor.missing_stage_error(tolerated=0.0) or busy


def _fields(request: SpeechRequest) -> dict[str, str]:
    """Returns the `extra` of a log record that concerns a request."""
    return logs.of_request(request.id, request.traceparent)
