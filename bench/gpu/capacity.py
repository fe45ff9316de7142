"""What the load generator itself can carry, and what it adds to the times: `python -m gpu.capacity`.

A stand-in answers at once and streams noise at four times the speed of speech; whatever is measured of it is ours.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import re
import sys
from collections.abc import AsyncIterator

import msgspec

from gpu import table
from gpu.generators import Generators, Heard
from gpu.requests import Requests
from syrinx_operator.commands.bench.run import corpus
from syrinx_operator.commands.bench.stats import Loop, summarize
from syrinx_operator.local import die_with_parent
from syrinx_stages.contract.family import FAMILY

RAMP = (2, 2, 4, 8, 12)
SPEED = 4.0
"""Of the stand-in, in seconds of audio a second."""
_NOISE = random.Random(0).randbytes(RAMP[-1] * FAMILY.frame_bytes)
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: audio/pcm\r\ntransfer-encoding: chunked\r\n\r\n"


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Requests of one connection."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            body = msgspec.json.decode(await reader.readexactly(int(length[1]) if length else 0))
            writer.write(_HEAD)
            await _speak(writer, body["max_new_tokens"])
    writer.close()


async def _speak(writer: asyncio.StreamWriter, frames: int) -> None:
    sizes = iter(RAMP)
    size = 0
    while frames:
        size = min(next(sizes, RAMP[-1]), frames)
        frames -= size
        writer.write(b"%x\r\n%b\r\n" % (size * FAMILY.frame_bytes, _NOISE[: size * FAMILY.frame_bytes]))
        await writer.drain()
        await asyncio.sleep(size * FAMILY.frame_seconds / SPEED)
    writer.write(b"0\r\n\r\n")


async def _serve() -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextlib.asynccontextmanager
async def stand_in() -> AsyncIterator[str]:
    """Gives the URL of a stand-in, a process of its own."""
    own = (sys.executable, "-m", "gpu.capacity", "--serve")
    command = (sys.executable, die_with_parent.__file__, str(os.getpid()), *own)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(await process.stdout.readline())}"
    finally:
        process.kill()
        await process.wait()


async def measure(servers: int, generators: int, seconds: float) -> str:
    """The table."""
    requests = Requests(corpus(), (), 0, True)
    rows = []

    def add(load: str, heard: Heard) -> None:
        point = summarize(Loop.OPEN, 0, heard.outcomes, heard.wall_seconds)
        assert point.ttfa is not None, "the stand-in is loud"
        times = (point.ttfa.p50, point.ttfa.p95, point.ttfa.p99)
        cells = [f"{point.underrun_share:.2%}", f"{heard.burden.late_p99_ms:.1f}", f"{heard.burden.cpu_share:.0%}"]
        rows.append([load, str(point.requests), *(f"{1000 * value:.1f}" for value in times), *cells])

    async with contextlib.AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(stand_in()) for _ in range(servers)]
        load = await stack.enter_async_context(Generators(generators, urls, requests))
        await load.closed(8, 1.0)
        for rate in (1, 20, 80, 160):
            add(f"{rate} req/s", await load.open(rate, max(seconds, 10 / rate)))
        for listeners in (256, 512, 1024):
            add(f"{listeners} listeners", await load.live(listeners, 4.0, seconds))
    head = ("load", "requests", "TTFA p50 ms", "p95", "p99", "underruns", "sent late p99 ms", "busiest generator")
    return table.markdown(head, rows)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m gpu.capacity", description=__doc__)
    parser.add_argument("--serve", action="store_true", help="be the stand-in")
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--generators", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a load")
    given = parser.parse_args()
    if given.serve:
        asyncio.run(_serve())
    else:
        print(asyncio.run(measure(given.servers, given.generators, given.seconds)))


if __name__ == "__main__":
    main()
