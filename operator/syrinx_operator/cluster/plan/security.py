"""Restricted pod security: what no pod of a pipeline may do."""

from __future__ import annotations

from syrinx_operator.cluster.state import Manifest


def pod_security(user: int) -> Manifest:
    """A pod's security context; volumes become the group's, once."""
    return {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Manifest:
    """A container's security context."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
