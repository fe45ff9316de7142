"""What a real Redis answers is what the model of the protocol answers."""

import pytest

from support.writing import chained
from syrinx_stages.connector.base import OUTPUT_STREAM
from syrinx_stages.connector.redis_blocking import BlockingConnection
from syrinx_stages.connector.redis_pool import CommandPool
from syrinx_stages.contract.keys import END_SEQUENCE, Group, Position, StreamKind
from syrinx_stages.contract.messages import Audio, Codes, End, EndReason
from tests.simulation.model.recorder import Recorder
from tests.simulation.model.trace import validate

ENTRIES = {StreamKind.CODES: Codes, StreamKind.AUDIO: Audio}


@pytest.fixture
def recorder(monkeypatch):
    """Records the scripts and claims of all connectors, which a test calls one at a time."""
    recorder = Recorder()
    run, call = CommandPool.run, BlockingConnection.call

    async def recorded_run(pool, script, keys, arguments, **options):
        reply = await run(pool, script, keys, arguments, **options)
        recorder.script(script.digest, keys, ["0", *arguments], reply)
        return reply

    async def recorded_call(connection, build):
        reply = await call(connection, build)
        command, _, group, owner, *_ = build()
        if command == b"XREADGROUP":
            recorder.delivered(group, owner, reply)
        return reply

    monkeypatch.setattr(CommandPool, "run", recorded_run)
    monkeypatch.setattr(BlockingConnection, "call", recorded_call)
    return recorder


def frames(claim, *numbers, end=False):
    kind = OUTPUT_STREAM[claim.fence.group]
    entries = [(Position(number), ENTRIES[kind](b"")) for number in numbers]
    if end:
        entries.append((Position(numbers[-1], END_SEQUENCE), End(EndReason.STOP)))
    return chained(claim, kind, *entries, finish=end)


async def served(world, group):
    """A request whose owner is cut off, superseded, and superseded again by a reclaim; then it ends."""
    gateway, late, current = (world.connector() for _ in range(3))
    first_consumer, second_consumer = late.consumer(group, "late"), current.consumer(group, "current")
    ticket, first = await world.submit_claimed(gateway, first_consumer)
    await late.append(frames(first, 1, 2))
    await first_consumer.refresh([first.entry_id])
    await world.age(group, "late", 61)
    (second,) = await second_consumer.take_over(1)
    await current.append(frames(second, 3, 4))
    await late.append(frames(first, *range(3, 7)))
    await current.append(frames(second, 3, 4, 5))
    await first_consumer.refresh([first.entry_id])
    await late.append(frames(second, 3, 7)[1:])
    (third,) = await second_consumer.reclaim(second)
    lost = frames(third, 6, 7, 8)
    await current.append(lost[2:])
    await current.append(lost)
    await current.append(frames(third, 6, 7, 8, 9, end=True))
    await current.append(frames(second, 6))
    await gateway.release(ticket)
    await current.append(frames(third, 6))


@pytest.mark.parametrize("group", Group)
async def test_the_model_allows_the_trace_of_a_request(world, recorder, group):
    await served(world, group)
    assert validate(recorder.actions) == []
    outcomes = {entry.outcome for action in recorder.actions for entry in action.entries}
    assert outcomes == {"written", "superseded", "behind", "gone"}, "the trace shows every outcome"
    assert {action.name for action in recorder.actions} >= {"submit", "claim", "accept", "refresh", "append", "release"}


async def test_the_model_refuses_a_trace_with_another_outcome(world, recorder):
    await served(world, Group.TALKERS)
    changed = {"written": "superseded", "superseded": "written", "behind": "written", "gone": "written"}
    for number, action in enumerate(recorder.actions):
        if action.name == "append":
            first, *rest = action.entries
            forged = action._replace(entries=(first._replace(outcome=changed[first.outcome]), *rest))
        elif action.name == "accept":
            forged = action._replace(token="9" + action.token)
        elif action.name == "refresh":
            forged = action._replace(held=not action.held)
        else:
            continue
        trace = [*recorder.actions[:number], forged, *recorder.actions[number + 1 :]]
        assert f"action {number}, " in "".join(validate(trace)), forged
