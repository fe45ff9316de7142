"""The work queue, on an event loop with a simulated clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from syrinx_operator.cluster.watch import workqueue
from syrinx_operator.cluster.watch.telemetry import Telemetry
from syrinx_operator.cluster.watch.workqueue import (
    MIN_INTERVAL,
    RECONCILE_TIMEOUT,
    STUCK_MARGIN,
    NamespacedName,
    Outcome,
    Result,
    WorkQueue,
)

DEMO = NamespacedName("default", "demo")
OTHER = NamespacedName("default", "other")
PERIOD = 15.0
MAX_BACKOFF = 60.0

pytestmark = pytest.mark.virtual


class Pipelines:
    """A reconciler that returns the given results, the last one repeatedly."""

    def __init__(self, results: tuple[Result | Exception, ...], duration: float) -> None:
        self.results = list(results) or [Result(outcome=Outcome.SUCCEEDED)]
        self.reconciles: list[tuple[NamespacedName, float]] = []
        self.failures: list[int] = []
        self.duration = duration
        self.running: list[NamespacedName] = []
        self.max_running = 0
        self.deleted: list[NamespacedName] = []
        self.during: Callable[[], None] = lambda: None

    async def reconcile(self, key: NamespacedName, failures: int) -> Result:
        assert key not in self.running, "two reconciles of one pipeline at the same time"
        self.reconciles.append((key, asyncio.get_running_loop().time()))
        self.failures.append(failures)
        self.running.append(key)
        self.max_running = max(self.max_running, len(self.running))
        try:
            self.during()
            await asyncio.sleep(self.duration)
        finally:
            self.running.remove(key)
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        if isinstance(result, Exception):
            raise result
        return result

    @property
    def times(self) -> list[float]:
        return [at - 1000.0 for _, at in self.reconciles]


def start(*results: Result | Exception, duration: float = 0.0) -> tuple[Pipelines, WorkQueue]:
    pipelines = Pipelines(results, duration)
    return pipelines, WorkQueue(
        pipelines.reconcile,
        resync_seconds=PERIOD,
        max_backoff_seconds=MAX_BACKOFF,
        telemetry=Telemetry(),
        forget=pipelines.deleted.append,
        jitter=lambda: 0.0,
    )


def failed(retry_after: float | None = None) -> Result:
    return Result(outcome=Outcome.FAILED, message="down", retry_after=retry_after)


async def test_a_pipeline_is_reconciled_immediately_and_once_per_resync_period():
    pipelines, queue = start()
    queue.add(DEMO)
    await asyncio.sleep(2 * PERIOD + 1)
    assert pipelines.times == [0, PERIOD, 2 * PERIOD]


async def test_a_burst_of_changes_causes_one_reconcile():
    pipelines, queue = start()
    for _ in range(10):
        queue.add(DEMO)
    await asyncio.sleep(0.1)
    for _ in range(10):
        queue.add_known(DEMO)
    await asyncio.sleep(5)
    assert pipelines.times == [0, MIN_INTERVAL]


async def test_a_change_during_a_reconcile_causes_another_one_afterwards():
    pipelines, queue = start(duration=2.0)
    queue.add(DEMO)
    await asyncio.sleep(1)
    queue.add(DEMO)
    await asyncio.sleep(4)
    assert pipelines.times == [0, 2]


async def test_objects_of_unknown_pipelines_cause_no_reconcile():
    pipelines, queue = start()
    queue.add_known(DEMO)
    await asyncio.sleep(PERIOD * 2)
    assert not pipelines.reconciles


async def test_failures_back_off_up_to_a_minute_until_one_succeeds():
    delays = [0.5, 1, 2, 4, 8, 16, 32, 60, 60]
    pipelines, queue = start(*[failed()] * len(delays), Result(outcome=Outcome.SUCCEEDED))
    queue.add(DEMO)
    await asyncio.sleep(sum(delays) + PERIOD + 1)
    waits = [after - before for before, after in zip(pipelines.times, pipelines.times[1:], strict=False)]
    assert waits == [*delays, PERIOD]
    assert pipelines.failures == [*range(10), 0]


async def test_an_exception_counts_as_a_failure_and_is_retried(caplog):
    pipelines, queue = start(ValueError("odd"), Result(outcome=Outcome.SUCCEEDED))
    queue.add(DEMO)
    await asyncio.sleep(1)
    assert pipelines.times == [0, 0.5]
    assert "ValueError: odd" in caplog.text


async def test_a_hanging_reconcile_times_out(caplog):
    pipelines, queue = start(duration=10_000)
    queue.add(DEMO)
    await asyncio.sleep(RECONCILE_TIMEOUT + 1)
    assert pipelines.times == [0, RECONCILE_TIMEOUT + 0.5]
    assert "timed out after 120 s" in caplog.text


async def test_watch_events_do_not_shorten_the_backoff_of_a_failure():
    pipelines, queue = start(*[failed()] * 5, Result(outcome=Outcome.SUCCEEDED))
    queue.add(DEMO)
    for _ in range(70):
        await asyncio.sleep(0.1)
        queue.add_known(DEMO)
    assert pipelines.times == [0, 0.5, 1.5, 3.5]


async def test_an_edit_resets_the_backoff():
    pipelines, queue = start(*[failed()] * 5, Result(outcome=Outcome.SUCCEEDED))
    queue.add_version(DEMO, 1)
    await asyncio.sleep(4)
    queue.add_version(DEMO, 2)
    await asyncio.sleep(0.1)
    assert pipelines.times == [0, 0.5, 1.5, 3.5, 4]


async def test_retry_after_delays_edits_too():
    pipelines, queue = start(failed(retry_after=30), Result(outcome=Outcome.SUCCEEDED))
    queue.add_version(DEMO, 1)
    await asyncio.sleep(1)
    queue.add_version(DEMO, 2)
    queue.add_known(DEMO)
    await asyncio.sleep(40)
    assert pipelines.times == [0, 30]


async def test_a_status_update_is_no_edit():
    pipelines, queue = start()
    queue.add_version(DEMO, ("uid", 1))
    await asyncio.sleep(2)
    queue.add_version(DEMO, ("uid", 1))
    await asyncio.sleep(2)
    assert pipelines.times == [0]
    queue.add_version(DEMO, ("uid", 2))
    await asyncio.sleep(2)
    assert pipelines.times == [0, 4]


async def test_a_blocked_pipeline_is_retried_with_backoff_but_changes_do_not_wait():
    pipelines, queue = start(Result(outcome=Outcome.BLOCKED, message="name conflict"))
    queue.add(DEMO)
    await asyncio.sleep(40)
    assert pipelines.times == [0, 0.5, 1.5, 3.5, 7.5, 15.5, 30.5]
    queue.add_known(DEMO)
    await asyncio.sleep(0.1)
    assert pipelines.times[-1] == 40


async def test_requeue_after_replaces_the_resync_period():
    pipelines, queue = start(Result(outcome=Outcome.STANDBY, requeue_after=5))
    queue.add(DEMO)
    await asyncio.sleep(11)
    assert pipelines.times == [0, 5, 10]


async def test_a_deleted_pipeline_is_forgotten():
    pipelines, queue = start(Result(outcome=Outcome.DELETED))
    queue.add(DEMO)
    await asyncio.sleep(PERIOD * 3)
    assert pipelines.times == [0]
    assert pipelines.deleted == [DEMO]
    assert queue.oldest_age() == 0
    assert not [task for task in asyncio.all_tasks() if task.get_name() == f"pipeline {DEMO}"]


async def test_a_pipeline_recreated_during_its_deletion_is_kept():
    pipelines, queue = start(Result(outcome=Outcome.DELETED), Result(outcome=Outcome.SUCCEEDED))
    pipelines.during = lambda: queue.add(DEMO) if len(pipelines.reconciles) == 1 else None
    queue.add(DEMO)
    await asyncio.sleep(2)
    assert pipelines.times == [0, MIN_INTERVAL]
    assert pipelines.deleted == []


async def test_concurrency_is_limited_and_pipelines_are_reconciled_in_order():
    pipelines, queue = start(duration=1.0)
    keys = [NamespacedName("default", f"p{index}") for index in range(workqueue.MAX_CONCURRENT_RECONCILES * 3)]
    for key in keys:
        queue.add(key)
    await asyncio.sleep(3.5)
    assert pipelines.max_running == workqueue.MAX_CONCURRENT_RECONCILES
    assert [key for key, _ in pipelines.reconciles] == keys


async def test_a_reconcile_that_does_not_finish_counts_as_stuck():
    _, queue = start(duration=1e9)
    queue.add(DEMO)
    await asyncio.sleep(RECONCILE_TIMEOUT)
    assert queue.stuck() == []
    assert queue.oldest_age() == RECONCILE_TIMEOUT
    queue._items[DEMO].running_since -= STUCK_MARGIN + 1
    assert queue.stuck() == [DEMO]


async def test_a_pipeline_whose_task_has_ended_counts_as_stuck():
    """Only a bug ends it; then nothing reconciles the pipeline."""
    _, queue = start()
    queue.add(DEMO)
    await asyncio.sleep(1)
    queue._items[DEMO].task.cancel()
    await asyncio.sleep(1)
    assert queue.stuck() == [DEMO]


async def test_waiting_for_a_slot_is_not_stuck():
    """With 300 pipelines and a slow API server a turn takes many minutes."""
    pipelines, queue = start(duration=RECONCILE_TIMEOUT - 1)
    for index in range(300):
        queue.add(NamespacedName("default", f"p{index}"))
    for _ in range(40):
        await asyncio.sleep(RECONCILE_TIMEOUT)
        assert queue.stuck() == []
    assert len({key for key, _ in pipelines.reconciles}) == 300


async def test_conditions_are_counted():
    results = [{"Ready": "True"}, {"Ready": "False", "Degraded": "True"}]
    _, queue = start(*(Result(outcome=Outcome.SUCCEEDED, conditions=each) for each in results))
    queue.add(DEMO)
    await asyncio.sleep(0.1)
    queue.add(OTHER)
    await asyncio.sleep(0.1)
    assert queue.condition_counts() == {("Ready", "True"): 1, ("Ready", "False"): 1, ("Degraded", "True"): 1}


async def test_close_cancels_running_reconciles():
    pipelines, queue = start(duration=100)
    queue.add(DEMO)
    await asyncio.sleep(1)
    await queue.close()
    assert pipelines.running == []
