"""Leases: acquiring, renewing, losing, releasing; and claims of namespaces."""

from __future__ import annotations

import asyncio

import pytest

from support.fake_api import FakeApi, unavailable
from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.state import Owner
from syrinx_operator.cluster.watch.api import ApiError
from syrinx_operator.cluster.watch.lease import CLAIM_SECONDS, LeaseLost, Leases, LeaseTaken
from syrinx_operator.cluster.watch.workqueue import NamespacedName

OWNER = Owner("demo", "voices", "u-1", generation=1)
SECONDS = 15.0


class Operators:
    """Operators with one API server and one clock: two of one installation, and one of another."""

    def __init__(self) -> None:
        self.api, self.now = FakeApi(), 1000.0
        self.prepared: list[str] = []
        self.error: ApiError | None = None
        self.first, self.second = self._leases("first"), self._leases("second")
        self.other = self._leases("other", "other-release")

    def _leases(self, name: str, lease: str = "release") -> Leases:
        async def prepare(namespace: str) -> None:
            if self.error is not None:
                raise self.error
            self.prepared.append(f"{name} {namespace}")

        return Leases(self.api, name, NamespacedName("operators", lease), SECONDS, prepare, lambda: self.now)

    @property
    def lease(self) -> dict:
        return self.api.objects["Lease", "release"]

    @property
    def claim(self) -> dict:
        return self.api.objects["Lease", names.LEASE]

    @property
    def verbs(self) -> list[str]:
        return [verb for verb, _, _ in self.api.writes]


@pytest.fixture
def operators() -> Operators:
    return Operators()


def may_write(leases: Leases) -> bool:
    try:
        leases.fence(OWNER)
    except LeaseLost:
        return False
    return True


async def refusal(leases: Leases) -> str:
    """Returns why it may not hold the namespace."""
    with pytest.raises(LeaseTaken) as taken:
        await leases.hold("voices")
    return str(taken.value)


async def test_a_held_lease_passes_the_fence_until_shortly_before_it_expires(operators):
    assert not may_write(operators.first)
    await operators.first.hold("voices")
    operators.now += 11.9
    operators.first.fence(OWNER)
    operators.now += 0.2
    with pytest.raises(LeaseLost, match="operators/release was not renewed in time"):
        operators.first.fence(OWNER)


async def test_a_lease_is_renewed_only_after_a_third_of_its_duration(operators):
    await operators.first.hold("voices")
    operators.now += 4.9
    await operators.first.hold("voices")
    assert operators.verbs == ["create", "create"]
    operators.now += 0.2
    await operators.first.hold("voices")
    assert operators.verbs == ["create", "create", "replace"]
    assert operators.lease["spec"]["leaseTransitions"] == 0


async def test_another_operator_takes_over_a_lease_that_is_not_renewed_for_its_duration(operators):
    await operators.first.hold("voices")
    assert "operator first holds the Lease" in await refusal(operators.second)
    operators.now += SECONDS
    await refusal(operators.second)
    operators.now += SECONDS / 3
    await operators.second.hold("voices")
    assert operators.lease["spec"] | {"acquireTime": "", "renewTime": ""} == {
        "holderIdentity": "second",
        "leaseDurationSeconds": 15,
        "leaseTransitions": 1,
        "acquireTime": "",
        "renewTime": "",
    }
    await refusal(operators.first)


async def test_all_pipelines_on_standby_share_one_request_for_the_lease(operators):
    await operators.first.hold("voices")
    requests: list[tuple] = []
    operators.api.fail = lambda *request: requests.append(request)
    for _ in range(10):
        assert "operator first holds the Lease" in await refusal(operators.second)
    assert requests == [("get", "Lease", "release")]


async def test_the_cache_is_refreshed_whenever_others_may_have_written(operators):
    await operators.first.hold("voices")
    operators.now += 6
    await operators.first.hold("voices")
    assert operators.prepared == ["first voices"], "a renewal needs none"
    operators.now += SECONDS + 1
    await operators.first.hold("voices")
    assert operators.prepared == ["first voices"] * 2


async def test_nothing_is_written_before_the_cache_is_refreshed(operators):
    operators.error = unavailable()
    with pytest.raises(ApiError):
        await operators.first.hold("voices")
    assert not may_write(operators.first)
    operators.error = None
    await operators.first.hold("voices")
    operators.first.fence(OWNER)


async def test_releasing_does_not_touch_a_lease_that_another_operator_has_taken(operators):
    await operators.first.hold("voices")
    operators.lease["spec"]["holderIdentity"] = "second"
    await operators.first.release()
    assert operators.lease["spec"]["holderIdentity"] == "second"


async def test_the_claims_of_namespaces_are_hardly_renewed(operators):
    await operators.first.hold("voices")
    operators.api.writes.clear()
    for _ in range(int(CLAIM_SECONDS / 6)):
        operators.now += 6
        await operators.first.hold("voices")
        operators.first.fence(OWNER)
    names_written = [name for _, _, name in operators.api.writes]
    assert names_written.count("release") == CLAIM_SECONDS / 6
    assert names_written.count(names.LEASE) == 2


async def test_another_installation_leaves_a_claimed_namespace_alone(operators):
    await operators.first.hold("voices")
    for _ in range(20):
        operators.now += 6
        await operators.first.hold("voices")
        assert "operator operators/release holds the Lease voices/ttspipelines" in await refusal(operators.other)


async def test_another_installation_takes_a_namespace_over_when_the_first_one_stops_renewing(operators):
    await operators.first.hold("voices")
    await refusal(operators.other)
    operators.now += SECONDS + 1
    await operators.other.hold("voices")
    operators.other.fence(OWNER)
    assert operators.claim["spec"]["holderIdentity"] == "operators/other-release"
    assert "operator operators/other-release holds the Lease" in await refusal(operators.first)
    assert not may_write(operators.first)


async def test_another_installation_takes_a_namespace_over_as_soon_as_the_first_one_releases_its_lease(operators):
    await operators.first.hold("voices")
    await operators.first.release()
    await operators.other.hold("voices")
    operators.other.fence(OWNER)


async def test_the_next_operator_of_an_installation_keeps_its_claims(operators):
    await operators.first.hold("voices")
    await operators.first.release()
    await operators.second.hold("voices")
    assert operators.claim["spec"]["holderIdentity"] == "operators/release"
    assert operators.claim["spec"]["leaseTransitions"] == 0
    assert operators.prepared == ["first voices", "second voices"]


async def test_a_claim_whose_installation_cannot_be_seen_expires_by_itself(operators):
    forbidden = ApiError(403, "Forbidden", "leases is forbidden")
    await operators.first.hold("voices")
    operators.api.fail = lambda verb, kind, name: forbidden if (verb, name) == ("get", "release") else None
    await refusal(operators.other)
    operators.now += CLAIM_SECONDS
    await refusal(operators.other)
    operators.now += SECONDS
    await operators.other.hold("voices")


async def test_a_namespace_whose_claim_is_not_renewed_is_not_written_to(operators):
    await operators.first.hold("voices")
    operators.api.fail = lambda verb, kind, name: unavailable() if name == names.LEASE else None
    for _ in range(int(CLAIM_SECONDS * 0.8 / 6)):
        operators.now += 6
        await operators.first.hold("voices")
        operators.first.fence(OWNER)
    operators.now += 6
    with pytest.raises(ApiError):
        await operators.first.hold("voices")
    assert not may_write(operators.first)


async def test_a_namespace_without_pipelines_is_released(operators, monkeypatch):
    await operators.first.hold("voices")
    operators.first.forget("voices")
    assert not may_write(operators.first)
    slept = asyncio.Event()

    async def sleep(seconds: float) -> None:
        if slept.is_set():
            await asyncio.Event().wait()
        slept.set()

    monkeypatch.setattr(asyncio, "sleep", sleep)
    keeper = asyncio.create_task(operators.first.keep())
    async with asyncio.timeout(5):
        while operators.claim["spec"]["holderIdentity"]:
            await asyncio.wait([keeper], timeout=0.001)
    keeper.cancel()
    await operators.first.hold("voices")
    operators.first.fence(OWNER)


async def test_losing_a_race_for_a_lease_is_no_error(operators):
    conflict = ApiError(409, "Conflict", "modified")
    operators.api.fail = lambda verb, kind, name: conflict if verb == "create" else None
    await refusal(operators.first)


async def test_a_deleted_lease_is_created_again(operators):
    await operators.first.hold("voices")
    operators.api.objects.clear()
    operators.now += 6
    await operators.first.hold("voices")
    assert operators.lease["spec"]["holderIdentity"] == "first"


async def test_an_unavailable_server_leaves_the_lease_held_until_it_expires(operators):
    await operators.first.hold("voices")
    operators.api.fail = lambda verb, kind, name: unavailable()
    operators.now += 10
    await operators.first.hold("voices")
    operators.first.fence(OWNER)
    operators.now += 4
    with pytest.raises(ApiError):
        await operators.first.hold("voices")
    assert not may_write(operators.first)
