"""The processor time of a Redis server, and a private server to measure."""

from collections.abc import Iterator
from contextlib import contextmanager

from redis import Redis

from syrinx_stages.connector.server import RedisServer


@contextmanager
def private_redis() -> Iterator[tuple[str, Redis]]:
    """Starts a server of its own. Yields its URL and a client."""
    with RedisServer() as server, Redis.from_url(server.url_with_password) as client:
        yield server.url_with_password, client


def redis_seconds(client: Redis) -> float:
    """Returns the processor seconds that the server has used, in user and system mode."""
    cpu = client.info("cpu")
    return float(cpu["used_cpu_user"] + cpu["used_cpu_sys"])


def busiest_commands(client: Redis, count: int = 8) -> dict[str, float]:
    """Returns the milliseconds spent in the commands that took most, those within scripts counted twice: there too."""
    stats = client.info("commandstats")
    spent = {name.removeprefix("cmdstat_"): each["usec"] / 1000 for name, each in stats.items()}
    return dict(sorted(spent.items(), key=lambda item: -item[1])[:count])
