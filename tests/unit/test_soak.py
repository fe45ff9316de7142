"""Which lost streams the soak excuses."""

import pytest

from soak.faults import Fault, Kind
from soak.load import Outcome, Utterance, Verdict
from soak.measure import Injected, gateway_died


def outcome(verdict: Verdict, *, request_id: str = "r", message: str = "") -> Outcome:
    """A stream that began at 100 s and ended at 110 s."""
    return Outcome("gateway-0", 0, True, request_id, 100.0, 110.0, (), verdict, message)


def injected(kind: Kind, at: float, target: str = "gateway-0") -> Injected:
    return Injected(Fault(kind, target), target.split("-")[0], at, {})


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
