"""Tests of the soak's decisions."""

from itertools import islice

import pytest

from soak.faults import STAGE_KINDS, Fault, Kind, Target, draw
from soak.load import Outcome, Utterance, Verdict
from soak.measure import Injected, gateway_died, longest_stall, takeovers
from syrinx_operator.commands.bench.stats import Arrival
from syrinx_stages.contract.family import FAMILY

FRAME_SAMPLES = FAMILY.samples_per_frame


# Faults ---------------------------------------------------------------------------------------------------------


def test_each_round_has_every_kind_of_every_target_once_in_an_order_of_the_seed():
    targets = [Target("a", STAGE_KINDS, 6.0), Target("b", (Kind.KILL,), 6.0)]
    size = len(STAGE_KINDS) + 1
    drawn = list(islice(draw(7, targets), 2 * size))
    for turn in (drawn[:size], drawn[size:]):
        assert sorted((fault.target, fault.kind) for fault in turn) == sorted(
            [("a", kind) for kind in STAGE_KINDS] + [("b", Kind.KILL)]
        )
    assert drawn == list(islice(draw(7, targets), 2 * size))
    assert drawn != list(islice(draw(8, targets), 2 * size))
    assert all(0.5 <= fault.seconds <= 6.0 for fault in drawn if fault.kind is Kind.STOP)
    assert not any(fault.seconds for fault in drawn if fault.kind is Kind.KILL)


# Verdicts -------------------------------------------------------------------------------------------------------


def outcome(
    verdict: Verdict = Verdict.COMPLETE,
    *,
    at: tuple[tuple[float, int], ...] = ((0.2, 4), (0.6, 4)),
    start: float = 100.0,
    end: float = 110.0,
    request_id: str = "r",
    message: str = "",
) -> Outcome:
    """`at`: seconds from the start and frames of each chunk."""
    arrivals = tuple(Arrival(seconds, frames * FRAME_SAMPLES) for seconds, frames in at)
    return Outcome("gateway-0", 0, True, request_id, start, end, arrivals, verdict, message)


def injected(kind: Kind, at: float, target: str = "gateway-0", frames: dict[str, int] | None = None) -> Injected:
    return Injected(Fault(kind, target), target.split("-")[0], at, frames or {})


def test_a_request_gateway_died_if_its_gateway_was_killed_meanwhile():
    lost = outcome(Verdict.LOST)
    assert gateway_died(lost, [injected(Kind.KILL, 105.0)])
    assert not gateway_died(lost, [injected(Kind.KILL, 99.0)]), "an earlier process"
    assert not gateway_died(lost, [injected(Kind.KILL, 111.0)]), "the request had ended"
    assert not gateway_died(lost, [injected(Kind.KILL, 105.0, "gateway-1")])
    assert not gateway_died(lost, [injected(Kind.KILL, 105.0, "talker-0")])
    assert not gateway_died(outcome(Verdict.MISMATCH), [injected(Kind.KILL, 105.0)]), (
        "a dead gateway sends no wrong audio"
    )


def test_a_draining_gateway_excuses_only_requests_that_it_never_answered():
    cut = outcome(Verdict.LOST, request_id="", message="cut off: ServerDisconnectedError")
    assert gateway_died(cut, [injected(Kind.TERM, 99.9)])
    assert not gateway_died(cut, [injected(Kind.TERM, 100.1)]), "the request was sent before"
    assert not gateway_died(outcome(Verdict.LOST, message="cut off"), [injected(Kind.TERM, 99.9)]), "it was admitted"


@pytest.mark.parametrize(
    ("pcm", "whole", "matches"),
    [(b"abcd", True, True), (b"ab", True, False), (b"ab", False, True), (b"abcx", True, False), (b"x", False, False)],
)
def test_audio_must_be_that_of_the_fault_free_run_or_its_beginning(pcm, whole, matches):
    assert Utterance({}, b"abcd", 1).matches(pcm, whole) is matches


def test_frames_count_the_trimmed_silence():
    """Of three frames, half a frame of silence was trimmed."""
    utterance = Utterance({}, bytes(FAMILY.frame_bytes * 5 // 2), 3)
    sizes = (0, FAMILY.frame_bytes // 2, FAMILY.frame_bytes, FAMILY.frame_bytes * 5 // 2)
    assert [utterance.frames_in(size) for size in sizes] == [0, 1, 1, 3]


# Times ----------------------------------------------------------------------------------------------------------


def test_a_takeover_lasts_until_audio_beyond_what_existed_arrives():
    utterance = Utterance({}, bytes(12 * FAMILY.frame_bytes), 12)
    stream = outcome(at=((0.2, 4), (0.6, 4), (3.0, 4)))
    [found] = takeovers([stream], [injected(Kind.KILL, 100.5, "talker-0", {"r": 8, "other": 3})], [utterance])
    assert found.cause == "talker kill"
    assert found.seconds == pytest.approx(2.5), "the chunk at 0.6 s held frames 5 to 8, which existed"
    assert takeovers([stream], [injected(Kind.KILL, 100.5, "talker-0", {"r": 12})], [utterance]) == []


def test_the_longest_stall_counts_the_audio_that_is_buffered():
    assert longest_stall([outcome(at=((0.2, 10), (0.9, 10)))]) == 0.0
    late = outcome(Verdict.LOST, at=((0.2, 10), (3.0, 10), (3.2, 1)))
    assert longest_stall([late, outcome()]) == pytest.approx(3.0 - 1.0)
