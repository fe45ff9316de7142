"""Playback, quantiles, arrivals and summaries of the benchmark against values computed by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syrinx_operator.commands.bench.load import Limit, Script, poisson
from syrinx_operator.commands.bench.stats import Arrival, Outcome, PlaybackRecorder, simulate, summarize

SECOND = 24_000


def stream(*pieces):
    """Pieces as (seconds, seconds of audio)."""
    return [Arrival(at, round(length * SECOND)) for at, length in pieces]


def test_a_late_chunk_stalls_playback():
    # Plays 0.2 to 0.7, waits until 1.0, plays to 1.5; the third piece is there by then, the fourth 0.25 late.
    played = simulate(stream((0.2, 0.5), (1.0, 0.5), (1.4, 0.5), (2.25, 0.5)), audible=0)
    assert played.underruns == 2
    assert played.underrun_seconds == pytest.approx(0.3 + 0.25)


def test_ttfa_includes_leading_silence_and_stalls():
    assert simulate(stream((0.2, 1.0)), audible=6_000).ttfa == pytest.approx(0.45)
    assert simulate(stream((0.2, 0.5), (1.0, 0.5)), audible=18_000).ttfa == pytest.approx(0.2 + 0.75 + 0.3)
    assert simulate(stream((0.2, 0.5), (1.0, 0.5)), audible=6_000).ttfa == pytest.approx(0.45), "a later stall does not"
    assert simulate(stream((0.2, 0.5)), audible=None).ttfa is None


def test_playback_starts_after_100_ms_or_the_whole_stream():
    assert simulate(stream((0.1, 0.04), (0.2, 0.04), (0.3, 0.04), (0.4, 0.04)), audible=0).first_playable == 0.3
    assert simulate(stream((0.1, 0.04), (0.2, 0.04)), audible=0).first_playable == 0.2


@given(
    st.lists(st.tuples(st.floats(0, 2), st.integers(1, 48_000)), min_size=1, max_size=20),
    st.integers(0, 100_000),
)
def test_playback_ends_after_the_audio_and_all_stalls(steps, audible):
    at, arrivals = 0.0, []
    for pause, samples in steps:
        at += pause
        arrivals.append(Arrival(at, samples))
    played = simulate(arrivals, audible)
    played_until = played.first_playable + played.duration + played.underrun_seconds
    assert played_until >= played.end - 1e-9, "nothing is played before it arrives"
    assert played.first_byte <= played.first_playable <= played.ttfa
    assert math.isclose(played.first_byte + sum(played.gaps), played.end, abs_tol=1e-9)


@given(st.binary(max_size=400), st.lists(st.integers(1, 50), max_size=20))
def test_chunk_boundaries_do_not_matter(data, cuts):
    cut, whole = PlaybackRecorder(), PlaybackRecorder()
    rest = data
    for length in cuts:
        cut.add(1.0, rest[:length])
        rest = rest[length:]
    cut.add(1.0, rest)
    whole.add(1.0, data)
    played, expected = cut.playback(), whole.playback()
    assert (played is None) == (expected is None) == (len(data) < 2)
    if expected:
        assert (played.ttfa, played.duration) == (expected.ttfa, expected.duration)


def test_a_point_counts_completed_and_failed_requests():
    smooth = Outcome(playback=simulate(stream((0.2, 1.0), (0.6, 1.0)), audible=2_400))
    stalled = Outcome(playback=simulate(stream((0.4, 0.5), (1.4, 0.5)), audible=0))
    silent = Outcome(playback=simulate(stream((0.1, 1.0)), audible=None))
    failed = [Outcome(error="http 503"), Outcome(error="timeout"), Outcome(error="http 503")]
    point = summarize("open", 2.5, [smooth, stalled, silent, *failed], wall_seconds=4)
    assert (point.loop, point.load, point.requests) == ("open", 2.5, 6)
    assert (point.errors, point.silent) == ({"http 503": 2, "timeout": 1}, 1)
    assert (point.audio_seconds, point.audio_seconds_per_second, point.requests_per_second) == (4, 1, 0.75)
    assert (point.ttfa.max, point.ttfa.p50) == pytest.approx((0.4, (0.3 + 0.4) / 2))
    assert (point.underrun_share, point.underrun_seconds, point.gap.max) == pytest.approx((1 / 3, 0.5, 1.0))


def test_arrivals_are_poisson_seeded_and_bounded():
    times = poisson(50, seed=1, limit=Limit(seconds=200))
    assert times == poisson(50, seed=1, limit=Limit(seconds=200))
    assert times != poisson(50, seed=2, limit=Limit(seconds=200))
    assert times == sorted(times)
    assert times[-1] < 200
    pauses = np.diff([0, *times])
    assert len(times) == pytest.approx(10_000, rel=0.05)
    assert pauses.std() == pytest.approx(pauses.mean(), rel=0.05), "exponential: deviation equals mean"
    assert len(poisson(50, seed=1, limit=Limit(requests=7))) == 7


def test_a_script_uses_texts_equally_and_cycles_through_voices():
    script = Script(["a", "b", "c"], ["x", "y"], seed=3)
    bodies = [script.body(number) for number in range(6)]
    for three in (bodies[:3], bodies[3:]):
        assert sorted(body["input"] for body in three) == ["a", "b", "c"]
    assert [body["voice"] for body in bodies] == ["x", "y"] * 3
    assert bodies == [Script(["a", "b", "c"], ["x", "y"], seed=3).body(number) for number in range(6)]
    assert len({body["seed"] for body in bodies}) == 6
    assert "voice" not in Script(["a"], [], seed=3).body(0)
    with_fields = Script(["a", "b"], [], 3, [{"max_new_tokens": 1}, {"max_new_tokens": 2}])
    assert {(body["input"], body["max_new_tokens"]) for body in map(with_fields.body, range(4))} == {("a", 1), ("b", 2)}
