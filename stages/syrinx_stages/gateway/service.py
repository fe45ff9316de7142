"""The gateway of one process: admission, submission and release of requests, readiness and drain."""

import asyncio
import contextlib
import functools
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
from msgspec import structs

from syrinx_stages.connector.base import RETRY_SECONDS, ConnectorError, QueueFull, Ticket
from syrinx_stages.connector.redis_streams import RedisConnector
from syrinx_stages.contract import logs
from syrinx_stages.contract import metrics as m
from syrinx_stages.contract.api import SpeechFields
from syrinx_stages.contract.keys import StreamKind
from syrinx_stages.contract.messages import EndReason, PreparedVoice, SpeechRequest, TaskType
from syrinx_stages.contract.settings import GatewaySettings, StageConfig
from syrinx_stages.families import IMPLEMENTATION
from syrinx_stages.gateway import reference
from syrinx_stages.gateway.access import ApiKeys
from syrinx_stages.gateway.active_requests import ActiveRequests
from syrinx_stages.gateway.body import MAX_REFERENCE_BODY, Uploads
from syrinx_stages.gateway.catalog import Catalog
from syrinx_stages.gateway.client import Refusals, count_request
from syrinx_stages.gateway.durations import Durations
from syrinx_stages.gateway.errors import ApiError, bad_request, unavailable
from syrinx_stages.gateway.fanout import FanOut, PlaybackReporter
from syrinx_stages.gateway.fields import MAX_BODY
from syrinx_stages.gateway.kept_voices import Cloned, KeptVoices, OnPrepared, clone_prepared
from syrinx_stages.gateway.monitor import CONNECTOR_SECONDS, PipelineMonitor
from syrinx_stages.gateway.outcomes import OutcomeTracker, StreamOutcome, StreamOutcomes
from syrinx_stages.gateway.request import ParsedRequest, default_max_frames
from syrinx_stages.gateway.speech import Resubmitted, SpeechStream
from syrinx_stages.gateway.trace import SpeechSpan
from syrinx_stages.gateway.voices import KeptVoice, encode_embedding
from syrinx_stages.runtime.journal import KEEP_SECONDS
from syrinx_stages.runtime.metrics import Metrics, export_settings
from syrinx_stages.runtime.settings import LiveSettings
from syrinx_stages.runtime.storage import StorageMonitor
from syrinx_stages.runtime.tasks import Tasks

log = logging.getLogger(__name__)

STALL_SECONDS = 60.0
"""A request without progress for this long has failed."""
DECODERS = 2
"""References decoded at the same time: each takes up to 100 MB."""
WITHDRAW_SECONDS = RETRY_SECONDS
"""How long the gateway tries to remove a request that has waited for `max_queue_seconds` from the queue."""
RELEASE_DELAYS = (0.0, 0.5, 2.0, 5.0)
"""Seconds before each attempt to release a request; after the last its streams are left to expire."""
RELEASE_SECONDS = 1.0
"""How long a closing gateway waits for releases in progress."""
MAX_RELEASED = 1024
"""Number of releases to repeat after a reconnection, if they are not older than `KEEP_SECONDS`."""
UNREACHABLE, UNREACHABLE_SECONDS = "the service cannot reach its queue", 2.0
"""Message and `Retry-After` while Redis cannot be reached."""
STAGE = "gateway"


@dataclass
class _Submission:
    """A request in the queue. It has another ticket once it was submitted again."""

    request: SpeechRequest
    voice: Cloned | None
    ticket: Ticket
    expiry: asyncio.TimerHandle | None = None


class GatewayService:
    """State shared by all HTTP requests.

    Raises `CheckpointError` if the checkpoint's configuration is invalid, and `StartError` if an alias or the API keys
    are.
    """

    def __init__(
        self, config: StageConfig, connector: RedisConnector, metrics: Metrics, stall_seconds: float = STALL_SECONDS
    ) -> None:
        self.live = LiveSettings[GatewaySettings](config.gateway, config.settings_generation)
        self._tasks = Tasks()
        self.failed = self._tasks.failed
        self.admin_targets = (self,)
        self.created = int(time.time())
        self.checkpoint = IMPLEMENTATION.describe(config.model)
        self.catalog = Catalog(self.checkpoint, config.model_name, config.api)
        self._tokenizer = IMPLEMENTATION.load_tokenizer(config.model)
        self._hosts = config.reference_hosts
        self._connector = connector
        self._metrics = metrics
        self.tracer = metrics.tracer
        self._stall_seconds = stall_seconds
        self.api_keys = None if config.api_keys_file is None else ApiKeys(config.api_keys_file, metrics)
        self.cors_origins = config.cors_origins
        self.tls = config.tls
        self.refusals = Refusals()
        default_frames = default_max_frames(self.checkpoint)
        self._durations = Durations()
        self.outcomes = StreamOutcomes(metrics, self.live, self.checkpoint.task_type, default_frames)
        self.monitor = PipelineMonitor(connector, metrics, self.live)
        self._storage = StorageMonitor(connector, metrics[m.REDIS_FULL].labels("gateway").set)
        self._reader = connector.reader()
        self._fanout = FanOut(self._reader)
        self._playback_reporter = PlaybackReporter(connector)
        self.requests = ActiveRequests()
        self._closed: str | None = "starting"
        """Why new requests are refused; None while the gateway is open."""
        self._releases: set[asyncio.Task[None]] = set()
        self._released: deque[tuple[float, Ticket]] = deque(maxlen=MAX_RELEASED)
        """The last releases and their times: a fail-over may lose them, and the stages would serve the requests."""
        connector.on_reconnect(self._release_again)
        self.voices = KeptVoices(connector.voices(), self.catalog, config.voices, self.decode_audio)
        # Proxies from the environment would bypass the list of allowed hosts.
        self._http = httpx.AsyncClient(trust_env=False, timeout=reference.FETCH_SECONDS)
        cloning = self.checkpoint.task_type is TaskType.BASE
        self.max_body = MAX_REFERENCE_BODY if cloning else MAX_BODY
        """Bytes of a request's body."""
        self.uploads = Uploads()
        self._decoders = ThreadPoolExecutor(DECODERS, "reference")

    # Process lifecycle --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts the background tasks. If Redis cannot be reached yet, the gateway is not ready."""
        for gauge in (m.LIVE_STREAMS, m.QUEUE_LENGTH, m.QUEUE_AGE, m.EXPECTED_WAIT):
            self._metrics[gauge].set(0)
        # Both series must exist from the start: `rate` ignores the first value of a series.
        for outcome in (EndReason.ERROR, EndReason.REFUSED):
            self._metrics[m.REQUESTS].labels(self.checkpoint.task_type, outcome)
        self.outcomes.start()
        for forwarded in ("answered", "fallback", "failed"):
            self._metrics[m.CANARY_FORWARDS].labels(forwarded)
        self.settings_changed()
        await self.monitor.measure()
        for background in (self._fanout, self._playback_reporter, self.monitor, self._storage, self.api_keys):
            if background is not None:
                self._tasks.spawn(background.run())
        self._closed = None

    def ready(self) -> str | None:
        """None if the gateway is ready, otherwise the reason it is not."""
        draining = "draining" if self.requests.draining else None
        return self._closed or draining or self._tasks.failure or self._storage.full or self.monitor.unready()

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
        if self._releases:
            await asyncio.wait(self._releases, timeout=RELEASE_SECONDS)
        for task in self._releases:
            task.cancel()
        await asyncio.gather(*self._releases, return_exceptions=True)
        await self._tasks.cancel()
        await self._reader.close()
        await self._http.aclose()
        self._decoders.shutdown(wait=False, cancel_futures=True)

    # Requests -----------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raises 503 unless new requests are accepted."""
        if self._closed is not None:
            raise unavailable(f"this gateway accepts no requests: {self._closed}", 1)
        if (error := self.monitor.missing_stage_error()) is not None:
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
        url = reference.check_url(ref_audio, self._hosts)
        try:
            async with asyncio.timeout(reference.FETCH_SECONDS):
                data = await reference.fetch(self._http, url)
        except (httpx.HTTPError, TimeoutError) as error:
            raise bad_request(reference.FIELD, f"cannot be fetched: {str(error) or type(error).__name__}") from None
        return await decode(reference.decode_audio, data)

    def input_tokens(self, request: SpeechRequest) -> int:
        """Number of text tokens in the request's texts."""
        texts = (request.text, request.instructions, request.reference_text)
        return sum(len(self._tokenizer.encode(text)) for text in texts if text)

    @contextlib.asynccontextmanager
    async def open_stream(
        self,
        request: SpeechRequest,
        voice: Cloned | None,
        accepted: float,
        speed: float = 1.0,
        span: SpeechSpan | None = None,
    ) -> AsyncIterator[SpeechStream]:
        """Submits a request and yields its stream; releases the request on exit. `accepted` is in monotonic seconds.

        voice: what the request clones. speed: at which the client plays the audio. span: that of the request, if it is
        traced.

        Raises 503 if the request is not admitted. One that no talker claims within `max_queue_seconds` ends as refused.
        """
        if request.guard is not None:
            request = structs.replace(request, guard=self._durations.guard(request))
        tracker = self.outcomes.open(request, accepted)
        submission = _Submission(request, voice, await self._admit(request, voice, tracker))
        stream = SpeechStream(
            request,
            self._fanout.open(request.id),
            accepted,
            speed,
            self._stall_seconds,
            self._metrics,
            tracker,
            report_playback=self._playback_reporter.report,
            on_end=lambda: self._end(submission),
            check=lambda: self._check(submission, stream),
            storage_full=lambda: self._storage.full,
            refusal=self._refusal,
            span=span,
        )
        self._expire_later(submission, stream)
        try:
            yield stream
        except asyncio.CancelledError:
            if self.requests.expired:
                stream.outcome = EndReason.ERROR
            raise
        except ApiError:
            raise  # The stream knows its outcome.
        except Exception:
            stream.outcome = EndReason.ERROR
            raise
        finally:
            if submission.expiry is not None:
                submission.expiry.cancel()
            self._end(submission)
            self._playback_reporter.forget(request.id)
            if stream.reason is EndReason.STOP:
                self._durations.learn(request, stream.generated_frames)
            stream.record_outcome()

    def _end(self, submission: _Submission) -> None:
        """Releases a request, once."""
        if self._fanout.close(submission.request.id):
            self._in_background(self._finish(submission))

    async def _finish(self, submission: _Submission) -> None:
        if submission.voice is not None and submission.voice.on_prepared is not None:
            await self._pass_on(submission.request, submission.voice.on_prepared)
        await self._release(submission.ticket)

    async def _pass_on(self, request: SpeechRequest, on_prepared: OnPrepared) -> None:
        """Passes on the voice that a talker has prepared, if it has."""
        try:
            async with asyncio.timeout(CONNECTOR_SECONDS):
                await on_prepared(await self._connector.published_voice(request.id))
        except (ConnectorError, TimeoutError) as error:
            log.warning("the voice of request %s is not kept: %s", request.id, error, extra=_fields(request))

    async def _check(self, submission: _Submission, stream: SpeechStream) -> None:
        """Raises `ApiError` if no more audio can arrive.

        Submits a request again that Redis has lost, and raises `Resubmitted`.
        """
        request = submission.request
        try:
            async with asyncio.timeout(CONNECTOR_SECONDS):
                exists = await self._connector.last_position(request.id, StreamKind.AUDIO) is not None
        except (ConnectorError, TimeoutError) as error:
            log.warning("request %s cannot be checked: %s", request.id, error, extra=_fields(request))
            return
        if exists:
            # A stream that has begun may still be taken over by another replica, until the stall timeout.
            if not stream.started and (missing := self.monitor.missing_stage_error()) is not None:
                raise missing
            return
        if self._fanout.has_entries(request.id):
            # It was just withdrawn, or made room for another client's: its end has arrived.
            return
        message = "Redis has lost request %s after %d frames: it is queued again"
        log.warning(message, request.id, stream.frames, extra=_fields(request))
        self._playback_reporter.forget(request.id)
        self._fanout.restart(request.id)
        submission.ticket = await self._queue(request, submission.voice)
        self._expire_later(submission, stream)
        raise Resubmitted

    async def _admit(self, request: SpeechRequest, voice: Cloned | None, tracker: OutcomeTracker) -> Ticket:
        """Submits a request. Raises 503 if it is not admitted."""
        try:
            self.check_open()
            return await self._submit(request, voice)
        except BaseException:
            tracker.settle(StreamOutcome.REFUSED)
            raise

    async def _submit(self, request: SpeechRequest, voice: Cloned | None) -> Ticket:
        started, ticket = time.perf_counter(), None
        try:
            ticket = await self._queue(request, voice)
        finally:
            if ticket is None:
                self.count_refusal(request.task_type)
        self._metrics[m.REDIS_SECONDS].labels(STAGE).observe(time.perf_counter() - started)
        return ticket

    async def _queue(self, request: SpeechRequest, voice: Cloned | None) -> Ticket:
        """Queues a request. Raises 503. If the caller is cancelled, the request is released."""
        data = None if voice is None else voice.data
        submit = asyncio.create_task(self._connector.submit(request, self.live.current, data))
        ticket: Ticket | None = None
        try:
            async with asyncio.timeout(CONNECTOR_SECONDS):
                ticket = await asyncio.shield(submit)
        except QueueFull as error:
            refusal = unavailable(f"the service is at its limit: {error}", error.retry_after, error.code)
            self.refusals.add(request.client, refusal, request.live, time.monotonic())
            raise refusal from None
        except (ConnectorError, TimeoutError) as error:
            log.warning("request %s could not be queued: %s", request.id, error, extra=_fields(request))
            raise unavailable(UNREACHABLE, UNREACHABLE_SECONDS) from None
        finally:
            if ticket is None:
                # The request may be queued all the same: release it, so that no stage serves it.
                self._in_background(self._release_when_submitted(submit))
        return ticket

    def _expire_later(self, submission: _Submission, stream: SpeechStream) -> None:
        """Withdraws a request after `max_queue_seconds` unless its audio has begun."""

        def expire() -> None:
            if not stream.started:
                self._in_background(self._withdraw(stream, submission.ticket))

        if submission.expiry is not None:
            submission.expiry.cancel()
        submission.expiry = asyncio.get_running_loop().call_later(self.live.current.max_queue_seconds, expire)

    async def _withdraw(self, stream: SpeechStream, ticket: Ticket) -> None:
        """Removes a request from the queue unless a talker has claimed it. Its stream then ends as refused.

        It also ends if Redis cannot be reached: nobody knows then whether a talker has claimed the request.
        """
        try:
            async with asyncio.timeout(WITHDRAW_SECONDS):
                await self.monitor.measure()
                withdrawn = await self._connector.withdraw(ticket)
        except (ConnectorError, TimeoutError) as error:
            request, reason = stream.request, str(error) or "no answer"
            log.warning("request %s could not be withdrawn: %s", request.id, reason, extra=_fields(request))
            withdrawn = not stream.started
        if withdrawn:
            self._fanout.refuse(ticket.request_id)

    def _refusal(self, message: str) -> ApiError:
        """Returns the error of a queued request that is refused: no Redis, a missing stage, or too much load."""
        if self.monitor.unreachable:
            return unavailable(UNREACHABLE, UNREACHABLE_SECONDS)
        busy = unavailable(f"the service is at its limit: {message}", self.monitor.expected_wait, "queue_full")
        return self.monitor.missing_stage_error(tolerated=0.0) or busy

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a release independently of the request's task, which may be cancelled."""
        task = asyncio.create_task(work)
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    def _release_again(self) -> None:
        recent = [ticket for at, ticket in self._released if time.monotonic() - at < KEEP_SECONDS]
        self._released.clear()
        for ticket in recent:
            self._in_background(self._release(ticket))

    async def _release_when_submitted(self, submit: asyncio.Task[Ticket]) -> None:
        """Releases a request that is queued, or will be, although its caller has left: no stage shall serve it."""
        with contextlib.suppress(ConnectorError):
            await self._release(await submit)

    async def _release(self, ticket: Ticket) -> None:
        for delay in RELEASE_DELAYS:
            await asyncio.sleep(delay)
            try:
                await self._connector.release(ticket)
                self._released.append((time.monotonic(), ticket))
                return
            except ConnectorError as error:
                fields = logs.of_request(ticket.request_id)
                log.warning("request %s could not be released: %s", ticket.request_id, error, extra=fields)


def _fields(request: SpeechRequest) -> dict[str, str]:
    """Returns the `extra` of a log record that concerns a request."""
    return logs.of_request(request.id, request.traceparent)
