"""Tests of a request's audio as the gateway assembles it."""

import asyncio
import time

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from syrinx_stages.connector.base import StreamEntry
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.keys import END_SEQUENCE, Position, StreamKind
from syrinx_stages.contract.messages import Audio, End, EndReason, SpeechRequest, TaskType
from syrinx_stages.gateway.errors import ApiError, internal_error
from syrinx_stages.gateway.outcomes import OutcomeTracker
from syrinx_stages.gateway.speech import SpeechStream
from syrinx_stages.runtime.metrics import Metrics

# Audible from the first sample, and different in every frame.
PCM = (1_000 + np.arange(8 * FAMILY.samples_per_frame, dtype="<i2") % 20_000).tobytes()
REQUEST = SpeechRequest(id="r", accepted_at=0.0, text="text", task_type=TaskType.CUSTOM_VOICE)


def frames(first: int, last: int) -> StreamEntry:
    """An entry with the frames `first` to `last`, counted from 1."""
    pcm = PCM[(first - 1) * FAMILY.frame_bytes : last * FAMILY.frame_bytes]
    return StreamEntry("r", StreamKind.AUDIO, Position(last), Audio(pcm))


def end(at: int) -> StreamEntry:
    return StreamEntry("r", StreamKind.AUDIO, Position(at, END_SEQUENCE), End(EndReason.STOP))


async def audio_of(*entries: StreamEntry) -> bytes:
    """The audio that a gateway makes of entries."""
    inbox: asyncio.Queue[StreamEntry] = asyncio.Queue()
    for entry in entries:
        inbox.put_nowait(entry)

    async def no_failure() -> None:
        return None

    stream = SpeechStream(
        REQUEST,
        inbox,
        time.monotonic(),
        speed=1.0,
        stall_seconds=5.0,
        metrics=Metrics(CollectorRegistry()),
        tracker=OutcomeTracker(None, False, lambda outcome: None),
        report_playback=lambda request_id, delivered: None,
        on_end=lambda: None,
        check=no_failure,
        storage_full=lambda: None,
        refusal=internal_error,
    )
    return b"".join([chunk.pcm async for chunk in stream.audio()])


async def test_each_frame_is_delivered_once_even_if_entries_overlap():
    """A codec that takes over after Redis has lost the end of a stream writes other chunks than the codec before it."""
    whole = await audio_of(frames(1, 4), frames(5, 8), end(8))
    assert len(whole) > 7 * FAMILY.frame_bytes
    assert await audio_of(frames(1, 4), frames(3, 5), frames(4, 8), end(8)) == whole
    assert await audio_of(frames(1, 4), frames(2, 4), frames(5, 8), end(8)) == whole


async def test_missing_frames_are_an_error():
    with pytest.raises(ApiError, match="frames 5 to 6 is missing"):
        await audio_of(frames(1, 4), frames(7, 8), end(8))
    with pytest.raises(ApiError, match="frames 5 to 8 is missing"):
        await audio_of(frames(1, 4), end(8))
