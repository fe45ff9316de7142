"""When a change of the load is noticed, and that chance does not look like one. Bursts and lengths are drawn."""

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from syrinx_operator.observed.arrivals import Arrivals, Interval, surprise

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = 3600.0
TASK = "CustomVoice"


class Load:
    """Draws arrivals, and counts them in intervals."""

    def __init__(self, seed: int, step: float = 10.0) -> None:
        self.arrivals = Arrivals()
        self.now = 0.0
        self._step = step
        self._randoms = np.random.default_rng(seed)

    def serve(self, seconds: float, rate: float, burst: float = 1.0, length: float = 60.0) -> list[float]:
        """Returns the times at which changes were noticed."""
        noticed, randoms, end, steps = [], self._randoms, self.now + seconds, int(self._step)
        while self.now < end:
            self.now += self._step
            arrived = [int(randoms.geometric(1 / burst, each).sum()) for each in randoms.poisson(rate / burst, steps)]
            count = sum(arrived)
            # As different as the lengths of sentences are: a variance of 0.4 by the squared mean.
            characters = float(randoms.gamma(2.5, length / 2.5, count).sum())
            before = self.arrivals.change
            self.arrivals.add(self._interval(float(count), characters, Counter(map(float, arrived))))
            if self.arrivals.change is not before:
                noticed.append(self.now)
        return noticed

    def _interval(self, count: float, characters: float, crowds: Mapping[float, float]) -> Interval:
        until = START + timedelta(seconds=self.now)
        return Interval(until, self._step, {TASK: count}, {TASK: count}, {TASK: characters}, crowds)


@pytest.mark.parametrize("step", [10.0, 30.0])
@pytest.mark.parametrize("burst", [1.0, 3.0])
def test_a_stationary_load_does_not_change(burst, step):
    assert Load(6, step).serve(3 * HOUR, 3.3, burst) == []


@pytest.mark.parametrize("step", [10.0, 15.0])
@pytest.mark.parametrize(
    ("change", "seconds"),
    [
        ({"rate": 6.6}, 120.0),
        ({"rate": 1.65}, 120.0),
        ({"rate": 26.4}, 60.0),
        ({"rate": 0.41}, 60.0),
        ({"length": 180.0}, 60.0),
        ({"burst": 6.0}, 60.0),
    ],
    ids=str,
)
def test_a_change_is_noticed(change, seconds, step):
    late = 0
    for seed in range(5):
        load = Load(seed, step)
        assert load.serve(HOUR / 2, 3.3) == []
        noticed = load.serve(seconds, **{"rate": 3.3, **change})
        late += not noticed
    assert late <= 1


def test_what_was_before_a_change_does_not_count():
    load = Load(2)
    load.serve(HOUR, 3.3)
    load.serve(HOUR, 6.6, 4.0)
    change = load.arrivals.change
    assert change is not None and change.at == pytest.approx(START + timedelta(seconds=HOUR), abs=timedelta(minutes=2))
    assert load.arrivals.burst(START + timedelta(seconds=load.now)) == pytest.approx(4.0, rel=0.5)
    assert load.serve(HOUR, 6.6, 4.0) == []


def test_a_task_type_whose_requests_change_is_named():
    arrivals, randoms = Arrivals(), np.random.default_rng(3)
    for step in range(100):
        presets, clones = randoms.poisson((30.0, 6.0) if step < 80 else (18.0, 24.0))
        counts = {"CustomVoice": float(presets), "Base": float(clones)}
        arrivals.add(Interval(START + timedelta(seconds=10 * step), 10.0, counts, {}, {}, {}))
    assert arrivals.change is not None
    assert arrivals.change.what.startswith("Base: 0.589 -> 2.")


def test_short_intervals_are_joined():
    """A trial reads the counters each second: what arrives in one says little."""
    assert Load(7, 1.0).serve(HOUR, 3.3, 3.0) == []


def test_few_intervals_show_no_bursts():
    load = Load(4)
    load.serve(50.0, 3.3, 6.0)
    assert load.arrivals.burst(START + timedelta(seconds=load.now)) == 1.0


@pytest.mark.parametrize("burst", [1.0, 1.0000001, 1.5, 6.0])
def test_the_surprise_is_the_rate_function(burst):
    """Of n seconds, about -log of the probability of more, which is counted."""
    randoms, usual, rate, seconds = np.random.default_rng(5), 1.0, 1.5, 60
    arrivals = randoms.poisson(usual / burst * seconds, 200_000)
    more = randoms.negative_binomial(np.maximum(arrivals, 1), 1 / burst) if burst > 1 else 0
    counted = -np.log((arrivals + more >= rate * seconds).mean()) / seconds
    assert surprise(rate, usual, burst) < counted < surprise(rate, usual, burst) + 0.06
    assert surprise(usual, usual, burst) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("seconds", [2.0, 5.0, 15.0])
def test_pauses_are_no_change_where_they_are_usual(seconds):
    """On for some seconds, off for some: no bursts of the kind that the test assumes."""
    load, randoms = Load(8, 1.0), np.random.default_rng(9)
    noticed, rate, until = [], 6.6, 0.0
    while load.now < 3 * HOUR:
        if load.now >= until:
            rate, until = 6.6 - rate, load.now + randoms.exponential(seconds)
        noticed += load.serve(1.0, rate)
    assert noticed == []
