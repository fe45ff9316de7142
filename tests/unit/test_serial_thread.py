"""A thread that runs functions in order, called from the event loop."""

import asyncio
import gc
import threading
import weakref

import pytest

from syrinx_stages.runtime.serial_thread import SerialThread

DEADLINE = 60.0


def join(name: str) -> None:
    """Waits until no thread has a name."""
    for each in threading.enumerate():
        if each.name == name:
            each.join(DEADLINE)
    assert not alive(name)


def alive(name: str) -> bool:
    return any(thread.name == name for thread in threading.enumerate())


async def test_runs_functions_in_order_on_one_thread() -> None:
    thread, ran = SerialThread("serial"), list[tuple[int, str]]()

    def record(number: int) -> int:
        ran.append((number, threading.current_thread().name))
        return number

    futures = [thread.start(record, number) for number in (1, 2)]
    thread.queue(lambda: record(3))
    queued = [thread.has_queued]
    futures.append(thread.start(record, 4))
    queued.append(thread.has_queued)
    assert queued == [True, False]
    assert await asyncio.gather(*futures) == [1, 2, 4]
    assert ran == [(number, "serial") for number in (1, 2, 3, 4)]
    await thread.close()
    assert not alive("serial")


async def test_an_exception_is_that_of_its_own_call() -> None:
    thread = SerialThread("failing")

    def fail() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        await thread.run(fail)
    assert await thread.run(lambda: 5) == 5
    await thread.close()


async def test_a_cancelled_call_does_not_begin() -> None:
    thread, ran, proceed = SerialThread("cancelling"), list[str](), threading.Event()
    first = thread.start(proceed.wait)
    thread.start(ran.append, "second").cancel()
    proceed.set()
    await first
    await thread.run(ran.append, "third")
    assert ran == ["third"]
    await thread.close()


async def test_an_abandoned_thread_ends_after_its_current_function() -> None:
    thread, ran, started, proceed = SerialThread("abandoned"), list[str](), threading.Event(), threading.Event()

    def current() -> None:
        started.set()
        proceed.wait()
        ran.append("current")

    running, waiting = thread.start(current), thread.start(ran.append, "waiting")
    assert started.wait(DEADLINE)
    thread.abandon()
    assert waiting.cancelled()
    proceed.set()
    await running
    join("abandoned")
    assert ran == ["current"]


async def test_a_waiting_thread_keeps_nothing_of_its_last_function() -> None:
    class Large:
        pass

    thread, large = SerialThread("idle"), Large()
    kept = weakref.ref(large)
    await thread.run(lambda one: None, large)
    del large
    # Its turn ends after the result has arrived.
    await thread.run(lambda: None)
    gc.collect()
    assert kept() is None
    await thread.close()


def test_a_thread_whose_event_loop_is_closed_ends() -> None:
    thread, proceed = SerialThread("orphaned"), threading.Event()

    async def leave() -> None:
        thread.start(proceed.wait)

    asyncio.run(leave())
    proceed.set()
    join("orphaned")
