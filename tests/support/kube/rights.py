"""Authorization by RBAC rules, with a record of all checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from support.kube.errors import forbidden

Object = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """One authorization check."""

    verb: str
    group: str
    resource: str
    """Resource with subresource: `pods/proxy`."""
    namespace: str
    """Empty for cluster-wide requests."""
    name: str


@dataclass
class Rights:
    """Rules by namespace, or cluster-wide (None)."""

    rules: list[tuple[str | None, Object]] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    denied: list[Asked] = field(default_factory=list)

    @staticmethod
    def of_role(rules: list[Object], namespace: str = "default") -> Rights:
        """Returns the rights of a Role bound in a namespace."""
        return Rights([(namespace, rule) for rule in rules])

    @staticmethod
    def of_manifests(manifests: list[Object], account: str) -> Rights:
        """Returns the rights that the bindings in manifests give to a ServiceAccount."""
        roles = {
            (obj["kind"], obj["metadata"].get("namespace"), obj["metadata"]["name"]): obj.get("rules") or []
            for obj in manifests
            if obj["kind"] in ("Role", "ClusterRole")
        }
        rights = Rights()
        for obj in manifests:
            if obj["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
                continue
            if not any(s["kind"] == "ServiceAccount" and s["name"] == account for s in obj.get("subjects", ())):
                continue
            where = obj["metadata"].get("namespace") if obj["kind"] == "RoleBinding" else None
            reference = obj["roleRef"]
            home = where if reference["kind"] == "Role" else None
            found = roles[reference["kind"], home, reference["name"]]
            rights.rules += [(where, rule) for rule in found]
        return rights

    def check(self, asked: Asked) -> None:
        """Raises ApiError 403 unless a rule allows the request."""
        self.asked.append(asked)
        if not self.allows(asked):
            self.denied.append(asked)
            where = f'in the namespace "{asked.namespace}"' if asked.namespace else "at the cluster scope"
            raise forbidden(
                f'{asked.resource} "{asked.name}" is forbidden: User "operator" cannot {asked.verb} resource '
                f'"{asked.resource}" in API group "{asked.group}" {where}'
            )

    def allows(self, asked: Asked) -> bool:
        return any(where in (None, asked.namespace) and _covers(rule, asked) for where, rule in self.rules)


def _covers(rule: Object, asked: Asked) -> bool:
    def has(field: str, value: str) -> bool:
        return value in rule.get(field, ()) or "*" in rule.get(field, ())

    names = rule.get("resourceNames")
    return (
        has("verbs", asked.verb)
        and has("apiGroups", asked.group)
        and has("resources", asked.resource)
        and (not names or asked.name in names)
    )
