"""The permissions that the operator uses, which the charts and the kustomization must grant."""

from msgspec import Struct

from support.kube import Rights
from syrinx_operator.cluster.objects.kinds import (
    EVENT,
    LEASE,
    OPTIONAL,
    PIPELINE,
    PLANNED,
    POD,
    SECRET,
    Kind,
)


class PolicyRule(Struct, frozen=True):
    """An RBAC rule for a resource or a subresource (`ttspipelines/status`)."""

    group: str
    resource: str
    verbs: tuple[str, ...]


def _rule(kind: Kind, *verbs: str, subresource: str = "") -> PolicyRule:
    return PolicyRule(kind.group, kind.plural + subresource, verbs)


_WATCH = ("list", "watch")
# Server-side apply of a new object requires `create` and `patch`.
_WRITE = ("create", "patch", "delete")

RBAC_RULES = (
    # A command about a canary is removed once it was followed.
    _rule(PIPELINE, *_WATCH, "patch"),
    _rule(PIPELINE, "patch", subresource="/status"),
    *(_rule(kind, "get", *_WATCH, *_WRITE) for kind in (*PLANNED, *OPTIONAL)),
    # A StatefulSet that waits for a pod on a lost node does not replace the others.
    _rule(POD, *_WATCH, "delete"),
    # Metadata of the Redis password only; list and watch would expose every Secret.
    _rule(SECRET, "get", "create"),
    _rule(LEASE, "get", "create", "update"),
    _rule(EVENT, "create"),
)
"""Rules for every namespace with pipelines."""

PROXY_RBAC_RULES = (_rule(POD, "get", "update", subresource="/proxy"),)
"""Additional rules if the operator reaches the stages through the API server; the verbs are those of GET and PUT."""


def rights() -> Rights:
    """Returns the rights of the operator with access to the stages through the API server."""
    table = [
        {"apiGroups": [rule.group], "resources": [rule.resource], "verbs": list(rule.verbs)}
        for rule in (*RBAC_RULES, *PROXY_RBAC_RULES)
    ]
    return Rights.of_role(table)
