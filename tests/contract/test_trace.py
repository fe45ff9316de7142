"""What a real Redis answers is what the model of the protocol answers."""

import random

import pytest
from msgspec.structs import replace

from support.writing import chained
from syrinx_stages.connector.base import OUTPUT_STREAM
from syrinx_stages.connector.redis.blocking import BlockingConnection
from syrinx_stages.connector.redis.pool import CommandPool
from syrinx_stages.contract.keys import END_SEQUENCE, Position, StreamKind
from syrinx_stages.contract.messages import Audio, Codes, End, EndReason
from syrinx_stages.contract.stages import WORKERS
from tests.simulation.model.recorder import Recorder
from tests.simulation.model.trace import Action, validate

ENTRIES = {StreamKind.CODES: Codes, StreamKind.AUDIO: Audio}
SEEDS, STEPS = 60, 200
LAST = 6
"""The frame at which streams end."""


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


class Walk:
    """Random operations of a gateway and two replicas of each group on a few requests, with fail-overs.

    Replicas also write under claims that they have lost, from positions that they were at before.
    """

    def __init__(self, world, recorder, seed):
        self.world, self.recorder, self.chance = world, recorder, random.Random(seed)
        self.gateway, self.tickets, self.copies = world.connector(), {}, []
        self.processes = {name: world.connector() for name in ("a", "b")}
        self.consumers = {
            (group, name): process.consumer(group, name)
            for group in WORKERS
            for name, process in self.processes.items()
        }
        self.claims = []
        """Every claim that a replica was given, with the name of the replica."""

    async def step(self):
        often = [self.append] * 6 + [self.claim] * 3 + [self.take_over] * 2 + [self.refresh] * 2
        rarely = [self.submit, self.reclaim, self.release, self.copy, self.fail_over]
        await self.chance.choice(often + rarely)()

    async def submit(self):
        free = {"one", "two", "three"} - self.tickets.keys()
        if free:
            request_id = self.chance.choice(sorted(free))
            self.tickets[request_id] = await self.world.submit(self.gateway, request_id)

    async def claim(self):
        (group, name), consumer = self.chance.choice([*self.consumers.items()])
        groups = await self.world.raw.xinfo_groups(self.world.keys.requests)
        last = next((each["last-delivered-id"] for each in groups if each["name"].decode() == group), "0-0")
        if await self.world.raw.xrange(self.world.keys.requests, b"(%s" % last):
            self.claims += [(name, claim) for claim in await consumer.claim(1)]

    async def take_over(self):
        (group, name), consumer = self.chance.choice([*self.consumers.items()])
        await self.world.age(group, "b" if name == "a" else "a", 61)
        self.claims += [(name, claim) for claim in await consumer.take_over(9)]

    async def refresh(self):
        for consumer in self.consumers.values():
            await consumer.refresh(list(consumer._held))

    async def append(self):
        if self.claims:
            name, claim = self.chance.choice(self.claims[-6:])
            first = self.chance.randint(1, LAST - 2)
            numbers = range(first, first + self.chance.randint(1, 3))
            batch = frames(claim, *numbers, end=numbers[-1] == LAST)
            if first > 1:
                batch = [replace(batch[0], after=Position(first - 1)), *batch[1:]]
            await self.processes[name].append(batch)

    async def reclaim(self):
        if self.claims:
            name, claim = self.chance.choice(self.claims)
            self.claims += [(name, again) for again in await self.consumers[claim.fence.group, name].reclaim(claim)]

    async def release(self):
        if self.tickets and self.chance.random() < 0.5:
            _, ticket = self.tickets.popitem()
            await self.gateway.release(ticket)

    async def copy(self):
        """A replica gets what the primary has, and nothing later."""
        raw = self.world.raw
        self.copies.append({key: (await raw.dump(key), await raw.pttl(key)) for key in await self.world.names()})
        self.tickets_of_copy = dict(self.tickets)
        self.recorder.actions.append(Action("copy", f"copy {len(self.copies)}"))

    async def fail_over(self):
        """The replica is promoted: what came after its copy is lost."""
        if self.copies:
            await self.world.raw.delete(*await self.world.names())
            for key, (value, ttl) in self.copies[-1].items():
                await self.world.raw.restore(key, max(ttl, 0), value)
            self.tickets = dict(self.tickets_of_copy)
            self.recorder.actions.append(Action("restore", f"copy {len(self.copies)}"))


async def walked(world, recorder, seed):
    """Returns the actions of a random walk."""
    walk = Walk(world, recorder, seed)
    await walk.submit()
    for _ in range(STEPS):
        await walk.step()
    return recorder.actions


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_the_model_allows_random_walks(world, recorder, seed):
    assert validate(await walked(world, recorder, seed)) == []


async def test_the_model_refuses_a_walk_with_another_outcome(world, recorder):
    actions = await walked(world, recorder, 0)
    outcomes = {entry.outcome for action in actions for entry in action.entries}
    assert outcomes == {"written", "superseded", "behind", "gone"}, "the walk shows every outcome"
    changed = {"written": "superseded", "superseded": "written", "behind": "written", "gone": "written"}
    for number, action in enumerate(actions):
        if action.name == "append":
            first, *rest = action.entries
            forged = action._replace(entries=(first._replace(outcome=changed[first.outcome]), *rest))
        elif action.name == "accept" and action.token:
            forged = action._replace(token="9" + action.token)
        elif action.name == "refresh":
            forged = action._replace(held=not action.held)
        else:
            continue
        assert f"action {number}, " in "".join(validate([*actions[:number], forged])), forged
