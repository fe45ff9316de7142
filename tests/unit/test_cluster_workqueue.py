"""When a pipeline is looked at. The event loop's clock is turned by hand: nothing here waits for real."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from syrinx_operator.cluster import workqueue
from syrinx_operator.cluster.telemetry import Telemetry
from syrinx_operator.cluster.workqueue import (
    MAX_DELAY,
    MIN_INTERVAL,
    RECONCILE_TIMEOUT,
    STUCK_MARGIN,
    NamespacedName,
    Outcome,
    Result,
    WorkQueue,
    backoff,
)

DEMO = NamespacedName("default", "demo")
OTHER = NamespacedName("default", "other")
PERIOD = 15.0


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose time passes only when nothing is left to do."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        select = self._selector.select

        def skip(timeout: float | None) -> list:
            if timeout:
                self.now += timeout
            return select(0)

        self._selector.select = skip

    def time(self) -> float:
        return self.now


class Pipelines:
    """What looks at pipelines find: the results given, the last of them for ever."""

    def __init__(self, *results: Result | Exception) -> None:
        self.results = list(results) or [Result(outcome=Outcome.SUCCEEDED)]
        self.looks: list[tuple[NamespacedName, float]] = []
        self.failures: list[int] = []
        self.takes = 0.0
        self.under_way: list[NamespacedName] = []
        self.most_at_once = 0
        self.gone: list[NamespacedName] = []
        self.during: Callable[[], None] = lambda: None

    async def look(self, key: NamespacedName, failures: int) -> Result:
        assert key not in self.under_way, "looked at twice at once"
        self.looks.append((key, asyncio.get_running_loop().time()))
        self.failures.append(failures)
        self.under_way.append(key)
        self.most_at_once = max(self.most_at_once, len(self.under_way))
        try:
            self.during()
            await asyncio.sleep(self.takes)
        finally:
            self.under_way.remove(key)
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        if isinstance(result, Exception):
            raise result
        return result

    @property
    def times(self) -> list[float]:
        return [at - 1000.0 for _, at in self.looks]


def timed(test: Callable[..., Any]) -> Callable[..., None]:
    """Runs a test on a clock of its own, which starts at 1000."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        with asyncio.Runner(loop_factory=Clock) as runner:
            runner.run(test(**fixtures))

    return run


def start(pipelines: Pipelines) -> WorkQueue:
    return WorkQueue(
        pipelines.look, resync_seconds=PERIOD, telemetry=Telemetry(), forget=pipelines.gone.append, jitter=lambda: 0.0
    )


def failed(retry_after: float | None = None) -> Result:
    return Result(outcome=Outcome.FAILED, message="down", retry_after=retry_after)


@timed
async def test_a_pipeline_is_looked_at_at_once_and_then_once_a_period():
    pipelines = Pipelines()
    start(pipelines).add(DEMO)
    await asyncio.sleep(2 * PERIOD + 1)
    assert pipelines.times == [0, PERIOD, 2 * PERIOD]


@timed
async def test_what_happens_in_a_burst_is_looked_at_once():
    pipelines = Pipelines()
    queue = start(pipelines)
    for _ in range(10):
        queue.add(DEMO)
    await asyncio.sleep(0.1)
    for _ in range(10):
        queue.add_known(DEMO)
    await asyncio.sleep(5)
    assert pipelines.times == [0, MIN_INTERVAL]


@timed
async def test_what_happens_during_a_look_is_looked_at_after_it_never_at_once():
    pipelines = Pipelines()
    queue = start(pipelines)
    pipelines.takes = 2.0
    queue.add(DEMO)
    await asyncio.sleep(1)
    queue.add(DEMO)
    await asyncio.sleep(4)
    assert pipelines.times == [0, 2]


@timed
async def test_objects_of_unknown_pipelines_wake_nothing():
    pipelines = Pipelines()
    queue = start(pipelines)
    queue.add_known(DEMO)
    await asyncio.sleep(PERIOD * 2)
    assert not pipelines.looks


@timed
async def test_failures_back_off_to_a_minute_and_one_success_ends_it():
    delays = [0.5, 1, 2, 4, 8, 16, 32, 60, 60]
    pipelines = Pipelines(*[failed()] * len(delays), Result(outcome=Outcome.SUCCEEDED))
    start(pipelines).add(DEMO)
    await asyncio.sleep(sum(delays) + PERIOD + 1)
    waits = [after - before for before, after in zip(pipelines.times, pipelines.times[1:], strict=False)]
    assert waits == [*delays, PERIOD]
    assert pipelines.failures == [*range(10), 0]


def test_jitter_shortens_a_wait_by_half_at_the_most():
    assert backoff(1, 0.0) == 0.5
    assert backoff(1, 1.0) == 0.25
    assert backoff(1000, 0.0) == MAX_DELAY
    assert backoff(1000, 1.0) == MAX_DELAY / 2


@timed
async def test_an_exception_is_a_failure_and_ends_nothing(caplog):
    pipelines = Pipelines(ValueError("odd"), Result(outcome=Outcome.SUCCEEDED))
    queue = start(pipelines)
    queue.add(DEMO)
    await asyncio.sleep(1)
    assert pipelines.times == [0, 0.5]
    assert "ValueError: odd" in caplog.text


@timed
async def test_a_look_that_hangs_is_broken_off(caplog):
    pipelines = Pipelines()
    pipelines.takes = 10_000
    start(pipelines).add(DEMO)
    await asyncio.sleep(RECONCILE_TIMEOUT + 1)
    assert pipelines.times == [0, RECONCILE_TIMEOUT + 0.5]
    assert "timed out after 120 s" in caplog.text


@timed
async def test_while_the_server_is_in_trouble_events_do_not_make_it_worse():
    pipelines = Pipelines(*[failed()] * 5, Result(outcome=Outcome.SUCCEEDED))
    queue = start(pipelines)
    queue.add(DEMO)
    for _ in range(70):
        await asyncio.sleep(0.1)
        queue.add_known(DEMO)
    assert pipelines.times == [0, 0.5, 1.5, 3.5]


@timed
async def test_an_edit_waits_for_no_failure_of_before():
    pipelines = Pipelines(*[failed()] * 5, Result(outcome=Outcome.SUCCEEDED))
    queue = start(pipelines)
    queue.add_version(DEMO, 1)
    await asyncio.sleep(4)
    queue.add_version(DEMO, 2)
    await asyncio.sleep(0.1)
    assert pipelines.times == [0, 0.5, 1.5, 3.5, 4]


@timed
async def test_what_the_server_asks_for_holds_for_everybody():
    pipelines = Pipelines(failed(retry_after=30), Result(outcome=Outcome.SUCCEEDED))
    queue = start(pipelines)
    queue.add_version(DEMO, 1)
    await asyncio.sleep(1)
    queue.add_version(DEMO, 2)
    queue.add_known(DEMO)
    await asyncio.sleep(40)
    assert pipelines.times == [0, 30]


@timed
async def test_a_status_of_our_own_is_no_edit():
    pipelines = Pipelines()
    queue = start(pipelines)
    queue.add_version(DEMO, ("uid", 1))
    await asyncio.sleep(2)
    queue.add_version(DEMO, ("uid", 1))
    await asyncio.sleep(2)
    assert pipelines.times == [0]
    queue.add_version(DEMO, ("uid", 2))
    await asyncio.sleep(2)
    assert pipelines.times == [0, 4]


@timed
async def test_what_hinders_a_pipeline_is_looked_at_again_soon_but_does_not_hold_up_the_rest():
    pipelines = Pipelines(Result(outcome=Outcome.BLOCKED, message="in the way"))
    queue = start(pipelines)
    queue.add(DEMO)
    await asyncio.sleep(40)
    assert pipelines.times == [0, 0.5, 1.5, 3.5, 7.5, 15.5, 30.5]
    queue.add_known(DEMO)
    await asyncio.sleep(0.1)
    assert pipelines.times[-1] == 40


@timed
async def test_a_pipeline_of_another_operator_is_looked_at_when_the_result_says():
    pipelines = Pipelines(Result(outcome=Outcome.STANDBY, requeue_after=5))
    start(pipelines).add(DEMO)
    await asyncio.sleep(11)
    assert pipelines.times == [0, 5, 10]


@timed
async def test_a_deleted_pipeline_is_forgotten():
    pipelines = Pipelines(Result(outcome=Outcome.DELETED))
    queue = start(pipelines)
    queue.add(DEMO)
    await asyncio.sleep(PERIOD * 3)
    assert pipelines.times == [0]
    assert pipelines.gone == [DEMO]
    assert queue.oldest_age() == 0
    assert not [task for task in asyncio.all_tasks() if task.get_name() == f"pipeline {DEMO}"]


@timed
async def test_one_made_anew_while_the_old_one_is_cleared_away_is_not():
    pipelines = Pipelines(Result(outcome=Outcome.DELETED), Result(outcome=Outcome.SUCCEEDED))
    queue = start(pipelines)
    pipelines.during = lambda: queue.add(DEMO) if len(pipelines.looks) == 1 else None
    queue.add(DEMO)
    await asyncio.sleep(2)
    assert pipelines.times == [0, MIN_INTERVAL]
    assert pipelines.gone == []


@timed
async def test_only_so_many_pipelines_are_looked_at_at_the_same_time_and_each_in_its_turn():
    pipelines = Pipelines()
    pipelines.takes = 1.0
    queue = start(pipelines)
    keys = [NamespacedName("default", f"p{index}") for index in range(workqueue.MAX_CONCURRENT_RECONCILES * 3)]
    for key in keys:
        queue.add(key)
    await asyncio.sleep(3.5)
    assert pipelines.most_at_once == workqueue.MAX_CONCURRENT_RECONCILES
    assert [key for key, _ in pipelines.looks] == keys


@timed
async def test_a_slow_pipeline_does_not_hold_up_another():
    pipelines = Pipelines()
    queue = start(pipelines)
    pipelines.takes = 100
    queue.add(DEMO)
    await asyncio.sleep(1)
    pipelines.takes = 0
    queue.add(OTHER)
    await asyncio.sleep(1)
    assert pipelines.looks == [(DEMO, 1000.0), (OTHER, 1001.0)]


@timed
async def test_the_probe_fails_when_no_look_has_ended_for_too_long():
    pipelines = Pipelines()
    queue = start(pipelines)
    pipelines.takes = 1e9
    queue.add(DEMO)
    await asyncio.sleep(RECONCILE_TIMEOUT)
    assert queue.stuck() == []
    assert queue.oldest_age() == RECONCILE_TIMEOUT
    # A task that ended, as by a bug, looks at nothing any more.
    queue._items[DEMO].task.cancel()
    await asyncio.sleep(STUCK_MARGIN + 1)
    assert queue.stuck() == [DEMO]


@timed
async def test_waiting_as_long_as_the_server_asks_is_not_being_stuck():
    pipelines = Pipelines(failed(retry_after=600))
    queue = start(pipelines)
    queue.add(DEMO)
    await asyncio.sleep(500)
    assert queue.stuck() == []


@timed
async def test_conditions_are_counted():
    results = [{"Ready": "True"}, {"Ready": "False", "Degraded": "True"}]
    pipelines = Pipelines(*(Result(outcome=Outcome.SUCCEEDED, conditions=each) for each in results))
    queue = start(pipelines)
    queue.add(DEMO)
    await asyncio.sleep(0.1)
    queue.add(OTHER)
    await asyncio.sleep(0.1)
    assert queue.condition_counts() == {("Ready", "True"): 1, ("Ready", "False"): 1, ("Degraded", "True"): 1}


@timed
async def test_closing_breaks_off_what_is_under_way():
    pipelines = Pipelines()
    pipelines.takes = 100
    queue = start(pipelines)
    queue.add(DEMO)
    await asyncio.sleep(1)
    await queue.close()
    assert pipelines.under_way == []
