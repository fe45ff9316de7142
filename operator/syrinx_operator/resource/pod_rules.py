"""The rules between fields of pods, volumes and peers."""

import json
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from syrinx_operator.resource import pods
from syrinx_operator.resource.conditions import (
    FORBIDDEN,
    Condition,
    ItemsCondition,
    Rule,
    cel_of,
    equals,
    exactly_one,
    has,
    immutable,
    is_empty,
    matches,
    read,
    requires,
    starts_with,
    unique,
)
from syrinx_stages.contract.settings import TOKEN_VARIABLE

RESERVED_ENV = frozenset(
    {TOKEN_VARIABLE, "REDIS_URL", "REDIS_PASSWORD", "REDIS_CA_FILE", "POD_NAME", "HOME", "HF_TOKEN", "HF_ENDPOINT"}
    | {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONUNBUFFERED"}
)
"""Environment variables that Syrinx sets in its pods."""
RESERVED_PATHS = ("/etc/syrinx", "/models", "/tmp")
"""Directories on which Syrinx mounts its own volumes."""
RESERVED_VOLUME_PREFIX = "syrinx-"
RESERVED_LABEL_PREFIXES = ("syrinx.dev/", "app.kubernetes.io/")


def _forbidden_key_prefixes(field: str) -> Rule:
    prefixes, labels = RESERVED_LABEL_PREFIXES, cel_of(field)
    message = f"keys that start with {' or '.join(prefixes)} are reserved"
    allowed = " && ".join(f"!key.startsWith({json.dumps(prefix)})" for prefix in prefixes)
    condition = ItemsCondition(
        f"!has({labels}) || {labels}.all(key, {allowed})",
        lambda value: (((), key) for key in read(value, field) if key.startswith(prefixes)),
    )
    return Rule(field, condition, message, detail=f"{{item}}: {message}", reason=FORBIDDEN)


_OUTSIDE_RESERVED_PATHS = Condition(
    f"!{json.dumps(RESERVED_PATHS)}.exists(path, self.mountPath == path || self.mountPath.startsWith(path + '/'))",
    lambda volume: not any(f"{volume.mount_path}/".startswith(f"{path}/") for path in RESERVED_PATHS),
)


POD_RULES: Final[Mapping[type[Struct], tuple[Rule, ...]]] = {
    pods.PodFields: (
        _forbidden_key_prefixes("podLabels"),
        _forbidden_key_prefixes("podAnnotations"),
        unique("extraVolumes", "two volumes have the same mountPath", "mountPath"),
    ),
    pods.EnvVar: (
        Rule(
            "name",
            ~Condition(
                f"self.name in {json.dumps(sorted(RESERVED_ENV))}", lambda variable: variable.name in RESERVED_ENV
            ),
            "is set by Syrinx",
            detail="{self.name} is set by Syrinx",
            message_expression='self.name + " is set by Syrinx"',
            reason=FORBIDDEN,
        ),
        exactly_one("value", "secret", "configMap"),
    ),
    pods.ExtraVolume: (
        Rule(
            "name",
            ~starts_with("name", RESERVED_VOLUME_PREFIX),
            f"names that start with {RESERVED_VOLUME_PREFIX} are reserved",
            reason=FORBIDDEN,
        ),
        Rule("mountPath", _OUTSIDE_RESERVED_PATHS, f"{', '.join(RESERVED_PATHS)} are reserved", reason=FORBIDDEN),
        Rule("mountPath", ~matches("mountPath", "/[.]{1,2}(/|$)"), "must not contain `.` or `..`"),
        requires(
            "subPath",
            ~matches("subPath", "^/|(^|/)[.][.](/|$)"),
            "must be a directory in the volume, without a leading / and without `..`",
        ),
        exactly_one("claim", "secret", "configMap", "emptyDir"),
    ),
    pods.Toleration: (
        Rule("key", has("key") | equals("operator", "Exists"), "is required unless operator is Exists"),
        requires("value", equals("operator", "Equal"), "must not be set with operator Exists"),
        requires("tolerationSeconds", has("effect") & equals("effect", "NoExecute"), "needs effect NoExecute"),
    ),
    pods.Storage: (immutable("self == oldSelf", "is immutable once the volume exists"),),
    pods.Peer: (
        requires(
            "cidr", ~has("namespace") & is_empty("podLabels"), "must not be combined with `namespace` or `podLabels`"
        ),
    ),
}
