"""The gateway of one process: every request's way to the stages and back, admission, readiness, drain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import httpx

from syrinx_stages.connector.base import AdmissionLimits, Connector, ConnectorError, QueueFull, Ticket
from syrinx_stages.contract import metrics as m
from syrinx_stages.contract.keys import Group, StreamKind
from syrinx_stages.contract.messages import SpeechRequest
from syrinx_stages.contract.settings import GatewaySettings, StageConfig
from syrinx_stages.families import IMPLEMENTATION
from syrinx_stages.gateway import reference
from syrinx_stages.gateway.body import LARGE_BODIES
from syrinx_stages.gateway.errors import ApiError, bad, unavailable
from syrinx_stages.gateway.fanout import FanOut, PlaybackReporter
from syrinx_stages.gateway.speech import Speech
from syrinx_stages.model.config import read_model_config
from syrinx_stages.model.describe import checkpoint_directory
from syrinx_stages.model.tokenizer import load_tokenizer
from syrinx_stages.runtime.metrics import Metrics, export_settings
from syrinx_stages.runtime.settings import LiveSettings
from syrinx_stages.runtime.tasks import Tasks

log = logging.getLogger(__name__)

STALL_SECONDS = 60.0
"""A request whose stages are silent for this long has failed."""
CONNECTOR_SECONDS = 5.0
"""The connector must answer within this time."""
WATCH_SECONDS = 1.0
"""How often the queue is measured, which also tells whether Redis is there."""
RELEASE_DELAYS = (0.0, 0.5, 2.0, 5.0)
"""Pauses before each attempt to release a request; after the last its streams are left to expire."""
UNSERVED_RETRY_SECONDS = 5.0
"""Hint to clients while a stage is missing."""
SERVED_SECONDS = 5.0
"""A stage that has looked for work within this time is there."""
STAGE = "gateway"


class GatewayService:
    """Shared by all HTTP requests. Raises `CheckpointError` if the checkpoint's configs cannot be read."""

    def __init__(
        self, config: StageConfig, connector: Connector, metrics: Metrics, stall_seconds: float = STALL_SECONDS
    ) -> None:
        self.live = LiveSettings[GatewaySettings](config.gateway, config.settings_generation)
        self._tasks = Tasks()
        self.failed = self._tasks.failed
        self.model_name = config.model_name
        self.created = int(time.time())
        self.checkpoint = IMPLEMENTATION.describe(config.model)
        directory = checkpoint_directory(config.model)
        self._tokenizer = load_tokenizer(directory, read_model_config(directory))
        self._hosts = config.reference_hosts
        self._connector = connector
        self._metrics = metrics
        self._stall_seconds = stall_seconds
        self._fanout: FanOut | None = None
        self._playback_reporter = PlaybackReporter(connector)
        self.leaving = False
        """Clients should go to another gateway."""
        self._unready: str | None = "starting"
        self._unreachable: str | None = None
        self._missing: str | None = "talker"
        """A stage that nobody has been found to be of."""
        self._missing_since: float | None = time.monotonic()
        self._was_served = False
        """Talker and codec have been there."""
        self._active = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._releases: set[asyncio.Task[None]] = set()
        self._http: httpx.AsyncClient | None = None
        self.large_bodies = asyncio.Semaphore(LARGE_BODIES)

    # Life of the process ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begins to follow streams. Redis need not be there yet: then the gateway is not ready."""
        # Environment proxies would decide by their own rules which hosts can be reached.
        self._http = httpx.AsyncClient(trust_env=False, timeout=reference.FETCH_SECONDS)
        self._reader = self._connector.reader()
        self._fanout = FanOut(self._reader)
        for gauge in (m.LIVE_STREAMS, m.QUEUE_LENGTH, m.QUEUE_AGE):
            self._metrics[gauge].set(0)
        self.settings_changed()
        await self._measure()
        self._tasks.spawn(self._fanout.run())
        self._tasks.spawn(self._playback_reporter.run())
        self._tasks.spawn(self._watch())
        self._unready = None

    def ready(self) -> str | None:
        """None if requests are welcome, else why not.

        Before the first time there must be a talker and a codec of this gateway's generation. Later they may go away:
        requests wait for them, for `max_queue_seconds` at the most.
        """
        leaving = "draining" if self.leaving else None
        unserved = None if self._was_served else f"no {self._missing} reads this model's requests yet"
        return self._unready or leaving or self._tasks.failure or self._unreachable or unserved

    def settings_changed(self) -> None:
        """Admission reads the settings at every request: here they are only shown."""
        export_settings(self._metrics, STAGE, self.live)

    async def drain(self, seconds: float) -> None:
        """Waits until nobody is being served, for `seconds` at the most.

        No longer ready, it gets no new clients; those on kept connections are served, and sent on with their answer.
        """
        self.leaving = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._quiet.wait()
                await asyncio.gather(*self._releases)

    async def close(self) -> None:
        """Ends every task and connection of the gateway; the connector itself is its owner's."""
        self._unready = "closed"
        for task in self._releases:
            task.cancel()
        await asyncio.gather(*self._releases, return_exceptions=True)
        await self._tasks.cancel()
        if self._fanout is not None:
            await self._reader.close()
        if self._http is not None:
            await self._http.aclose()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            await self._measure()

    async def _measure(self) -> None:
        try:
            async with asyncio.timeout(CONNECTOR_SECONDS):
                queue = await self._connector.queue(Group.TALKERS)
                missing = await self._missing_stage()
        except (ConnectorError, TimeoutError) as error:
            self._unreachable = f"Redis cannot be reached: {error or 'no answer'}"
            return
        self._unreachable = None
        self._metrics[m.QUEUE_LENGTH].set(queue.length)
        self._metrics[m.QUEUE_AGE].set(queue.oldest_seconds)
        if missing is None:
            self._was_served, self._missing_since = True, None
        elif self._missing_since is None:
            self._missing_since = time.monotonic()
        self._missing = missing

    async def _missing_stage(self) -> str | None:
        for group, stage in ((Group.TALKERS, "talker"), (Group.CODECS, "codec")):
            if not await self._connector.has_live_consumer(group, SERVED_SECONDS):
                return stage
        return None

    def _unserved(self) -> ApiError | None:
        """The 503 for requests that nobody is there for, once a stage has been missing for longer than they may wait.

        The queue's age alone would not do: it begins anew when those that waited have been sent away.
        """
        missing = 0.0 if self._missing_since is None else time.monotonic() - self._missing_since
        if missing <= self.live.current.max_queue_seconds:
            return None
        message = f"no {self._missing} has read this model's requests for {missing:.0f} s"
        return unavailable(message, UNSERVED_RETRY_SECONDS, "unserved")

    # Requests -----------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raises 503 unless new requests are taken."""
        if self._unready is not None:
            raise unavailable(f"this gateway takes no requests: {self._unready}", 1)
        if (unserved := self._unserved()) is not None:
            raise unserved

    def refused(self, task_type: str = "unknown") -> None:
        """Counts a request that never reached the stages."""
        self._metrics[m.REQUESTS].labels(task_type, "refused").inc()

    async def reference(self, ref_audio: str) -> bytes:
        """The PCM of a reference. Raises 400 or 413."""
        if not reference.is_url(ref_audio):
            return await asyncio.to_thread(lambda: reference.decode(reference.unpack(ref_audio)))
        url = reference.check_url(ref_audio, self._hosts)
        assert self._http is not None
        try:
            async with asyncio.timeout(reference.FETCH_SECONDS):
                data = await reference.fetch(self._http, url)
        except (httpx.HTTPError, TimeoutError) as error:
            raise bad(reference.FIELD, f"cannot be fetched: {error or type(error).__name__}") from None
        return await asyncio.to_thread(reference.decode, data)

    def input_tokens(self, request: SpeechRequest) -> int:
        """Text tokens of everything the client sent to be read."""
        texts = (request.text, request.instructions, request.reference_text)
        return sum(len(self._tokenizer.encode(text)) for text in texts if text)

    @contextlib.asynccontextmanager
    async def speak(self, request: SpeechRequest, pcm: bytes | None, accepted: float) -> AsyncIterator[Speech]:
        """Submits the request and follows it; on the way out it is released. `accepted` is in monotonic seconds.

        Raises 503 if it is not admitted.
        """
        self.check_open()
        self._active += 1
        self._quiet.clear()
        try:
            ticket = await self._submit(request, pcm)
            async with self._followed(request, ticket, accepted) as speech:
                yield speech
        finally:
            self._active -= 1
            if not self._active:
                self._quiet.set()

    @contextlib.asynccontextmanager
    async def _followed(self, request: SpeechRequest, ticket: Ticket, accepted: float) -> AsyncIterator[Speech]:
        fanout = self._fanout
        assert fanout is not None
        released = False

        def release() -> None:
            nonlocal released
            if not released:
                released = True
                fanout.close(request.id)
                self._hold(self._release(ticket))

        inbox = fanout.open(request.id)
        speech = Speech(
            request,
            inbox,
            accepted,
            self._stall_seconds,
            self._metrics,
            report_playback=self._playback_reporter.report,
            arrived=release,
            unrecoverable=self._unrecoverable,
        )
        try:
            yield speech
        finally:
            release()
            speech.account()

    async def _submit(self, request: SpeechRequest, pcm: bytes | None) -> Ticket:
        settings = self.live.current
        admission = AdmissionLimits(settings.max_queue, settings.max_queue_seconds)
        started = time.perf_counter()
        submit = asyncio.create_task(self._connector.submit(request, admission, pcm))
        try:
            async with asyncio.timeout(CONNECTOR_SECONDS):
                ticket = await asyncio.shield(submit)
        except QueueFull as error:
            self.refused(request.task_type)
            raise unavailable(f"the service is at its limit: {error}", error.retry_after, "queue_full") from None
        except (ConnectorError, TimeoutError) as error:
            log.warning("request %s could not be queued: %s", request.id, error)
            self.refused(request.task_type)
            raise unavailable("the service cannot reach its queue", 2) from None
        finally:
            if not submit.done():
                # Nobody waits any more, but it may yet be queued: then the stages must not work for nobody.
                self._hold(self._release_when_submitted(submit))
        self._metrics[m.REDIS_SECONDS].labels(STAGE).observe(time.perf_counter() - started)
        return ticket

    async def _unrecoverable(self, request_id: str, begun: bool) -> ApiError | None:
        """Why a request's audio can no longer be expected, as its answer."""
        try:
            if await self._connector.last_position(request_id, StreamKind.AUDIO) is None:
                return unavailable("Redis has lost this request; send it again", 1, "lost")
        except ConnectorError:
            return None
        # What has begun is owed to its listener for as long as he may be left without audio.
        return None if begun else self._unserved()

    def _hold(self, work: Coroutine[Any, Any, None]) -> None:
        """Keeps a release running, whoever started it."""
        task = asyncio.create_task(work)
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _release_when_submitted(self, submit: asyncio.Task[Ticket]) -> None:
        with contextlib.suppress(ConnectorError):
            await self._release(await submit)

    async def _release(self, ticket: Ticket) -> None:
        for delay in RELEASE_DELAYS:
            await asyncio.sleep(delay)
            try:
                return await self._connector.release(ticket)
            except ConnectorError as error:
                log.warning("request %s could not be released: %s", ticket.request_id, error)
