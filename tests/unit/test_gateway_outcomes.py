"""The outcome of a streamed request: the rules, and what they are told by a stream."""

import asyncio
from collections.abc import Callable
from functools import partial
from operator import methodcaller

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from support.submission import PlainSubmission
from syrinx_stages.connector.base import StreamEntry
from syrinx_stages.contract import metrics as m
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.keys import END_SEQUENCE, Position, StreamKind
from syrinx_stages.contract.messages import Audio, End, EndReason, SpeechRequest, TaskType
from syrinx_stages.contract.settings import GatewaySettings
from syrinx_stages.families import IMPLEMENTATION
from syrinx_stages.gateway.speech.listener import Listener
from syrinx_stages.gateway.speech.live_text import LiveText
from syrinx_stages.gateway.speech.outcomes import OutcomeTracker, StreamOutcome, StreamOutcomes
from syrinx_stages.gateway.speech.speech import Chunk, SpeechStream
from syrinx_stages.normalization.reading import Reading
from syrinx_stages.runtime.clock import monotonic
from syrinx_stages.runtime.settings import LiveSettings, SettingsUpdate
from syrinx_stages.runtime.telemetry.metrics import Metrics

pytestmark = pytest.mark.virtual

Event = Callable[[OutcomeTracker], None]

OBJECTIVE = 0.3
audible, generated, ended = (partial(methodcaller, name) for name in ("first_audible", "generated", "ended"))
passed = methodcaller("objective_passed")
stalled, refused = (methodcaller("settle", outcome) for outcome in (StreamOutcome.INTERRUPTED, StreamOutcome.REFUSED))
left, failed, complete = ended(EndReason.CANCELLED), ended(EndReason.ERROR), ended(EndReason.STOP)
whole, limited = generated(EndReason.STOP), generated(EndReason.LENGTH)
in_time, at_the_objective, too_late = audible(0.1), audible(OBJECTIVE), audible(0.301)

SPECIFICATION: list[tuple[str, list[Event], str | None]] = [
    ("heard in time, complete", [in_time, passed, whole, complete], "well"),
    ("heard at the objective", [at_the_objective, whole, complete], "well"),
    ("complete before the objective, without an audible sample", [whole, complete], "well"),
    ("heard too late", [too_late], "late"),
    ("still silent at the objective", [passed], "late"),
    ("silent for long, then an error", [passed, failed], "late"),
    ("silent for long, then refused", [passed, ended(EndReason.REFUSED)], "late"),
    ("silent for long, then the client leaves", [passed, left], "late"),
    ("silent for long, then interrupted", [passed, too_late, stalled, complete], "late"),
    ("interrupted", [in_time, stalled], "interrupted"),
    ("interrupted twice, then an error", [in_time, stalled, stalled, failed], "interrupted"),
    ("interrupted before it is audible", [stalled, passed], "interrupted"),
    ("interrupted, then the client leaves", [in_time, stalled, left], "interrupted"),
    ("stopped by the client's limit", [in_time, limited], None),
    ("complete at the client's limit", [in_time, limited, ended(EndReason.LENGTH)], "well"),
    ("a segment went wrong", [in_time, generated(EndReason.INCOMPLETE)], "incomplete"),
    ("a segment went wrong, late", [too_late, generated(EndReason.INCOMPLETE)], "late"),
    ("a segment went wrong, then the client leaves", [in_time, generated(EndReason.INCOMPLETE), left], "incomplete"),
    ("an error before any audio", [failed], "failed"),
    ("an error after audio in time", [in_time, passed, failed], "failed"),
    ("not admitted", [refused], "refused"),
    ("removed from the queue", [ended(EndReason.REFUSED)], "refused"),
    ("the client leaves at once", [left], "void"),
    ("the client leaves after it has heard something", [in_time, passed, left], "well"),
    ("silent before the objective", [], None),
    ("playing", [in_time, passed], None),
    ("generated, but not delivered", [in_time, whole], None),
]


def track(events: list[Event], objective: float | None = OBJECTIVE) -> list[StreamOutcome]:
    """Returns the counted outcomes."""
    counted: list[StreamOutcome] = []
    tracker = OutcomeTracker(objective, counted.append)
    for event in events:
        event(tracker)
    assert [tracker.outcome] == (counted or [None])
    return counted


@pytest.mark.parametrize(("events", "outcome"), [case[1:] for case in SPECIFICATION], ids=[c[0] for c in SPECIFICATION])
def test_a_history_has_one_outcome(events: list[Event], outcome: str | None) -> None:
    assert track(events) == ([] if outcome is None else [outcome])


def test_without_an_objective_no_stream_is_late() -> None:
    assert track([audible(60.0), whole, complete], objective=None) == ["well"]


EVENTS = (in_time, too_late, passed, stalled, refused, whole, limited)


@given(st.lists(st.sampled_from(EVENTS)), st.sampled_from(EndReason), st.sampled_from([None, OBJECTIVE]))
def test_whatever_happens_is_counted_once(events: list[Event], reason: EndReason, objective: float | None) -> None:
    assert len(track([*events, ended(reason), ended(EndReason.ERROR)], objective)) == 1


# Streams -----------------------------------------------------------------------------------------------------


class Stream:
    """A stream of loud audio in chunks of two frames (0.16 s), and its metrics."""

    def __init__(self, **settings: object) -> None:
        self.began, self.registry = monotonic(), CollectorRegistry()
        metrics = Metrics(self.registry)
        live = LiveSettings(GatewaySettings(**settings), 1)
        request = SpeechRequest(id="r", accepted_at=0.0, text="text", task_type=TaskType.CUSTOM_VOICE)
        outcomes = StreamOutcomes(metrics, live, TaskType.CUSTOM_VOICE)

        self.listener = Listener(request, self.began, 1.0, metrics, outcomes.open(request, self.began))
        self._source = PlainSubmission(request)
        self.stream = SpeechStream(self._source, self.listener, 5.0)
        self._audio = self.stream.audio()
        self._frames = 0

    async def reach(self, seconds: float) -> None:
        """Waits until so long after the stream's start."""
        await asyncio.sleep(self.began + seconds - monotonic())

    async def chunk(self, offered: float) -> Chunk:
        """Returns the next chunk; the gateway begins to send it at `offered`."""
        self._frames += 2
        pcm = np.full(FAMILY.frame_bytes, 20_000, "<i2").tobytes()
        self._source.audio.put_nowait(StreamEntry("r", StreamKind.AUDIO, Position(self._frames), Audio(pcm)))
        chunk = await anext(self._audio)
        await self.reach(offered)
        self.listener.offer()
        return chunk

    async def send(self, offered: float, accepted: float) -> None:
        """Sends a chunk, which the client accepts at `accepted`."""
        chunk = await self.chunk(offered)
        await self.reach(accepted)
        self.stream.delivered(chunk)

    async def finish(self, reason: EndReason = EndReason.STOP) -> None:
        """Sends the end."""
        entry = StreamEntry("r", StreamKind.AUDIO, Position(self._frames, END_SEQUENCE), End(reason))
        self._source.audio.put_nowait(entry)
        assert [chunk async for chunk in self._audio] == []
        self.listener.complete()
        self.listener.record_outcome()

    def value(self, metric: m.Metric, **labels: str) -> float | None:
        return self.registry.get_sample_value(metric.name, {"task_type": "CustomVoice", **labels})

    def counted(self) -> tuple[dict[str, float], float | None]:
        """Returns the outcomes that were counted, and the underruns."""
        found = {each: self.value(m.STREAM_OUTCOMES, arm="", outcome=each) for each in StreamOutcome}
        return {outcome: count for outcome, count in found.items() if count}, self.value(m.UNDERRUNS)


async def test_missing_audio_interrupts_a_stream() -> None:
    stream = Stream()
    await stream.send(0.1, 0.1)
    await stream.send(0.27, 0.27)
    assert stream.counted() == ({"interrupted": 1}, 1)
    await stream.finish()
    assert stream.counted() == ({"interrupted": 1}, 1)


async def test_a_client_that_does_not_read_interrupts_only_itself() -> None:
    """Its player stalls from 0.26 s on, when it had been offered the next chunk for a while."""
    stream = Stream()
    await stream.send(0.1, 0.1)
    await stream.send(0.2, 5.0)
    await stream.send(5.1, 5.1)
    assert stream.counted() == ({}, 0)
    await stream.send(5.4, 9.0)
    assert stream.counted() == ({"interrupted": 1}, 1), "5.32 s, and only until 5.4 s"
    assert stream.value(m.UNDERRUN_SECONDS) == pytest.approx(0.08)


async def test_a_client_that_leaves_without_reading_was_served_well() -> None:
    stream = Stream()
    await stream.send(0.1, 0.1)
    await stream.chunk(0.2)
    await stream.reach(5.0)
    stream.listener.record_outcome()
    assert stream.counted() == ({"well": 1}, 0)


async def test_a_client_that_leaves_during_a_stall_was_interrupted() -> None:
    stream = Stream()
    await stream.send(0.1, 0.1)
    await stream.reach(5.0)
    stream.listener.record_outcome()
    assert stream.counted() == ({"interrupted": 1}, 1)


# Counting ----------------------------------------------------------------------------------------------------


BASE = SpeechRequest(id="r", accepted_at=0.0, text="text", task_type=TaskType.BASE)


def counting(**settings: object) -> tuple[StreamOutcomes, LiveSettings[GatewaySettings], CollectorRegistry]:
    registry, live = CollectorRegistry(), LiveSettings(GatewaySettings(**settings), 1)
    return StreamOutcomes(Metrics(registry), live, TaskType.BASE), live, registry


async def test_a_silent_stream_is_counted_when_its_objective_has_passed() -> None:
    outcomes, _, _ = counting(ttfa_seconds={TaskType.BASE: 0.05})
    tracker = outcomes.open(BASE, asyncio.get_running_loop().time())
    assert tracker.outcome is None
    await asyncio.sleep(0.06)
    assert tracker.outcome is StreamOutcome.LATE


async def test_a_stream_is_not_late_while_its_client_writes_the_first_words() -> None:
    outcomes, _, _ = counting(ttfa_seconds={TaskType.BASE: 0.05})
    text = LiveText(BASE, Reading(), IMPLEMENTATION.load_tokenizer("bundled"))
    text.feed("The old")
    accepted = monotonic()
    tracker = outcomes.open(BASE, accepted, text)
    await asyncio.sleep(0.12)
    assert tracker.outcome is None and text.served_from(accepted) == monotonic()
    text.feed(" teacher")
    written = monotonic()
    await asyncio.sleep(0.04)
    assert tracker.outcome is None and text.served_from(accepted) == written
    await asyncio.sleep(0.02)
    assert tracker.outcome is StreamOutcome.LATE


async def test_an_outcome_belongs_to_the_arm_under_which_its_request_was_accepted() -> None:
    outcomes, live, registry = counting()
    live.apply(SettingsUpdate({"arm": "t1"}, seconds=60.0))
    tracker = outcomes.open(BASE, 0.0)
    live.apply(SettingsUpdate({}))
    outcomes.refuse()
    tracker.ended(EndReason.STOP)
    for arm, outcome in (("t1", "well"), ("", "refused")):
        labels = {"task_type": "Base", "arm": arm}
        assert registry.get_sample_value(m.STREAMS_ACCEPTED.name, labels) == 1
        assert registry.get_sample_value(m.STREAM_OUTCOMES.name, {**labels, "outcome": outcome}) == 1


def test_a_gateway_exports_zeros_from_its_start() -> None:
    outcomes, _, registry = counting()
    outcomes.start()
    labels = {"task_type": "Base", "arm": ""}
    assert registry.get_sample_value(m.STREAMS_ACCEPTED.name, labels) == 0
    for outcome in StreamOutcome:
        assert registry.get_sample_value(m.STREAM_OUTCOMES.name, {**labels, "outcome": outcome}) == 0
