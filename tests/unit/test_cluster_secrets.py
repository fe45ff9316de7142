"""Secrets: read by name, once per period."""

from __future__ import annotations

import pytest

from support.fake_api import FakeApi, unavailable
from syrinx_operator.cluster.reconcile.secrets import Secrets
from syrinx_operator.cluster.watch.api import ApiError


class World:
    """Secrets that are kept for five minutes."""

    def __init__(self) -> None:
        self.api, self.now = FakeApi(), 1000.0
        self.secrets = Secrets(self.api, 300.0, lambda: self.now)
        self.requests: list[tuple] = []
        self.api.fail = lambda *request: self.requests.append(request)

    def create(self, **data: str) -> None:
        self.api.add({"kind": "Secret", "metadata": {"name": "demo-stages", "namespace": "voices"}, "data": data})

    async def data(self) -> dict | None:
        found = await self.secrets.get("voices", "demo-stages")
        return found and found["data"]


async def test_a_secret_is_read_once_per_period():
    world = World()
    world.create(token="a")
    assert [await world.data() for _ in range(3)] == [{"token": "a"}] * 3
    world.create(token="b")
    world.now += 299
    assert await world.data() == {"token": "a"} and len(world.requests) == 1
    world.now += 1
    assert await world.data() == {"token": "b"} and len(world.requests) == 2


async def test_a_missing_secret_is_read_again():
    world = World()
    assert await world.data() is None
    world.create(token="a")
    assert await world.data() == {"token": "a"}


async def test_a_secret_that_was_just_read_is_kept_if_only_older_ones_are_forgotten():
    world = World()
    world.create(token="a")
    await world.data()
    world.now += 9
    world.secrets.forget("voices", "demo-stages", 10.0)
    assert await world.data() and len(world.requests) == 1
    world.now += 1
    world.secrets.forget("voices", "demo-stages", 10.0)
    assert await world.data() and len(world.requests) == 2


async def test_an_error_is_not_remembered():
    world = World()
    world.create(token="a")
    world.api.fail = lambda *request: unavailable()
    with pytest.raises(ApiError):
        await world.data()
    world.api.fail = lambda *request: None
    assert await world.data() == {"token": "a"}
