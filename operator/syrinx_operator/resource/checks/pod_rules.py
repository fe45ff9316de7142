"""The rules between fields of pods, volumes and peers."""

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Final

from msgspec import Struct

from syrinx_operator.resource.checks.conditions import (
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
from syrinx_operator.resource.checks.pod_template import (
    RESERVED_ENV,
    RESERVED_LABEL_PREFIXES,
    RESERVED_PATHS,
    RESERVED_VOLUME_PREFIX,
)
from syrinx_operator.resource.fields import pods


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


def _amount(cel: str) -> str:
    """CEL for: a quantity, as text, in thousandths."""
    return f"double({cel}.find('^[0-9.]+')) * {_THOUSANDTHS}[{cel}.find('[A-Za-z]*$')]"


def _is_within_limit(name: str, resources: pods.Resources) -> bool:
    limit, request = resources.limits.get(name), resources.requests.get(name)
    return limit is None or request is None or _parsed(request) <= _parsed(limit) * (1 + Decimal("1e-9"))


def _parsed(quantity: int | str) -> Decimal:
    text = str(quantity)
    digits = text.rstrip("".join(_MULTIPLIERS))
    return Decimal(digits) * _MULTIPLIERS[text[len(digits) :]]


_IS_EXISTS: Final = has("operator") & equals("operator", "Exists")
_MULTIPLIERS: Final = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{f"{name}": Decimal(1000**power) for power, name in enumerate("kMGTP", 1)},
    **{f"{name}i": Decimal(1024**power) for power, name in enumerate("KMGTP", 1)},
}
_THOUSANDTHS: Final = "{" + ", ".join(f"'{name}': {float(each * 1000)!r}" for name, each in _MULTIPLIERS.items()) + "}"


def _whole_devices(field: str) -> Rule:
    amounts = f"self.{field}"
    # matches() exceeds the cost budget of Kubernetes before 1.30. The conversion of 500m is an error, which refuses it.
    whole = f"double(int(double({amounts}[name]))) == double({amounts}[name])"
    condition = ItemsCondition(
        f"!has({amounts}) || {amounts}.all(name, !name.contains('/') || {whole})",
        lambda value: (
            ((name,), amount)
            for name, amount in getattr(value, field).items()
            if "/" in name and not re.search("^[0-9]+([.]0+)?$", str(amount))
        ),
    )
    message = "devices such as GPUs are not divisible: give a whole number"
    return Rule(field, condition, message, detail=f"{{item}}: {message}")


def _within_limit(name: str) -> Rule:
    request, limit = (f"string(self.{field}['{name}'])" for field in ("requests", "limits"))
    condition = Condition(
        "!has(self.requests) || !has(self.limits) || "
        f"!('{name}' in self.requests && '{name}' in self.limits) || "
        f"{_amount(request)} <= {_amount(limit)} * 1.000000001",
        lambda value: _is_within_limit(name, value),
    )
    return Rule("requests", condition, f"the request of {name} is more than its limit")


POD_RULES: Final[Mapping[type[Struct], tuple[Rule, ...]]] = {
    pods.PodFields: (
        _forbidden_key_prefixes("podLabels"),
        _forbidden_key_prefixes("podAnnotations"),
        unique("extraVolumes", "two volumes have the same mountPath", "mountPath"),
    ),
    pods.Resources: (
        *(_within_limit(name) for name in ("cpu", "memory", "ephemeral-storage")),
        _whole_devices("requests"),
        _whole_devices("limits"),
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
        Rule("key", has("key") | _IS_EXISTS, "is required unless operator is Exists"),
        requires("value", ~_IS_EXISTS, "must not be set with operator Exists"),
        requires("tolerationSeconds", has("effect") & equals("effect", "NoExecute"), "needs effect NoExecute"),
    ),
    pods.Storage: (
        immutable("self.accessMode == oldSelf.accessMode", "is immutable once the volume exists", "accessMode"),
        immutable(
            "has(self.storageClassName) == has(oldSelf.storageClassName) && "
            "(!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)",
            "is immutable once the volume exists",
            "storageClassName",
        ),
    ),
    pods.Peer: (
        requires(
            "cidr", ~has("namespace") & is_empty("podLabels"), "must not be combined with `namespace` or `podLabels`"
        ),
    ),
}
