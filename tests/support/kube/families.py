"""Families and addresses of Services, as the API server's allocator gives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from support.kube.errors import invalid

Object = dict[str, Any]
FAMILIES = ("IPv4", "IPv6")
SINGLE, REQUIRE = "SingleStack", "RequireDualStack"


def assign(new: Object, old: Object | None, served: Sequence[str], address: Callable[[str], str]) -> None:
    """Sets policy, families and addresses, in place. Raises ApiError 422.

    `served` are the families of the cluster's Services, first the default; `address` returns one of a family.
    """
    spec, before = new["spec"], old["spec"] if old is not None else {}
    policy = spec.setdefault("ipFamilyPolicy", before.get("ipFamilyPolicy", SINGLE))
    families, addresses = list(spec.get("ipFamilies", ())), list(spec.get("clusterIPs", ()))
    if old is not None and policy == SINGLE:
        families = families[:1] if families == before["ipFamilies"] else families
        addresses = addresses[:1] if addresses == before["clusterIPs"] else addresses
    if causes := list(_causes(policy, families, addresses, before, served)):
        raise invalid("Service", new["metadata"]["name"], *causes)
    families += [family_of(each) for each in addresses[len(families) :] if each != "None"]
    families = families or [served[0]]
    if policy != SINGLE and len(families) == 1 and len(served) == 2:
        families += [each for each in FAMILIES if each not in families]
    if spec.get("clusterIP") == "None":
        addresses = ["None"]
    else:
        addresses += [address(family) for family in families[len(addresses) :]]
    spec |= {"ipFamilies": families, "clusterIPs": addresses, "clusterIP": addresses[0]}


def _causes(policy: str, families: list[str], addresses: list[str], before: Object, served: Sequence[str]) -> Any:
    field = ("spec.ipFamilyPolicy", f'Invalid value: "{policy}": ')
    for index, (given, family) in enumerate(zip(addresses, families, strict=False)):
        if given != "None" and family_of(given) != family:
            message = f'Invalid value: "{given}": expected an {family} value as indicated by `ipFamilies[{index}]`'
            yield f"spec.clusterIPs[{index}]", message
    if policy == SINGLE and len(families) == 2:
        message = "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified"
        yield field[0], field[1] + message
    if policy != SINGLE and families and len(families) < len(before.get("ipFamilies", ())):
        yield field[0], field[1] + "must be 'SingleStack' to release the secondary IP family"
    if policy == REQUIRE and len(served) < 2:
        yield field[0], field[1] + "this cluster is not configured for dual-stack services"
    for index, family in enumerate(families):
        if family not in served:
            yield f"spec.ipFamilies[{index}]", f'Invalid value: "{family}": not configured on this cluster'


def family_of(address: str) -> str:
    """Returns the family of an address."""
    return "IPv6" if ":" in address else "IPv4"
