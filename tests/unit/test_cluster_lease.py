"""Leases: acquiring, renewing, losing, releasing."""

from __future__ import annotations

import msgspec
import pytest

from support.fake_api import FakeApi, unavailable
from syrinx_operator.cluster.api import ApiError
from syrinx_operator.cluster.lease import LeaseForeign, LeaseLost, Leases, LeaseTaken
from syrinx_operator.cluster.state import Owner

OWNER = Owner("demo", "voices", "u-1", generation=1)
SECONDS = 15.0


class Operators:
    """Two operators with one API server and one clock."""

    def __init__(self) -> None:
        self.api, self.now = FakeApi(), 1000.0
        self.first, self.second = (Leases(self.api, name, SECONDS, lambda: self.now) for name in ("first", "second"))

    @property
    def lease(self) -> dict:
        return self.api.objects["Lease", "demo-operator"]


@pytest.fixture
def operators() -> Operators:
    return Operators()


async def test_a_held_lease_passes_the_fence_until_shortly_before_it_expires(operators):
    with pytest.raises(LeaseLost):
        operators.first.fence(OWNER)
    await operators.first.hold(OWNER)
    operators.now += 11.9
    operators.first.fence(OWNER)
    operators.now += 0.2
    with pytest.raises(LeaseLost, match="demo-operator was not renewed in time"):
        operators.first.fence(OWNER)


async def test_a_lease_is_renewed_only_after_a_third_of_its_duration(operators):
    await operators.first.hold(OWNER)
    operators.now += 4.9
    await operators.first.hold(OWNER)
    assert [verb for verb, _, _ in operators.api.writes] == ["create"]
    operators.now += 0.2
    await operators.first.hold(OWNER)
    assert [verb for verb, _, _ in operators.api.writes] == ["create", "replace"]
    assert operators.lease["spec"]["leaseTransitions"] == 0


async def test_another_operator_takes_over_a_lease_that_is_not_renewed_for_its_duration(operators):
    await operators.first.hold(OWNER)
    with pytest.raises(LeaseTaken, match="operator first holds the Lease"):
        await operators.second.hold(OWNER)
    operators.now += SECONDS
    with pytest.raises(LeaseTaken):
        await operators.second.hold(OWNER)
    operators.now += 0.1
    await operators.second.hold(OWNER)
    assert operators.lease["spec"] | {"acquireTime": "", "renewTime": ""} == {
        "holderIdentity": "second",
        "leaseDurationSeconds": 15,
        "leaseTransitions": 1,
        "acquireTime": "",
        "renewTime": "",
    }
    with pytest.raises(LeaseTaken):
        await operators.first.hold(OWNER)


async def test_a_renewed_lease_is_not_taken_over(operators):
    await operators.first.hold(OWNER)
    for _ in range(5):
        operators.now += 6
        await operators.first.hold(OWNER)
        with pytest.raises(LeaseTaken):
            await operators.second.hold(OWNER)


async def test_a_released_lease_can_be_acquired_immediately(operators):
    await operators.first.hold(OWNER)
    await operators.first.release()
    await operators.second.hold(OWNER)
    operators.second.fence(OWNER)
    with pytest.raises(LeaseLost):
        operators.first.fence(OWNER)


async def test_releasing_does_not_touch_a_lease_that_another_operator_has_taken(operators):
    await operators.first.hold(OWNER)
    operators.lease["spec"]["holderIdentity"] = "second"
    await operators.first.release()
    assert operators.lease["spec"]["holderIdentity"] == "second"


async def test_losing_a_race_for_a_lease_is_no_error(operators):
    conflict = ApiError(409, "Conflict", "modified")
    operators.api.fail = lambda verb, kind, name: conflict if verb == "create" else None
    with pytest.raises(LeaseTaken):
        await operators.first.hold(OWNER)


async def test_the_lease_of_a_recreated_pipeline_is_a_new_one(operators):
    await operators.first.hold(OWNER)
    recreated = msgspec.structs.replace(OWNER, uid="u-2")
    with pytest.raises(LeaseLost):
        operators.first.fence(recreated)
    with pytest.raises(LeaseTaken) as error:
        await operators.first.hold(recreated)
    assert not isinstance(error.value, LeaseForeign), "the old Lease is about to be garbage collected"


async def test_a_lease_without_an_owner_has_to_be_deleted_by_the_user(operators):
    operators.api.add({"kind": "Lease", "metadata": {"name": "demo-operator"}, "spec": {}})
    with pytest.raises(LeaseForeign, match="does not belong to this pipeline: delete it"):
        await operators.first.hold(OWNER)


async def test_an_unavailable_server_leaves_the_lease_held_until_it_expires(operators):
    await operators.first.hold(OWNER)
    operators.api.fail = lambda verb, kind, name: unavailable()
    operators.now += 10
    with pytest.raises(ApiError):
        await operators.first.hold(OWNER)
    operators.first.fence(OWNER)
