"""The requests of a text's parts, and the silence between them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import EndReason, SpeechRequest, TaskType
from syrinx_stages.contract.silence import AUDIBLE_PEAK
from syrinx_stages.gateway.encoders import AudioOptions
from syrinx_stages.gateway.long_speech import Seam, part_requests, worse
from syrinx_stages.gateway.parts import WHOLE_SIZE
from syrinx_stages.gateway.request import Delivery, ParsedRequest

TEXT = "The old teacher found 2 heavy bags near the river. " * 40
REQUEST = SpeechRequest(
    id="r", accepted_at=0.0, text=TEXT, task_type=TaskType.CUSTOM_VOICE, seed=2**63 - 1, returns_voice=True
)
RATE = FAMILY.sample_rate


def requests_of(request: SpeechRequest = REQUEST, **options: object) -> list[SpeechRequest]:
    parsed = ParsedRequest(request, AudioOptions(), Delivery.AUDIO, **options)
    return [part.request for part in part_requests(parsed)]


def test_parts_have_requests_of_their_own():
    requests = requests_of()
    assert len(requests) > 2
    assert requests[0] == structs.replace(REQUEST, text=requests[0].text), "a short text is served as it was"
    assert len({request.id for request in requests}) == len({request.seed for request in requests}) == len(requests)
    assert all(0 <= request.seed < 2**63 and not request.returns_voice for request in requests[1:])
    assert [(each.text, each.seed) for each in requests_of()] == [(each.text, each.seed) for each in requests]


def test_a_model_speaks_a_text_of_some_paragraphs_as_a_whole():
    request = structs.replace(REQUEST, text=TEXT[: WHOLE_SIZE - 100])
    assert requests_of(request) == [request]
    assert len(requests_of(request, single_sentences=True)) > 20


def test_parts_are_normalized():
    assert all("two heavy" in request.text for request in requests_of(languages=("english",)))


def test_parts_are_single_sentences_for_a_voice_that_was_trained_on_them():
    assert {request.text for request in requests_of(single_sentences=True)} == {TEXT[:50]}
    short = structs.replace(REQUEST, text="Hello to Dr. Grey. Go on!")
    assert [each.text for each in requests_of(short, single_sentences=True)] == ["Hello to Dr. Grey.", "Go on!"]


def test_a_text_of_one_token_a_frame_is_one_utterance():
    """Its audio is that of the same text in pieces."""
    short = structs.replace(REQUEST, text="Hello. Go on!", non_streaming_text=False)
    assert requests_of(short, single_sentences=True) == [short]


def test_a_designed_voice_is_not_divided():
    request = structs.replace(REQUEST, task_type=TaskType.VOICE_DESIGN)
    assert requests_of(request) == [request]


@given(st.integers(0, 3000), st.integers(-3000, 3000), st.floats(0, 1), st.integers(1, 700))
def test_a_pause_lengthens_the_silence_without_a_step(silent, last, seconds, size):
    """It does not depend on how the audio is divided."""
    samples = np.concatenate((np.full(1000, 9000), np.zeros(silent), [last])).astype("<i2")
    pieces, whole = Seam(), Seam()
    for start in range(0, len(samples), size):
        pieces.add(samples[start : start + size].tobytes())
    whole.add(samples.tobytes())
    pause = whole.pause(seconds)
    assert pieces.pause(seconds) == pause
    both = np.concatenate((samples, np.frombuffer(pause, "<i2"))).astype(int)
    assert np.abs(np.diff(both[-len(pause) // 2 - 1 :])).max() <= abs(last) / 100 + 1
    silence = len(both) - 1 - int(np.flatnonzero(np.abs(both) >= AUDIBLE_PEAK)[-1])
    assert silence >= round(seconds * RATE) - RATE // 200
    assert pause[-2:] == b"\0\0"


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([EndReason.STOP, EndReason.STOP], EndReason.STOP),
        ([EndReason.RUNAWAY, EndReason.STOP], EndReason.RUNAWAY),
        ([EndReason.RUNAWAY, EndReason.LENGTH], EndReason.LENGTH),
    ],
)
def test_the_worst_end_of_a_part_is_reported(ends, expected):
    reason = EndReason.STOP
    for each in ends:
        reason = worse(reason, each)
    assert reason is expected
