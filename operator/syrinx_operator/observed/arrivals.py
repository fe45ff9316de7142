"""What arrives, and when that changed: a sequential test. Pure.

Under a stationary load, requests arrive in bursts of geometric size at random times (a Pólya-Aeppli process), and the
lengths of their texts have a gamma distribution. For each moment at which the load may have changed, two loads are
compared with one by their log-likelihood ratio. How large bursts are, and how different lengths, is measured before
that moment: a change does not hide itself.

Source: T. L. Lai, "Sequential changepoint detection in quality control and dynamical systems", JRSS-B 1995, for the
window of moments; the rate function of a Pólya-Aeppli process follows by exponential tilting.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import accumulate
from typing import NamedTuple, TypeVar

K = TypeVar("K")

CERTAIN = 12.0
"""Log-likelihood ratio of a change: chance reaches it less than once in two days."""
INTERVAL_SECONDS = 10.0
"""Least length of an interval. Shorter ones have too few requests, and are joined."""
FACTOR = 1.5
"""Smaller changes of a rate or a length are none."""
BEFORE_SECONDS, BEFORE_INTERVALS = 60.0, 4
"""Least time and number of intervals before a change."""
RECENT = 60
"""Last intervals in which a change is looked for."""
MAX_AGE = timedelta(hours=1)
"""Of the intervals that are compared."""
LEAST_SPREAD = 0.05
"""Variance of the lengths of texts, by their mean squared, at least."""
BURST_AGE = timedelta(minutes=10)
BURST_INTERVALS = 6
"""Time, and least number of intervals, that show how large bursts are."""
MAX_BURST = 16.0


class Interval(NamedTuple):
    """What arrived between two readings of the counters, by task type."""

    until: datetime
    seconds: float
    requests: Mapping[str, float]
    texts: Mapping[str, float]
    """Those whose length is known: a request may be refused unread, or still be written."""
    characters: Mapping[str, float]
    crowds: Mapping[float, float]
    """Seconds of any gateway by the number of requests in them, at most."""


class Change(NamedTuple):
    """A change of the load."""

    at: datetime
    """When the last interval before it ended."""
    what: str
    certainty: float
    """Log-likelihood ratio."""


class Arrivals:
    """The intervals of an hour, and the last change of the load."""

    def __init__(self) -> None:
        self.change: Change | None = None
        self._intervals: deque[Interval] = deque()
        self._begun: Interval | None = None
        """What is too short so far."""

    def add(self, interval: Interval) -> None:
        """Adds the interval after the last one, and looks for a change since the one that was found last."""
        interval = interval if self._begun is None else _joined(self._begun, interval)
        self._begun = interval if interval.seconds < INTERVAL_SECONDS else None
        if self._begun is not None:
            return
        self._intervals.append(interval)
        while interval.until - self._intervals[0].until > MAX_AGE:
            self._intervals.popleft()
        same = [each for each in self._intervals if self.change is None or each.until > self.change.at]
        self.change = changed(same) or self.change

    def burst(self, until: datetime) -> float:
        """Returns the mean requests of an arrival under the load before a moment; 1 if little is known."""
        since = until - BURST_AGE if self.change is None else max(until - BURST_AGE, self.change.at)
        within = [each for each in self._intervals if since < each.until <= until]
        if len(within) < BURST_INTERVALS:
            return 1.0
        series = _Series([each.seconds for each in within], [sum(each.requests.values()) for each in within])
        return min(series.burst(len(within)), MAX_BURST)


def _joined(first: Interval, second: Interval) -> Interval:
    requests, texts, characters = (
        _total(getattr(first, name), getattr(second, name)) for name in ("requests", "texts", "characters")
    )
    crowds = _total(first.crowds, second.crowds)
    return Interval(second.until, first.seconds + second.seconds, requests, texts, characters, crowds)


def _total(one: Mapping[K, float], two: Mapping[K, float]) -> dict[K, float]:
    return {key: one.get(key, 0.0) + two.get(key, 0.0) for key in {*one, *two}}


def changed(intervals: Sequence[Interval]) -> Change | None:
    """Returns the most certain change of the load within intervals, which are in order of time; None without one."""
    task_types = sorted({name for each in intervals for name in each.requests})
    # A single task type is the same as all of them.
    names = (None, *task_types) if len(task_types) > 1 else (None,)
    found = (change for name in names for change in _changes(name, intervals))
    best = max(found, key=lambda change: change.certainty, default=None)
    return best if best is not None and best.certainty > CERTAIN else None


def _changes(task_type: str | None, intervals: Sequence[Interval]) -> Iterator[Change]:
    """Yields the changes of a task type, or of all together, at each moment."""
    seconds = [each.seconds for each in intervals]
    requests, texts, characters = (
        [sum(each.values()) if task_type is None else each.get(task_type, 0.0) for each in amounts]
        for amounts in zip(*((each.requests, each.texts, each.characters) for each in intervals), strict=True)
    )
    arrivals, lengths = _Series(seconds, requests), _Series(texts, characters)
    crowds = _Crowds(requests, [each.crowds for each in intervals]) if task_type is None else None
    of = "" if task_type is None else f"{task_type}: "
    for at in range(max(BEFORE_INTERVALS, len(intervals) - RECENT), len(intervals)):
        if arrivals.sizes[at] < BEFORE_SECONDS:
            continue
        moment, burst = intervals[at - 1].until, arrivals.burst(at)
        rate, new_rate, usual_rate = arrivals.means(at)
        # With a mean of n requests in an interval, their kurtosis exceeds a normal one by 6 * burst / n.
        known = at / (1 + 3 * burst * at / max(arrivals.total(at), 1.0))
        if _differs(rate, new_rate):
            past, rest = arrivals.sizes[at], arrivals.sizes[-1] - arrivals.sizes[at]
            certainty = past * surprise(rate, usual_rate, burst) + rest * surprise(new_rate, usual_rate, burst)
            yield Change(moment, f"{of}{rate:.3g} -> {new_rate:.3g} requests/s", _of_unknown_variance(certainty, known))
        if crowds is not None and rate:
            yield Change(moment, "larger bursts of requests", crowds.certainty(at, burst))
        length, new_length, usual_length = lengths.means(at)
        if length and new_length and _differs(length, new_length):
            spread = max(lengths.dispersion(at) / length, LEAST_SPREAD)
            past, rest = lengths.sizes[at], lengths.sizes[-1] - lengths.sizes[at]
            certainty = past * math.log(usual_length / length) + rest * math.log(usual_length / new_length)
            certainty = _of_unknown_variance(certainty / spread, at)
            yield Change(moment, f"{of}{length:.0f} -> {new_length:.0f} characters a request", certainty)


def _differs(before: float, after: float) -> bool:
    return max(before, after) > FACTOR * min(before, after)


def surprise(rate: float, usual: float, burst: float) -> float:
    """Returns the rate function of requests per second: about -log of the probability of `rate`, for each second.

    usual: their mean. burst: mean requests of an arrival.
    """
    arrivals, more = usual / burst, 1 - 1 / burst
    if rate < usual:
        # Where something else than chance has kept requests together, pauses are longer than between such bursts.
        return (usual - rate) ** 2 / (2 * usual * (2 * burst - 1))
    # The exponential tilt z under which `rate` is the mean: arrivals * (1 - more) * z / (1 - more * z)**2 = rate.
    both = 2 * rate * more + arrivals * (1 - more)
    z = 2 * rate / (both + math.sqrt(both**2 - (2 * rate * more) ** 2))
    return rate * math.log(z) - arrivals * ((1 - more) * z / (1 - more * z) - 1)


def _of_unknown_variance(certainty: float, count: float) -> float:
    """Returns a log-likelihood ratio if the variance is not known, but estimated from so many numbers."""
    return count / 2 * math.log1p(2 * certainty / count)


class _Crowds:
    """How much the requests of single seconds differ from their mean."""

    def __init__(self, requests: Sequence[float], crowds: Sequence[Mapping[float, float]]) -> None:
        self._requests = [0.0, *accumulate(requests)]
        edges = {edge for each in crowds for edge in each}
        self._seconds = {edge: [0.0, *accumulate(each.get(edge, 0.0) for each in crowds)] for edge in edges}

    def certainty(self, at: int, burst: float) -> float:
        """Returns the log-likelihood ratio of more variance from a moment on."""
        (before, known), (after, count) = self._deviance(0, at, burst), self._deviance(at, -1, burst)
        if not before or after < before:
            return 0.0
        ratio = after / before
        common = (known + count * ratio) / (known + count)
        return ((known + count) * math.log(common) - count * math.log(ratio)) / 2

    def _deviance(self, first: int, last: int, burst: float) -> tuple[float, float]:
        """Returns the mean deviance of seconds, and how many normal numbers would show it as exactly."""
        requests = self._requests[last] - self._requests[first]
        seconds = {edge: sums[last] - sums[first] for edge, sums in self._seconds.items()}
        total = sum(seconds.values())
        if not total or not requests:
            return 0.0, 0.0
        deviance = sum(
            2 * number * surprise(edge, requests / total, burst) for edge, number in seconds.items() if number
        )
        # With a mean of n requests in a second, their kurtosis exceeds a normal one by 6 * burst / n.
        return deviance / total, total / (1 + 3 * burst * total / requests)


class _Series:
    """Amounts in proportion to sizes: requests to seconds, characters to texts. All are running sums."""

    def __init__(self, sizes: Sequence[float], amounts: Sequence[float]) -> None:
        self.sizes = [0.0, *accumulate(sizes)]
        self._amounts = [0.0, *accumulate(amounts)]
        pairs = list(zip(sizes, amounts, strict=True))
        self._squares = [0.0, *accumulate(amount**2 / size if size else 0.0 for size, amount in pairs)]
        self._counts = [0, *accumulate(size > 0 for size, _ in pairs)]

    def means(self, at: int) -> tuple[float, float, float]:
        """Returns the mean amounts for a size before a moment, after it, and of all."""
        return self._mean(0, at), self._mean(at, -1), self._mean(0, -1)

    def _mean(self, first: int, last: int) -> float:
        size = self.sizes[last] - self.sizes[first]
        return (self._amounts[last] - self._amounts[first]) / size if size else 0.0

    def dispersion(self, at: int) -> float:
        """Returns the variance before a moment by the mean; 1 if it is not known."""
        mean, count = self._mean(0, at), self._counts[at]
        if count < 2 or not mean:
            return 1.0
        return (self._squares[at] / mean - self._amounts[at]) / (count - 1)

    def burst(self, at: int) -> float:
        """Returns the mean of geometric amounts that arrive together before a moment: the variance is 2b - 1 times the
        mean."""
        return max((self.dispersion(at) + 1) / 2, 1.0)

    def total(self, at: int) -> float:
        """Returns the amounts before a moment."""
        return self._amounts[at]
