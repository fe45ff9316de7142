"""A service that streams noise at once, so that all its latency is the load generator's: `python -m gpu.mock`.

Measure it with `python -m gpu.service --url URL`.
"""

import asyncio
import random

from aiohttp import web

from gpu.plan import EARLY_RAMP
from syrinx_stages.contract.family import FAMILY

PORT = 8091
SPEED = 4.0
"""Audio seconds per second."""
_NOISE = random.Random(0).randbytes(EARLY_RAMP[-1] * FAMILY.frame_bytes)


async def speech(request: web.Request) -> web.StreamResponse:
    """Streams noise of the requested length."""
    frames = (await request.json())["max_new_tokens"]
    response = web.StreamResponse()
    await response.prepare(request)
    sizes = iter(EARLY_RAMP)
    while frames:
        size = min(next(sizes, EARLY_RAMP[-1]), frames)
        frames -= size
        await response.write(_NOISE[: size * FAMILY.frame_bytes])
        await asyncio.sleep(size * FAMILY.frame_seconds / SPEED)
    return response


def application() -> web.Application:
    """Returns the service."""
    app = web.Application()
    app.router.add_post("/v1/audio/speech", speech)
    return app


if __name__ == "__main__":
    web.run_app(application(), host="127.0.0.1", port=PORT)
