"""What the operator may do in a namespace: the table that the charts and the kustomization are checked against."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from syrinx_operator.cluster.kinds import (
    AUTOSCALER,
    EVENT,
    LEASE,
    OPTIONAL,
    PIPELINE,
    POD,
    SECRET,
    WATCHED,
    Kind,
)

_WATCH: Final = ("get", "list", "watch")
_WRITE: Final = ("create", "patch", "delete")
"""Applying an object that is not there yet needs `create` and `patch`."""


class Right(Struct, frozen=True):
    """Verbs on a resource, or on a subresource (`ttspipelines/status`)."""

    group: str
    """Empty for the core group."""
    resource: str
    verbs: tuple[str, ...]


def _right(kind: Kind, *verbs: str, subresource: str = "") -> Right:
    group = kind.api_version.rpartition("/")[0]
    return Right(group, f"{kind.plural}/{subresource}" if subresource else kind.plural, verbs)


RIGHTS: Final = (
    _right(PIPELINE, *_WATCH),
    _right(PIPELINE, "patch", subresource="status"),
    *(_right(kind, *_WATCH, *_WRITE) for kind in WATCHED),
    *(_right(kind, "get", "list", *_WRITE) for kind in OPTIONAL),
    _right(POD, "list", "watch"),
    # The metadata of the Redis password. Never list or watch, which show every Secret.
    _right(SECRET, "get", "create"),
    _right(AUTOSCALER, "list"),
    _right(LEASE, "get", "create", "update"),
    _right(EVENT, "create"),
)
"""In every namespace whose pipelines the operator keeps."""

PROXY_RIGHTS: Final = (_right(POD, "get", "update", subresource="proxy"),)
"""Only where it reaches the stages through the API server; the verbs are those of GET and PUT."""
