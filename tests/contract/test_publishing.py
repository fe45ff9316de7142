"""What a stage's publisher does when Redis has lost what it had accepted."""

import asyncio

from prometheus_client import Histogram

from support.writing import chained, stop_after
from syrinx_stages.connector.base import Append
from syrinx_stages.contract.keys import END_SEQUENCE, Position, StreamKind
from syrinx_stages.contract.messages import Codes
from syrinx_stages.contract.stages import Stage
from syrinx_stages.runtime.requests.journal import Journal
from syrinx_stages.runtime.requests.publisher import Publisher

CODES = StreamKind.CODES


async def test_a_lost_end_is_written_again_once_redis_is_back(world, until):
    """This stream has nothing more to write, which would show the loss: only the connection does."""
    gateway, owner = world.connector(), world.connector()
    _, claim = await world.submit_claimed(gateway, owner.consumer(Stage.TALKER, "owner"))
    written: list[Append] = []
    seconds = Histogram("seconds", "", registry=None)
    publisher = Publisher(owner, Journal(CODES), written.append, lambda *_: None, seconds)
    running = asyncio.create_task(publisher.run())
    last = Position(1, END_SEQUENCE)
    publisher.put(chained(claim, CODES, (Position(1), Codes(b"1")), (last, stop_after(b"1")), finish=True))

    async def has_ended():
        return await owner.last_position("one", CODES) == last

    await until(has_ended)
    stream = world.keys.stream("one", CODES)
    await world.raw.xdel(stream, str(last))
    await world.raw.execute_command("XSETID", stream, str(Position(1)))
    await world.raw.client_kill_filter(_type="normal", skipme=True)
    await until(has_ended)
    running.cancel()
    assert [append.position for append in written] == [Position(1), last], "each is written once"
