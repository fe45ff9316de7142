"""Tests of a request's audio as the gateway assembles it."""

import time

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from support.submission import PlainSubmission
from syrinx_stages.connector.base import StreamEntry
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.frames import pack_checksums
from syrinx_stages.contract.keys import END_SEQUENCE, Position, StreamKind
from syrinx_stages.contract.messages import Audio, End, EndReason, SpeechRequest, TaskType
from syrinx_stages.gateway.errors import ApiError
from syrinx_stages.gateway.speech.listener import Listener
from syrinx_stages.gateway.speech.outcomes import OutcomeTracker
from syrinx_stages.gateway.speech.speech import SpeechStream
from syrinx_stages.runtime.telemetry.metrics import Metrics

# Audible from the first sample, and different in every frame.
PCM = (1_000 + np.arange(8 * FAMILY.samples_per_frame, dtype="<i2") % 20_000).tobytes()
REQUEST = SpeechRequest(id="r", accepted_at=0.0, text="text", task_type=TaskType.CUSTOM_VOICE)


def frames(first: int, last: int, take: int = 0) -> StreamEntry:
    """An entry with the frames `first` to `last`, counted from 1, decoded from the codes of a take."""
    pcm = PCM[(first - 1) * FAMILY.frame_bytes : last * FAMILY.frame_bytes]
    checksums = pack_checksums([100 * take + frame for frame in range(first - 1, last + 1)])
    return StreamEntry("r", StreamKind.AUDIO, Position(last), Audio(pcm, checksums=checksums))


def end(at: int, take: int = 0) -> StreamEntry:
    return StreamEntry("r", StreamKind.AUDIO, Position(at, END_SEQUENCE), End(EndReason.STOP, checksum=100 * take + at))


async def audio_of(*entries: StreamEntry) -> bytes:
    """The audio that a gateway makes of entries."""
    source = PlainSubmission(REQUEST)
    for entry in entries:
        source.audio.put_nowait(entry)
    tracker = OutcomeTracker(None, lambda outcome: None)
    listener = Listener(REQUEST, time.monotonic(), 1.0, Metrics(CollectorRegistry()), tracker)
    stream = SpeechStream(source, listener, stall_seconds=5.0)
    return b"".join([chunk.pcm async for chunk in stream.audio()])


async def test_each_frame_is_delivered_once_even_if_entries_overlap():
    """A codec that takes over after Redis has lost the end of a stream writes other chunks than the codec before it."""
    whole = await audio_of(frames(1, 4), frames(5, 8), end(8))
    assert len(whole) > 7 * FAMILY.frame_bytes
    assert await audio_of(frames(1, 4), frames(3, 5), frames(4, 8), end(8)) == whole
    assert await audio_of(frames(1, 4), frames(2, 4), frames(5, 8), end(8)) == whole


@pytest.mark.parametrize(
    "rest",
    [[frames(5, 8, 1), end(8, 1)], [frames(4, 8, 1), end(8, 1)], [end(4, 1)], [end(3, 1)]],
    ids=["follows", "overlaps", "ends", "ends before"],
)
async def test_audio_of_two_takes_is_not_joined(rest):
    """Redis has lost codes and their talker's claim, and another talker has sampled the lost frames differently."""
    with pytest.raises(ApiError, match="differs when it is generated again") as caught:
        await audio_of(frames(1, 4), *rest)
    assert caught.value.code == "request_lost"


async def test_missing_frames_are_an_error():
    with pytest.raises(ApiError, match="frames 5 to 6 is missing"):
        await audio_of(frames(1, 4), frames(7, 8), end(8))
    with pytest.raises(ApiError, match="frames 5 to 8 is missing"):
        await audio_of(frames(1, 4), end(8))
