"""Connectors, requests without a gateway, and claims without a stage."""

import contextlib
import time
from collections.abc import AsyncIterator, Iterable

from syrinx_stages.connector.base import Claim, QueueFull
from syrinx_stages.connector.redis.consumer import RedisConsumer
from syrinx_stages.connector.redis.streams import RedisConnector
from syrinx_stages.contract.keys import Keys
from syrinx_stages.contract.messages import SpeechRequest, TaskType
from syrinx_stages.contract.settings import GatewaySettings

KEYS = Keys("bench", "1")
CLIENTS = 50
"""Requests are of so many clients, in turn."""


@contextlib.asynccontextmanager
async def connected(url: str, count: int = 1) -> AsyncIterator[list[RedisConnector]]:
    """Yields connectors of one pipeline, which are closed at the end."""
    connectors = [RedisConnector(url, KEYS) for _ in range(count)]
    try:
        yield connectors
    finally:
        for connector in connectors:
            await connector.close()


def name(number: int) -> str:
    """Returns the ID of a request."""
    return f"{number:032x}"


async def submit(connector: RedisConnector, numbers: Iterable[int], max_queue: int = 100_000) -> int:
    """Queues requests unless `max_queue` wait. Returns how many were queued."""
    limits, queued = GatewaySettings(max_queue=max_queue, max_queue_seconds=3600), 0
    for number in numbers:
        request = SpeechRequest(
            id=name(number),
            accepted_at=time.time(),
            text="text",
            task_type=TaskType.CUSTOM_VOICE,
            client=name(number % CLIENTS),
        )
        with contextlib.suppress(QueueFull):
            await connector.submit(request, limits)
            queued += 1
    return queued


async def claim(consumer: RedisConsumer, count: int) -> list[Claim]:
    """Returns the next `count` requests of the queue, claimed."""
    claims: list[Claim] = []
    while len(claims) < count:
        claims += await consumer.claim(count - len(claims))
    return claims
