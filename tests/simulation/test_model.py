"""The protocol of claims, takeovers and appends, checked in all states of a small model."""

import pytest

from tests.simulation.model.check import INVARIANTS, PROGRESS, combined, search
from tests.simulation.model.model import Bounds, Faults
from tests.simulation.model.planted import PLANTED
from tests.simulation.model.store import Protocol

NO_FAULTS = Faults(0, 0, 0, 0, 0)


def combinations():
    """Returns every kind of fault and every two kinds; with a replaced primary, two kinds have most states."""
    pairs = [
        pytest.param(bounds, marks=pytest.mark.night if bounds.faults.replacements else ()) for bounds in combined(2)
    ]
    return [*combined(1), *pairs]


@pytest.mark.parametrize("bounds", combinations(), ids=lambda bounds: "-".join(map(str, bounds.faults)))
def test_the_protocol_holds_with_every_two_kinds_of_faults(bounds):
    result = search(Protocol(), bounds)
    assert result.violated is None, [step for step, _ in result.trace]
    assert result.states > 300


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.mistake)
def test_a_mistake_has_a_counterexample(planted):
    result = search(planted.protocol, planted.bounds)
    assert result.violated in {*INVARIANTS, PROGRESS}
    assert result.trace, "a counterexample is a way there"


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.mistake)
def test_no_mistake_shows_without_faults(planted):
    """So the counterexamples are about faults, not about a model that cannot serve."""
    assert search(planted.protocol, Bounds(faults=NO_FAULTS)).violated is None
