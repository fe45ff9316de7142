"""Error rates and power of the test of paired differences."""

import math
import random

import pytest

from syrinx_operator.resource.tuning_status import PairedTest
from syrinx_operator.tuner.stats import ALPHA, DEADBAND, interval, threshold, update_test

PAIRS = 45


def run(differences):
    """Returns the first rejected hypothesis and the number of pairs."""
    test = PairedTest()
    for pair, difference in enumerate(differences, 1):
        test = update_test(test, difference)
        for name in ("better", "worse", "futile"):
            if getattr(test, name).log_wealth >= threshold(1):
                return name, pair
    return "nothing", PAIRS


def shares(random_, good, requests):
    return sum(random_.random() < good for _ in range(requests)) / requests


def pairs(seed, candidate, baseline, requests):
    random_ = random.Random(seed)
    for _ in range(PAIRS):
        yield shares(random_, candidate, requests) - shares(random_, baseline, requests)


@pytest.mark.parametrize(
    ("candidate", "baseline", "requests", "most_pairs"),
    [(0.95, 0.05, 20, 7), (0.95, 0.5, 20, 8), (0.95, 0.8, 40, 15), (0.95, 0.88, 100, 30)],
)
def test_detects_a_better_arm_soon(candidate, baseline, requests, most_pairs):
    found = [run(pairs(seed, candidate, baseline, requests)) for seed in range(50)]
    assert [name for name, _ in found].count("better") >= 48
    assert sum(pair for _, pair in found) / 50 <= most_pairs


def test_detects_a_worse_arm_soon():
    found = [run(pairs(seed, 0.5, 0.95, 40)) for seed in range(50)]
    assert {name for name, _ in found} <= {"worse", "futile"}
    assert max(pair for _, pair in found) <= 9


def test_equal_arms_rarely_differ():
    found = [run(pairs(seed, good, good, 20))[0] for seed in range(400) for good in (0.5, 0.95)]
    assert found.count("better") / len(found) <= 0.02
    assert found.count("worse") / len(found) <= ALPHA


def test_bursts_in_both_arms_are_no_evidence():
    """In a burst all requests of a period fare alike: the coin decides the sign, whatever the size."""

    def storm(seed):
        random_ = random.Random(seed)
        for _ in range(PAIRS):
            yield random_.choice([-1, 1]) * random_.random() ** 3

    found = [run(storm(seed))[0] for seed in range(1000)]
    assert found.count("better") / 1000 <= ALPHA
    assert found.count("worse") / 1000 <= ALPHA


def test_bursts_may_depend_on_the_past():
    def spiteful(seed):
        random_, size = random.Random(seed), 0.01
        for _ in range(PAIRS):
            won = random_.choice([-1, 1])
            yield won * size
            size = min(1.0, size * 3) if won < 0 else 0.01

    found = [run(spiteful(seed))[0] for seed in range(1000)]
    assert found.count("worse") / 1000 <= ALPHA


def test_a_gain_below_the_deadband_is_futile():
    found = [run(pairs(seed, 0.952, 0.95, 500))[0] for seed in range(50)]
    assert found.count("better") <= 1
    assert found.count("futile") >= 20


def test_wealth_is_a_martingale_for_a_fair_coin():
    """Averaged over both signs of the next difference, the wealth stays the same."""
    test = PairedTest()
    for difference in (0.2, -0.1, 0.4, 0.05):
        up, down = update_test(test, difference), update_test(test, -difference)
        assert (math.exp(up.worse.log_wealth) + math.exp(down.worse.log_wealth)) / 2 == pytest.approx(
            math.exp(test.worse.log_wealth)
        )
        shifted, mirrored = update_test(test, DEADBAND + difference), update_test(test, DEADBAND - difference)
        mean = (math.exp(shifted.better.log_wealth) + math.exp(mirrored.better.log_wealth)) / 2
        assert mean == pytest.approx(math.exp(test.better.log_wealth))
        test = up


def test_the_confidence_sequence_closes_around_the_mean():
    test, widths = PairedTest(), []
    assert interval(test) == (-1.0, 1.0)
    for difference in pairs(1, 0.9, 0.8, 50):
        test = update_test(test, difference)
        lower, upper = interval(test)
        assert lower <= 0.1 <= upper
        widths.append(upper - lower)
    assert widths[-1] < 0.1 < widths[2]


def test_more_strata_raise_the_threshold():
    assert threshold(1) < threshold(3) == pytest.approx(math.log(60))


@pytest.mark.parametrize("difference", [1.1, -1.1, math.nan])
def test_rejects_differences_outside_of_one(difference):
    with pytest.raises(ValueError, match=r"in \[-1, 1\]"):
        update_test(PairedTest(), difference)
