import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.silence import AUDIBLE_PEAK, first_audible
from syrinx_stages.gateway.speech.listener import Playback


def pcm(*samples: int) -> bytes:
    return np.array(samples, "<i2").tobytes()


def silence(seconds: float) -> bytes:
    return bytes(2 * round(seconds * FAMILY.sample_rate))


def tone(seconds: float) -> bytes:
    return pcm(*[1000] * round(seconds * FAMILY.sample_rate))


@pytest.mark.parametrize(
    ("samples", "index"),
    [
        ((0, 0, AUDIBLE_PEAK), 2),
        ((0, -AUDIBLE_PEAK), 1),
        ((-32768,), 0),
        ((AUDIBLE_PEAK - 1, 1 - AUDIBLE_PEAK), None),
        ((), None),
    ],
)
def test_first_audible_sample_reaches_the_peak(samples: tuple[int, ...], index: int | None):
    assert first_audible(pcm(*samples)) == index


def test_leading_silence_counts_in_ttfa_but_not_in_first_byte():
    playback = Playback(accepted=10.0)
    playback.deliver(10.03, silence(0.16))
    assert playback.ttfa is None
    playback.deliver(10.05, silence(0.08) + tone(0.16))
    assert playback.first_byte == pytest.approx(0.03)
    assert playback.ttfa == pytest.approx(0.03 + 0.16 + 0.08)


def test_late_chunk_stalls_playback():
    playback = Playback(accepted=0.0)
    assert playback.deliver(1.0, tone(0.16)) == 0
    assert playback.deliver(1.15, tone(0.0)) == 0, "in time"
    assert playback.deliver(1.36, tone(0.16)) == pytest.approx(0.2)
    assert playback.deliver(1.62, tone(0.16)) == pytest.approx(0.1)


def test_ongoing_stall_is_returned_once():
    playback = Playback(accepted=0.0)
    assert playback.stall(5.0) == 0, "nothing plays yet"
    playback.deliver(6.0, tone(0.16))
    assert playback.stall(6.1) == 0
    assert playback.stall(6.2) == pytest.approx(0.04)
    assert playback.stall(6.5) == pytest.approx(0.3)
    assert playback.deliver(6.6, tone(0.16)) == pytest.approx(0.1)
    assert playback.stall(6.75) == 0


def test_a_client_that_accepts_a_chunk_late_stalls_itself():
    playback = Playback(accepted=0.0)
    playback.deliver(1.0, tone(0.16))
    assert playback.deliver(3.0, tone(0.16), offered=1.1) == 0
    assert playback.stall(3.16) == pytest.approx(0), "it plays from 3.0 on"
    assert playback.deliver(5.0, tone(0.16), offered=3.26) == pytest.approx(0.1), "the rest is the client's"
    assert playback.stall(5.16) == pytest.approx(0)


@given(st.lists(st.tuples(st.floats(0, 2), st.integers(1, 12)), min_size=1, max_size=30))
def test_playing_and_stalling_add_up_to_the_elapsed_time(chunks: list[tuple[float, int]]):
    playback = Playback(accepted=0.0)
    now = played = stalled = 0.0
    for gap, frames in chunks:
        now += gap
        stalled += playback.deliver(now, bytes(2 * frames * FAMILY.samples_per_frame))
        played += frames * 0.08
    assert playback.first_byte is not None
    assert now <= playback.first_byte + played + stalled + 1e-6
    assert stalled <= sum(gap for gap, _ in chunks[1:]) + 1e-6
