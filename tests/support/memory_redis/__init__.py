"""Redis 6.2 in memory, as far as the connector and its tests use it: `MemoryRedis` executes commands, `serve` listens.

The contract tests run on it and on a real Redis, and `tests/contract/test_memory_redis.py` compares their replies.
"""

from support.memory_redis.server import Client, MemoryRedis

__all__ = ["Client", "MemoryRedis"]
