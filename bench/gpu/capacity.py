"""Measures the load generator's own capacity and the latency that it adds: `python -m gpu.capacity`.

Mock servers answer at once and stream noise at four times real time, so all latency is the load generator's.
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
from gpu.load_generator import LoadGenerator, LoadResult
from gpu.workload import Workload
from syrinx_operator.commands.bench.run import corpus
from syrinx_operator.commands.bench.stats import Loop, summarize
from syrinx_operator.local import die_with_parent
from syrinx_stages.contract.family import FAMILY

RAMP = (2, 2, 4, 8, 12)
SPEED = 4.0
"""Audio seconds per second that a mock server streams."""
_NOISE = random.Random(0).randbytes(RAMP[-1] * FAMILY.frame_bytes)
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: audio/pcm\r\ntransfer-encoding: chunked\r\n\r\n"


async def _handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Handles the requests of one connection."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            body = msgspec.json.decode(await reader.readexactly(int(length[1]) if length else 0))
            writer.write(_HEAD)
            await _stream(writer, body["max_new_tokens"])
    writer.close()


async def _stream(writer: asyncio.StreamWriter, frames: int) -> None:
    sizes = iter(RAMP)
    while frames:
        size = min(next(sizes, RAMP[-1]), frames)
        frames -= size
        writer.write(b"%x\r\n%b\r\n" % (size * FAMILY.frame_bytes, _NOISE[: size * FAMILY.frame_bytes]))
        await writer.drain()
        await asyncio.sleep(size * FAMILY.frame_seconds / SPEED)
    writer.write(b"0\r\n\r\n")


async def _serve() -> None:
    server = await asyncio.start_server(_handle, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextlib.asynccontextmanager
async def mock_server() -> AsyncIterator[str]:
    """Runs a mock server as a process and yields its URL."""
    module = (sys.executable, "-m", "gpu.capacity", "--serve")
    command = (sys.executable, die_with_parent.__file__, str(os.getpid()), *module)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(await process.stdout.readline())}"
    finally:
        process.kill()
        await process.wait()


async def measure(servers: int, workers: int, seconds: float) -> str:
    """Returns the results as a table."""
    workload = Workload(corpus(), (), 0, True)
    rows = []

    def add(load: str, result: LoadResult) -> None:
        point = summarize(Loop.OPEN, 0, result.outcomes, result.wall_seconds)
        assert point.ttfa is not None, "the mock server's noise is audible"
        times = (point.ttfa.p50, point.ttfa.p95, point.ttfa.p99)
        generator = result.generator
        cells = [f"{point.underrun_share:.2%}", f"{generator.late_p99_ms:.1f}", f"{generator.cpu_share:.0%}"]
        rows.append([load, str(point.requests), *(f"{1000 * value:.1f}" for value in times), *cells])

    async with contextlib.AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(mock_server()) for _ in range(servers)]
        generator = await stack.enter_async_context(LoadGenerator(workers, urls, workload))
        await generator.closed(8, 1.0)
        for rate in (1, 20, 80, 160):
            add(f"{rate} req/s", await generator.open(rate, max(seconds, 10 / rate)))
        for listeners in (256, 512, 1024):
            add(f"{listeners} listeners", await generator.live(listeners, 4.0, seconds))
    head = ("load", "requests", "TTFA p50 ms", "p95", "p99", "underruns", "send delay p99 ms", "busiest worker")
    return table.markdown(head, rows)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m gpu.capacity", description=__doc__)
    parser.add_argument("--serve", action="store_true", help="run a mock server (used internally)")
    parser.add_argument("--servers", type=int, default=4, help="mock servers (default: 4)")
    parser.add_argument("--generators", type=int, default=4, help="workers of the load generator (default: 4)")
    parser.add_argument("--seconds", type=float, default=4.0, help="duration of each load (default: 4)")
    args = parser.parse_args()
    if args.serve:
        asyncio.run(_serve())
    else:
        print(asyncio.run(measure(args.servers, args.generators, args.seconds)))


if __name__ == "__main__":
    main()
