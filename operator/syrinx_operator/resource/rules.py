"""The rules between fields of a TTSPipeline, which types alone cannot express.

Each rule is written once. `syrinx check` and the operator evaluate it in Python; the CRD has it in CEL, for the API
server. A rule belongs to a type and holds wherever that type is used. `self` is the value of the type.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from msgspec import Struct, inspect, structs

from syrinx_operator.resource.conditions import (
    Condition,
    Field,
    ItemsCondition,
    every_item_at_most,
    every_key,
    exactly_one,
    repeated_keys,
    sorted_by,
    unique,
)
from syrinx_operator.resource.documents import Path
from syrinx_operator.resource.pods import EnvVar, ExtraVolume, Peer, PodFields, Resources, Storage, Toleration
from syrinx_operator.resource.spec import (
    CodecSpec,
    ConnectorSpec,
    GatewaySpec,
    ModelCache,
    ModelSpec,
    PipelineSpec,
    RowBounds,
    ServiceSpec,
    StageSpec,
    TalkerSpec,
    TTSPipeline,
    TuningBounds,
)

NAME_LENGTH: Final = 40
"""Maximum length of a pipeline's name, which is a prefix of the names of its objects."""
RESERVED_ENV = frozenset(
    {"REDIS_URL", "REDIS_PASSWORD", "REDIS_CA_FILE", "POD_NAME", "HOME", "HF_TOKEN", "HF_ENDPOINT"}
    | {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONUNBUFFERED"}
)
"""Environment variables that Syrinx sets in its pods."""
RESERVED_PATHS = ("/etc/syrinx", "/models", "/tmp")
"""Directories on which Syrinx mounts its own volumes."""
RESERVED_VOLUME_PREFIX = "syrinx-"
RESERVED_LABEL_PREFIXES = ("syrinx.dev/", "app.kubernetes.io/")
_PORT = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
REDIS_URL: Final = (
    r"^rediss?://([^\s/@:?#\[\]]+@)?([A-Za-z0-9][-A-Za-z0-9._]*|\[[0-9A-Fa-f.:]+\])" + rf"(:{_PORT})?(/[0-9]*)?$"
)
"""SCHEME://[USER@]HOST[:PORT][/DB]; the host is a name, an IPv4 address, or an IPv6 address in brackets."""
PASSWORD_IN_URL: Final = "^[^/]*//[^/?#]*:[^/?#]*@"

PROCESS_FIELDS: Final = tuple((field.name, field.encode_name) for field in structs.fields(StageSpec))
"""Fields that configure a stage's process, in Python and in a resource. A colocated codec uses the talker's."""

ADMIN_PORT: Final = 9090
"""Port of metrics and settings in every stage pod."""
GPU: Final = "nvidia.com/gpu"
"""Resource name of GPUs."""


class Violation(Struct, frozen=True):
    """A rule that a resource violates."""

    path: Path
    """The field to change, from the resource's root."""
    message: str


class Rule(Struct, frozen=True):
    """A condition that must hold, and what to say if it does not."""

    condition: Condition | ItemsCondition
    message: str
    """What to do, in the API server's error."""
    field: str = ""
    """The field to change, relative to `self`. Default: `self`."""
    detail: str = ""
    """The message in Python, with values of `self` and the failed `item`. Default: `message`."""
    message_expression: str = ""
    """CEL of a message with values."""
    reason: Literal["FieldValueInvalid", "FieldValueForbidden", "FieldValueDuplicate"] = "FieldValueInvalid"
    cluster_only: bool = False
    """Whether the rule holds on Kubernetes only."""

    def manifest(self) -> dict[str, str]:
        """The rule as an item of `x-kubernetes-validations`."""
        manifest = {"rule": self.condition.cel, "message": self.message}
        if self.message_expression:
            manifest["messageExpression"] = self.message_expression
        if self.field:
            manifest["fieldPath"] = f".{self.field}"
        if self.reason != "FieldValueInvalid":
            manifest["reason"] = self.reason
        return manifest

    def violations(self, value: Any, path: Path) -> Iterator[Violation]:
        """Evaluates the rule for the object at a path."""
        field = self.field.split(".") if self.field else ()
        for item_path, item in self.condition.failures(value):
            message = self.detail.format(self=value, item=item) if self.detail else self.message
            yield Violation((*path, *field, *item_path), message)


def violations(pipeline: TTSPipeline) -> list[Violation]:
    """Returns violations of the rules that hold everywhere."""
    return list(_violations(pipeline, (), cluster_only=False))


def cluster_violations(pipeline: TTSPipeline) -> list[Violation]:
    """Returns violations of the rules that hold on Kubernetes only."""
    return list(_violations(pipeline, (), cluster_only=True))


def rules_of(struct: type[Struct]) -> tuple[Rule, ...]:
    """Returns the rules of a type, which the API server evaluates: those of its base classes first."""
    return tuple(
        rule for each in reversed(struct.__mro__) for rule in (*_RULES.get(each, ()), *_IMMUTABLE.get(each, ()))
    )


def _violations(value: Struct, path: Path, *, cluster_only: bool) -> Iterator[Violation]:
    struct = type(value)
    for each in reversed(struct.__mro__):
        for rule in _RULES.get(each, ()):
            if rule.cluster_only == cluster_only:
                yield from rule.violations(value, path)
    for name, field, key in _fields(struct):
        part = getattr(value, name)
        if isinstance(part, Struct):
            yield from _violations(part, (*path, field), cluster_only=cluster_only)
        elif isinstance(part, tuple):
            if key and not cluster_only:
                for index, text in repeated_keys(part, key):
                    yield Violation((*path, field, index, key), f"{text} is listed twice")
            for index, item in enumerate(part):
                if isinstance(item, Struct):
                    yield from _violations(item, (*path, field, index), cluster_only=cluster_only)


@functools.cache
def _fields(struct: type[Struct]) -> tuple[tuple[str, str, str], ...]:
    """Returns name, encoded name and list-map key of each field. A field that is no list-map has the key ""."""
    return tuple(
        (field.name, field.encode_name, _list_map_key(inspect.type_info(field.type)))
        for field in structs.fields(struct)
    )


def _list_map_key(kind: inspect.Type) -> str:
    schema = (kind.extra_json_schema or {}) if isinstance(kind, inspect.Metadata) else {}
    return "".join(schema.get("x-kubernetes-list-map-keys", ()))


def _requires(field: str, condition: Condition, message: str, **options: Any) -> Rule:
    """`field` may be set only where `condition` holds."""
    return Rule(~Field(field).is_set() | condition, message, field=field, **options)


def _forbidden_key_prefixes(field: str) -> Rule:
    prefixes = RESERVED_LABEL_PREFIXES
    message = f"keys that start with {' or '.join(prefixes)} are reserved"
    return Rule(
        every_key(
            field,
            " && ".join(f"!key.startsWith({json.dumps(prefix)})" for prefix in prefixes),
            lambda key: not key.startswith(prefixes),
        ),
        message,
        detail=f"{{item}}: {message}",
        field=field,
        reason="FieldValueForbidden",
    )


def _bounds_include_start(stage: str, field: str, attribute: str) -> Rule:
    minimum, maximum = (Field(f"tuning.bounds.{field}.{name}") for name in ("min", "max"))
    start = Field(f"{stage}.maxNumSeqs")
    bounds = f"self.tuning.bounds.{attribute}"
    return Rule(
        # If min is greater than max, the rule of RowBounds reports it.
        ~minimum.at_most(maximum) | (minimum.at_most(start) & start.at_most(maximum)),
        f"{stage}.maxNumSeqs, the starting point of tuning, is outside these bounds",
        detail=f"{stage}.maxNumSeqs, the starting point of tuning, is {{self.{stage}.max_num_seqs}}: outside "
        f"{{{bounds}.min}} to {{{bounds}.max}}",
        field=f"tuning.bounds.{field}",
    )


def _colocated_codec_has_default(name: str, field: str) -> Rule:
    default = getattr(CodecSpec(), name)
    value = Field(f"codec.{field}")
    if default is None:
        cel = f"!has({value.cel})"
    elif isinstance(default, Resources):
        assert not default.limits
        cel = f"{_has_quantities(f'{value.cel}.requests', default.requests)} && "
        cel += f"({Field(f'codec.{field}.limits').is_empty().cel})"
    else:
        cel = value.is_empty().cel if default in ((), {}) else value.equals(default).cel
    return Rule(
        _SEPARATE | Condition(cel, lambda spec: value.read(spec) == default),
        f"with topology Colocated the codec runs in the talker's process: set talker.{field} instead",
        field=f"codec.{field}",
        reason="FieldValueForbidden",
    )


def _has_quantities(cel: str, quantities: Mapping[str, int | str]) -> str:
    """CEL for: a map has exactly these quantities."""
    names = f"{cel}.size() == {len(quantities)} && {cel}.all(name, name in {json.dumps(list(quantities))})"
    amounts = (f"{cel}[{json.dumps(name)}] == {json.dumps(amount)}" for name, amount in quantities.items())
    return " && ".join((f"has({cel})", names, *amounts))


_SEPARATE = Field("topology").equals("Separate")
_RESIDENT_ROWS = Rule(
    Field("maxNumSeqs").at_most(Field("maxResident")),
    "every row of a step needs resident state: must be at most maxResident",
    detail="{self.max_num_seqs} rows per step need as many resident requests: must be at most maxResident, which is "
    "{self.max_resident}",
    field="maxNumSeqs",
)
_ONE_GPU = ~Field("vllm").is_set() | Field("vllm.tensorParallelSize").equals(1)
_MANAGED = Field("managed").is_true()
_URL = Field("url")


def _has_gpus(talker: TalkerSpec) -> bool:
    assert talker.vllm is not None
    limit = str(talker.resources.limits.get(GPU, 0))
    return limit.isdecimal() and int(limit) >= talker.vllm.tensor_parallel_size


_ENOUGH_GPUS = Condition(
    f"has(self.resources.limits) && self.resources.limits.exists(name, name == {json.dumps(GPU)} && "
    "int(self.resources.limits[name]) >= self.vllm.tensorParallelSize)",
    _has_gpus,
)
_OUTSIDE_RESERVED_PATHS = Condition(
    f"!{json.dumps(RESERVED_PATHS)}.exists(path, self.mountPath == path || self.mountPath.startsWith(path + '/'))",
    lambda volume: not any(f"{volume.mount_path}/".startswith(f"{path}/") for path in RESERVED_PATHS),
)

_RULES: Mapping[type[Struct], tuple[Rule, ...]] = {
    TTSPipeline: (
        Rule(
            Condition(f"self.metadata.name.size() <= {NAME_LENGTH}", lambda each: len(each.name) <= NAME_LENGTH)
            & Field("metadata.name").matches("^[a-z]([-a-z0-9]*[a-z0-9])?$"),
            f"must be up to {NAME_LENGTH} lower-case letters, digits and '-', starting with a letter: it is a "
            "prefix of the names of the pipeline's objects",
            field="metadata.name",
        ),
    ),
    PipelineSpec: (
        _bounds_include_start("talker", "talkerMaxNumSeqs", "talker_max_num_seqs"),
        _bounds_include_start("codec", "codecMaxNumSeqs", "codec_max_num_seqs"),
        Rule(
            Field("tuning.bounds.capturePairs.max").equals(0)
            | Field("codec.capturePairs").size_at_most(Field("tuning.bounds.capturePairs.max")),
            "must be 0 or at least the number of codec.capturePairs, the starting point of tuning",
            field="tuning.bounds.capturePairs.max",
        ),
        *(_colocated_codec_has_default(name, field) for name, field in PROCESS_FIELDS),
        Rule(
            _SEPARATE | Field("talker.maxResident").at_most(Field("codec.maxResident")),
            "with topology Colocated it must be at least talker.maxResident",
            detail="{self.codec.max_resident} is less than talker.maxResident, {self.talker.max_resident}: with "
            "topology Colocated the codec serves all requests of its talker",
            field="codec.maxResident",
        ),
        Rule(
            _SEPARATE | Field("talker.engine").equals("torch"),
            "vLLM needs its own process: use engine torch or topology Separate",
            field="talker.engine",
        ),
    ),
    ModelSpec: (
        Rule(
            exactly_one("path", "huggingFace", flag="bundled"),
            "set exactly one of `bundled: true`, `path` and `huggingFace`",
        ),
        _requires("path", Field("path").matches("[^/]"), "names no directory"),
        _requires(
            "path",
            Field("claim").is_set() | Field("path").starts_with("/"),
            "a relative path needs `claim`, the volume that contains it",
            cluster_only=True,
        ),
        _requires(
            "path",
            ~Field("claim").is_set() | ~Field("path").matches("(^|/)[.][.](/|$)"),
            "must not contain `..`: it is a directory in `claim`",
        ),
        _requires("claim", Field("path").is_set(), "needs `path`, the checkpoint's directory in the volume"),
        _requires("cache", Field("huggingFace").is_set(), "needs `huggingFace`: only downloads are cached"),
    ),
    ModelCache: (Rule(exactly_one("claim", "storage"), "set exactly one of `claim` and `storage`"),),
    PodFields: (
        _forbidden_key_prefixes("podLabels"),
        _forbidden_key_prefixes("podAnnotations"),
        Rule(
            unique("extraVolumes", "mountPath"),
            "two volumes have the same mountPath",
            detail="{item} is listed twice",
            field="extraVolumes",
            reason="FieldValueDuplicate",
        ),
    ),
    EnvVar: (
        Rule(
            ~Field("name").is_one_of(RESERVED_ENV),
            "is set by Syrinx",
            detail="{self.name} is set by Syrinx",
            message_expression='self.name + " is set by Syrinx"',
            field="name",
            reason="FieldValueForbidden",
        ),
        Rule(exactly_one("value", "secret", "configMap"), "set exactly one of `value`, `secret` and `configMap`"),
    ),
    ExtraVolume: (
        Rule(
            ~Field("name").starts_with(RESERVED_VOLUME_PREFIX),
            f"names that start with {RESERVED_VOLUME_PREFIX} are reserved",
            field="name",
            reason="FieldValueForbidden",
        ),
        Rule(
            _OUTSIDE_RESERVED_PATHS,
            f"{', '.join(RESERVED_PATHS)} are reserved",
            field="mountPath",
            reason="FieldValueForbidden",
        ),
        Rule(~Field("mountPath").matches("/[.]{1,2}(/|$)"), "must not contain `.` or `..`", field="mountPath"),
        _requires(
            "subPath",
            ~Field("subPath").matches("^/|(^|/)[.][.](/|$)"),
            "must be a directory in the volume, without a leading / and without `..`",
        ),
        Rule(
            exactly_one("claim", "secret", "configMap", "emptyDir"),
            "set exactly one of `claim`, `secret`, `configMap` and `emptyDir`",
        ),
    ),
    Toleration: (
        Rule(
            Field("key").is_set() | Field("operator").equals("Exists"),
            "is required unless operator is Exists",
            field="key",
        ),
        _requires("value", Field("operator").equals("Equal"), "must not be set with operator Exists"),
        _requires(
            "tolerationSeconds",
            Field("effect").is_set() & Field("effect").equals("NoExecute"),
            "needs effect NoExecute",
        ),
    ),
    ServiceSpec: (_requires("nodePort", ~Field("type").equals("ClusterIP"), "needs type NodePort or LoadBalancer"),),
    GatewaySpec: (
        Rule(
            Field("port").at_least(1024),
            "must be at least 1024: the gateway does not run as root",
            field="port",
            cluster_only=True,
        ),
        Rule(
            ~Field("port").equals(ADMIN_PORT),
            f"{ADMIN_PORT} is reserved for metrics and settings",
            field="port",
            cluster_only=True,
        ),
    ),
    TalkerSpec: (
        _RESIDENT_ROWS,
        _requires("vllm", Field("engine").equals("vllm"), "needs `engine: vllm`"),
        Rule(
            _ONE_GPU | ~Field("device").is_set() | Field("device").equals("cuda"),
            "more than 1 needs GPUs: set device cuda",
            detail="{self.vllm.tensor_parallel_size} needs GPUs: set device cuda",
            field="vllm.tensorParallelSize",
        ),
        Rule(
            _ONE_GPU | _ENOUGH_GPUS,
            f"needs as many {GPU} in talker.resources.limits",
            detail=f"needs {{self.vllm.tensor_parallel_size}} GPUs: set talker.resources.limits {GPU}: "
            "{self.vllm.tensor_parallel_size}",
            field="vllm.tensorParallelSize",
            cluster_only=True,
        ),
    ),
    CodecSpec: (
        _RESIDENT_ROWS,
        Rule(
            every_item_at_most("capturePairs", "rows", "maxResident"),
            "rows above maxResident are never used",
            detail="{item} is more than maxResident, {self.max_resident}: never used",
            field="capturePairs",
        ),
        Rule(
            sorted_by("capturePairs", "rows", "frames"),
            "must be sorted by rows, then frames",
            detail="{item} comes too late: must be sorted by rows, then frames",
            field="capturePairs",
        ),
        Rule(
            unique("capturePairs", "rows", "frames"),
            "a pair of rows and frames is listed twice",
            detail="{item} is listed twice",
            field="capturePairs",
            reason="FieldValueDuplicate",
        ),
    ),
    ConnectorSpec: (
        Rule(exactly_one("url", flag="managed"), "set exactly one of `managed: true` and `url`"),
        *(
            _requires(field, ~_MANAGED, "must not be set for a managed Redis")
            for field in ("passwordSecret", "passwordEnv", "caSecret")
        ),
        *(_requires(field, ~_URL.is_set(), "must not be set with `url`") for field in ("image", "storage")),
        _requires("caSecret", ~_URL.is_set() | _URL.starts_with("rediss://"), "needs a rediss:// URL"),
        _requires(
            "passwordEnv", Field("passwordSecret").is_set(), "is for `syrinx up`: set passwordSecret", cluster_only=True
        ),
        _requires(
            "url",
            ~_URL.matches(PASSWORD_IN_URL),
            "must not contain a password: put it into a Secret and set passwordSecret",
            detail="must not contain a password: put it into a Secret and set passwordSecret (with `syrinx up`, an "
            "environment variable and passwordEnv)",
        ),
        _requires(
            "url",
            _URL.matches(PASSWORD_IN_URL) | _URL.matches(REDIS_URL),
            "must be redis://HOST:PORT/DB, or rediss://… for TLS",
            detail="{self.url!r} is not accepted; expected redis://HOST:PORT/DB, or rediss://… for TLS",
        ),
    ),
    TuningBounds: (
        Rule(
            unique("chunkRamps"),
            "a ramp is listed twice",
            detail="{item} is listed twice",
            field="chunkRamps",
            reason="FieldValueDuplicate",
        ),
    ),
    RowBounds: (
        Rule(
            Field("min").at_most(Field("max")),
            "min is greater than max",
            detail="min, {self.min}, is greater than max, {self.max}",
        ),
    ),
    Peer: (
        _requires(
            "cidr",
            ~Field("namespace").is_set() & Field("podLabels").is_empty(),
            "must not be combined with `namespace` or `podLabels`",
        ),
    ),
}


def _immutable(cel: str, message: str, field: str = "") -> Rule:
    """A rule about an update. Only the API server evaluates it, because only it knows the old value."""
    return Rule(
        Condition(cel, lambda _: True), f"{message}: create a new pipeline", field=field, reason="FieldValueForbidden"
    )


_IMMUTABLE: Mapping[type[Struct], tuple[Rule, ...]] = {
    PipelineSpec: (_immutable("self.topology == oldSelf.topology", "is immutable", "topology"),),
    ModelSpec: (
        _immutable(
            "self.bundled == oldSelf.bundled && has(self.path) == has(oldSelf.path) && "
            "has(self.huggingFace) == has(oldSelf.huggingFace)",
            "the choice of bundled, path or huggingFace is immutable",
        ),
    ),
    ConnectorSpec: (
        _immutable("self.managed == oldSelf.managed", "the choice of managed or url is immutable"),
        _immutable(
            "has(self.storage) == has(oldSelf.storage)", "cannot be added or removed once Redis runs", "storage"
        ),
    ),
    Storage: (_immutable("self == oldSelf", "is immutable once the volume exists"),),
}
