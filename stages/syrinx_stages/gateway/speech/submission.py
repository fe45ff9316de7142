"""A submitted request, from a cell's queue to its release: what a gateway does for it besides sending its audio."""

import asyncio
import logging

from msgspec import Struct, structs

from syrinx_stages.connector.base import RETRY_SECONDS, ConnectorError, QueueFull, RequestExists, StreamEntry
from syrinx_stages.contract import logs
from syrinx_stages.contract import metrics as m
from syrinx_stages.contract.messages import Segment, SpeechRequest
from syrinx_stages.contract.settings import GatewaySettings
from syrinx_stages.gateway.cells.cell import Cell, Queued
from syrinx_stages.gateway.cells.cells import Cells
from syrinx_stages.gateway.cells.monitor import ALIVE_SECONDS, CONNECTOR_SECONDS
from syrinx_stages.gateway.clients.client import Refusals
from syrinx_stages.gateway.errors import ApiError, unavailable
from syrinx_stages.gateway.speech.listener import Listener
from syrinx_stages.gateway.speech.live_text import LiveText
from syrinx_stages.gateway.voices.kept_voices import Cloned, OnPrepared
from syrinx_stages.runtime.clock import monotonic
from syrinx_stages.runtime.settings import LiveSettings
from syrinx_stages.runtime.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

SILENT_SECONDS = 5.0
"""A stream of which nothing comes for this long, and whose client has nothing left to play, is named."""
WITHDRAW_SECONDS = RETRY_SECONDS
"""How long the gateway tries to remove a request that has waited for `max_queue_seconds` from the queue."""
RESUME_SECONDS = 15.0
"""How long an utterance with a `request_id` is kept for a client that has lost its connection..."""
RESUME_FRAMES = 87
"""...and how many of the frames before those that were sent: what the buffers of a connection hold, 7 s."""
UNREACHABLE, UNREACHABLE_SECONDS = "the service cannot reach its queue", 2.0
"""Message and `Retry-After` while Redis cannot be reached."""


class Resumption(Struct):
    """A request that its client may continue on another connection."""

    token: str = ""
    """Of this connection: only the last one may release the request. Empty for a request that cannot be continued."""
    request_id: str = ""
    """By which the client knows it."""
    queued: Queued | None = None
    """The request to continue; None for a new one."""
    first_sample: int = 0
    """Number of the first sample that the client has not got."""
    is_discarded: bool = False
    """The client does not come back for it."""


class Submissions:
    """Queues requests in the cells of a gateway."""

    def __init__(self, cells: Cells, live: LiveSettings[GatewaySettings], refusals: Refusals, metrics: Metrics) -> None:
        self.cells = cells
        self.live = live
        self.silent_streams = metrics[m.SILENT_STREAMS]
        self.texts: set[LiveText] = set()
        """Of the requests in progress whose text is not complete."""
        self._refusals = refusals
        for cell in cells:
            cell.connector.on_reconnect(self._check_texts)

    async def queue(
        self, request: SpeechRequest, voice: Cloned | None, gateway: str, without: Cell | None = None
    ) -> Queued:
        """Queues a request, as `Cells.queue`. Raises 409 or 503."""
        data = None if voice is None else voice.data
        try:
            return await self.cells.queue(request, data, gateway, without)
        except QueueFull as error:
            refusal = unavailable(f"the service is at its limit: {error}", error.retry_after, error.code)
            self._refusals.add(request.client, refusal, request.live, monotonic())
            raise refusal from None
        except RequestExists:
            message = "request_id: is in use; send audio_offset to continue that utterance, or another request_id"
            raise ApiError(409, message, param="request_id", code="request_in_use") from None
        except (ConnectorError, TimeoutError) as error:
            log.warning("request %s could not be queued: %s", request.id, error, extra=_fields(request))
            raise unavailable(UNREACHABLE, UNREACHABLE_SECONDS) from None

    def _check_texts(self) -> None:
        for text in self.texts:
            text.check()


class Submission:
    """A request in a queue: in another one, or with another ticket, once it was submitted again."""

    def __init__(
        self,
        submissions: Submissions,
        queued: Queued,
        listener: Listener,
        voice: Cloned | None,
        text: LiveText | None,
        resumption: Resumption,
    ) -> None:
        """Starts to write its text, and withdraws it later unless it is claimed. text: if it has `streams_text`."""
        self.audio = asyncio.Queue[StreamEntry]()
        """Entries of its audio that its stream has not read."""
        queued.cell.fanout.open(queued.request.id, self.audio)
        self.started = False
        """Audio has arrived."""
        self._all = submissions
        self._queued = queued
        self._listener = listener
        self._voice = voice
        self._text = text
        self._is_kept = bool(resumption.token)
        """Another connection may continue it."""
        self._is_continued = resumption.queued is not None
        """It was submitted by another connection: what it clones is not known here."""
        self._expiry: asyncio.TimerHandle
        self._writing: asyncio.Task[None] | None = None
        """Writes the text to the cell."""
        self._is_missing = False
        """Redis did not have it at the last check."""
        self._is_silent = False
        """It was named as a stream that stands still."""
        if self._is_kept:
            queued.cell.playback.keep(queued.request.id, RESUME_FRAMES)
        self._begin()
        if text is not None:
            submissions.texts.add(text)

    @property
    def request(self) -> SpeechRequest:
        """The request, as it was submitted last."""
        return self._queued.request

    @property
    def cell(self) -> Cell:
        """The cell that has the request."""
        return self._queued.cell

    def close(self, keep_seconds: float) -> None:
        """Ends what runs beside its stream, and releases the request after so many seconds."""
        self._pause()
        if self._text is not None:
            self._all.texts.discard(self._text)
        self._release(keep_seconds)
        self.cell.playback.forget(self.request.id)

    # What the stream needs ------------------------------------------------------------------------------------

    def report(self, frames: int, segment: Segment | None) -> None:
        """Reports to the talker how many frames its client has got, up to within a segment."""
        self.cell.playback.report(self.request.id, frames, 0 if segment is None else segment.frames)

    def generated(self) -> None:
        """Releases the request, of which the stages have ended the audio, unless another connection may ask for it."""
        if not self._is_kept:
            self._release()

    def storage_full(self) -> str | None:
        """Returns why no stage can write audio, or None."""
        return self.cell.storage.full

    def text_frames(self, segment: Segment | None) -> float | None:
        """Returns how many frames may exist by the text so far, see `LiveText`; None for a whole text."""
        return None if self._text is None else self._text.frames(segment)

    def pause_after(self, segment: Segment) -> float:
        """Returns the seconds of silence after a segment that another one follows."""
        # That of text that streams in may be known by its number only, as the first one always is.
        return segment.pause if self._text is None else self._text.segments[segment.number].pause

    def refusal(self, message: str) -> ApiError:
        """Returns the error of a queued request that is refused: no Redis, a missing stage, or too much load."""
        monitor = self.cell.monitor
        if monitor.unreachable:
            return unavailable(UNREACHABLE, UNREACHABLE_SECONDS)
        busy = unavailable(f"the service is at its limit: {message}", monitor.queue.expected_seconds, "queue_full")
        return monitor.missing_stage_error(tolerated=0.0) or busy

    async def check(self, seconds: float, segment: Segment | None) -> bool:
        """Raises `ApiError` if no more audio can arrive, after so many seconds without any within a segment.

        Submits a request again that Redis has lost, or that another cell can serve and its own cannot. Returns whether
        it did: the audio is then generated again from that segment on, or from the start if the client has none.
        """
        request, cell = self.request, self.cell
        has_begun = self._listener.may_have_audio if request.live else self.started
        if not has_begun and not self._is_continued and not cell.is_serving and self._all.cells.has_other(cell):
            log.warning("request %s is queued in another cell", request.id, extra=_fields(request))
            await self._submit_again(segment, without=cell)
            return True
        try:
            exists = await cell.exists(request.id)
        except (ConnectorError, TimeoutError) as error:
            log.warning("request %s cannot be checked: %s", request.id, error, extra=_fields(request))
            return False
        if exists:
            self._is_missing = False
            await self._name_if_silent(seconds)
            # A stream that has begun may still be taken over by another replica, until the stall timeout.
            if not self.started and (missing := cell.monitor.missing_stage_error()) is not None:
                raise missing
            return False
        if not (self._is_missing and self.audio.empty()):
            # It was just withdrawn, or made room for another client's: its end has arrived, or is under way.
            self._is_missing = True
            return False
        if self._is_continued:
            raise unavailable("Redis has lost this request; send its text again", 1, "request_lost")
        message = "Redis has lost request %s after %d frames: it is queued again"
        log.warning(message, request.id, self._listener.frames, extra=_fields(request))
        await self._submit_again(segment)
        return True

    # How that is done -----------------------------------------------------------------------------------------

    async def _name_if_silent(self, seconds: float) -> None:
        """Names a stream that stands still, of which nothing has come for so long, once."""
        if seconds < SILENT_SECONDS:
            self._is_silent = False
        if seconds < SILENT_SECONDS or self._is_silent or not self._listener.is_starved:
            return
        try:
            async with asyncio.timeout(CONNECTOR_SECONDS):
                progress = await self.cell.connector.progress(self._queued.ticket)
        except (ConnectorError, TimeoutError):
            return
        if self._is_silent or not progress.is_served(ALIVE_SECONDS):
            return
        self._is_silent = True
        self._all.silent_streams.inc()
        message = "request %s: nothing for %.0f s after %d frames, although it is served: %s"
        log.warning(message, self.request.id, seconds, self._listener.frames, progress, extra=_fields(self.request))

    async def _submit_again(self, segment: Segment | None, without: Cell | None = None) -> None:
        """Queues a request again, in a cell other than `without`, from its client's segment on. Raises 503."""
        before, request = self._queued, self.request
        if self._text is not None:
            request = structs.replace(request, text=self._text.text)
        has_audio = self._listener.may_have_audio
        request = structs.replace(request, resumes=segment if has_audio else None)
        queued = await self._all.queue(request, self._voice, before.ticket.gateway, without)
        before.cell.playback.forget(request.id)
        if before.ticket.gateway:
            queued.cell.playback.keep(request.id, RESUME_FRAMES)
        before.cell.fanout.close(request.id)
        while not self.audio.empty():
            self.audio.get_nowait()
        queued.cell.fanout.open(request.id, self.audio)
        if queued.cell is not before.cell:
            before.cell.in_background(before.cell.release(before.ticket))
        self._queued, self.started = queued, self.started and has_audio
        if self._text is not None:
            self._text.restart(len(request.text))
        self._pause()
        self._begin()

    def _begin(self) -> None:
        """Writes the text to its stream in its cell as it arrives, and expires the request if no talker claims it."""
        if self._text is not None:
            self._writing = asyncio.create_task(self._text.write(self.request.id, self.cell.connector.append_text))
        seconds = self._all.live.current.max_queue_seconds
        self._expiry = asyncio.get_running_loop().call_later(seconds, self._expire)

    def _pause(self) -> None:
        self._expiry.cancel()
        if self._writing is not None:
            self._writing.cancel()

    def _expire(self) -> None:
        if not self.started:
            self.cell.in_background(self._withdraw(self._queued))

    async def _withdraw(self, queued: Queued) -> None:
        """Removes a request from the queue unless a talker has claimed it. Its stream then ends as refused.

        It also ends if Redis cannot be reached: then it is unknown whether a talker has claimed the request.
        """
        cell = queued.cell
        try:
            async with asyncio.timeout(WITHDRAW_SECONDS):
                await cell.monitor.measure()
                withdrawn = await cell.connector.withdraw(queued.ticket)
        except (ConnectorError, TimeoutError) as error:
            request, reason = self.request, str(error) or "no answer"
            log.warning("request %s could not be withdrawn: %s", request.id, reason, extra=_fields(request))
            withdrawn = not self.started
        if withdrawn:
            # Of no effect if another cell has the request now.
            cell.fanout.refuse(queued.ticket.request_id)

    def _release(self, delay: float = 0.0) -> None:
        """Releases a request, once, after a delay in seconds."""
        if self.cell.fanout.close(self.request.id):
            self.cell.in_background(self._finish(delay))

    async def _finish(self, delay: float) -> None:
        await asyncio.sleep(delay)
        if self._voice is not None and self._voice.on_prepared is not None:
            await self._pass_on(self._voice.on_prepared)
        await self.cell.release(self._queued.ticket)

    async def _pass_on(self, on_prepared: OnPrepared) -> None:
        """Passes on the voice that a talker has prepared, if it has."""
        request = self.request
        try:
            async with asyncio.timeout(CONNECTOR_SECONDS):
                await on_prepared(await self.cell.connector.published_voice(request.id))
        except (ConnectorError, TimeoutError) as error:
            log.warning("the voice of request %s is not kept: %s", request.id, error, extra=_fields(request))


def _fields(request: SpeechRequest) -> dict[str, str]:
    """Returns the `extra` of a log record that concerns a request."""
    return logs.of_request(request.id, request.traceparent)
