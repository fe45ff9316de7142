"""The gateways' Service on clusters with one and with two families of addresses."""

from __future__ import annotations

import pytest

from support.kube import KubeCluster
from support.operator import CRD, Harness
from support.rbac import rights

pytestmark = pytest.mark.virtual
GATEWAY = "demo-gateway"


@pytest.fixture
async def dual(tmp_path):
    """A dual-stack cluster, whose default is IPv4."""
    async with KubeCluster(crd=CRD, rights=rights(), families=("IPv4", "IPv6")) as running:
        yield Harness(running, tmp_path)


def edit(harness, **service):
    """Applies the pipeline with a Service."""
    harness.apply(gateway={"service": service})


def families(harness):
    return harness.cluster.get("service", GATEWAY)["spec"]["ipFamilies"]


async def degraded(harness, text):
    """Waits until the status says why the Service cannot be applied, and returns all that it says."""
    await harness.wait(lambda: text in harness.condition("Degraded")["message"], text)
    return harness.condition("Degraded")["message"]


@pytest.mark.parametrize("first", ["IPv4", "IPv6"])
async def test_the_family_that_the_api_server_adds_is_kept(dual, first):
    """An apply with the first family alone would be refused, and one at each reconcile would be a fight."""
    async with dual.operator() as operator:
        edit(dual, ipFamilyPolicy="PreferDualStack", ipFamilies=[first])
        await dual.settled()
        both = families(dual)
        assert both[0] == first and sorted(both) == ["IPv4", "IPv6"]
        await dual.quiet(operator)
        edit(dual, ipFamilyPolicy="PreferDualStack", ipFamilies=[first], annotations={"a.example/b": "c"})
        await dual.settled()
        found = dual.cluster.get("service", GATEWAY)
        assert (found["metadata"]["annotations"]["a.example/b"], found["spec"]["ipFamilies"]) == ("c", both)
        assert dual.condition("Degraded")["status"] == "False"


async def test_a_service_becomes_dual_stack_and_back_and_keeps_its_address(dual):
    async with dual.operator() as operator:
        dual.apply()
        await dual.settled()
        address = dual.cluster.get("service", GATEWAY)["spec"]["clusterIP"]
        edit(dual, ipFamilyPolicy="RequireDualStack")
        await dual.wait(lambda: families(dual) == ["IPv4", "IPv6"], "both families")
        edit(dual)
        await dual.settled()
        assert families(dual) == ["IPv4", "IPv6"], "without a policy it stays as it is"
        edit(dual, ipFamilyPolicy="SingleStack", ipFamilies=["IPv4"])
        await dual.wait(lambda: families(dual) == ["IPv4"], "one family")
        assert dual.cluster.get("service", GATEWAY)["spec"]["clusterIPs"] == [address]
        await dual.quiet(operator)


async def test_a_single_stack_cluster_is_enough_for_prefer_and_not_for_require(harness):
    async with harness.operator() as operator:
        edit(harness, ipFamilyPolicy="PreferDualStack")
        await harness.settled()
        assert families(harness) == ["IPv4"]
        await harness.quiet(operator)
        edit(harness, ipFamilyPolicy="RequireDualStack")
        await degraded(harness, "this cluster is not configured for dual-stack services")
        assert families(harness) == ["IPv4"]


async def test_another_first_family_needs_another_service(dual):
    async with dual.operator():
        dual.apply()
        await dual.settled()
        edit(dual, ipFamilies=["IPv6"])
        message = await degraded(dual, f"Service {GATEWAY} cannot be applied")
        assert "the first of ipFamilies cannot change: set it back, or delete the Service" in message
        assert families(dual) == ["IPv4"]
        dual.cluster.delete("service", GATEWAY)
        await dual.settled()
        assert families(dual) == ["IPv6"]
        assert dual.condition("Degraded")["status"] == "False"
