"""Secrets: read by name, once per period."""

from __future__ import annotations

from base64 import b64encode

import pytest

from support.fake_api import FakeApi, unavailable
from syrinx_operator.cluster.objects.names import owner_reference
from syrinx_operator.cluster.objects.state import Owner
from syrinx_operator.cluster.reconcile.secrets import Secrets
from syrinx_operator.cluster.watch.api import ApiError

DEMO = Owner("demo", "voices", "u-1", 1)


class World:
    """Secrets that are kept for five minutes."""

    def __init__(self) -> None:
        self.api, self.now = FakeApi(), 1000.0
        self.secrets = Secrets(self.api, 300.0, lambda owner: None, lambda: self.now)
        self.requests: list[tuple] = []
        self.api.fail = lambda *request: self.requests.append(request)

    def create(self, **data: str) -> None:
        metadata = {"name": "demo-stages", "namespace": "voices", "ownerReferences": [owner_reference(DEMO)]}
        encoded = {key: b64encode(text.encode()).decode() for key, text in data.items()}
        self.api.add({"kind": "Secret", "metadata": metadata, "data": encoded})

    async def token(self) -> str | None:
        found = await self.secrets.find_token(DEMO)
        return found and found.value


async def test_a_secret_is_read_once_per_period():
    world = World()
    world.create(token="a")
    assert [await world.token() for _ in range(3)] == ["a"] * 3
    world.create(token="b")
    world.now += 299
    assert await world.token() == "a" and len(world.requests) == 1
    world.now += 1
    assert await world.token() == "b" and len(world.requests) == 2


async def test_a_missing_secret_is_read_again():
    world = World()
    assert await world.token() is None
    world.create(token="a")
    assert await world.token() == "a"


async def test_a_secret_that_was_just_read_is_kept_if_only_older_ones_are_forgotten():
    world = World()
    world.create(token="a")
    await world.token()
    world.now += 9
    world.secrets.forget("voices", "demo", 10.0)
    assert await world.token() and len(world.requests) == 1
    world.now += 1
    world.secrets.forget("voices", "demo", 10.0)
    assert await world.token() and len(world.requests) == 2


async def test_an_error_is_not_remembered():
    world = World()
    world.create(token="a")
    world.api.fail = lambda *request: unavailable()
    with pytest.raises(ApiError):
        await world.token()
    world.api.fail = lambda *request: None
    assert await world.token() == "a"
