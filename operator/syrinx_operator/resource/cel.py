"""The rules between fields in CEL, as the API server checks them: what `rules` says, and what may not change.

Rules are attached to types, so they hold wherever a type is used. `self` is a value of the type. The cluster's own
rules are among them: whoever reads these is one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from syrinx_operator.resource.pods import EnvVar, ExtraVolume, Peer, PodFields, Resources, Storage, Toleration
from syrinx_operator.resource.rules import (
    ADMIN_PORT,
    GPU,
    NAME_LENGTH,
    PASSWORD_IN_URL,
    PROCESS_FIELDS,
    REDIS_URL,
    RESERVED_ENV,
    RESERVED_LABEL_PREFIXES,
    RESERVED_PATHS,
    RESERVED_VOLUME_PREFIX,
)
from syrinx_operator.resource.spec import (
    CodecSpec,
    ConnectorSpec,
    GatewaySpec,
    ModelCache,
    ModelSpec,
    PipelineSpec,
    RowBounds,
    ServiceSpec,
    TalkerSpec,
    TuningBounds,
)


class Rule(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One rule that must hold; `message` tells what to do if it does not."""

    rule: str
    message: str
    message_expression: str | None = None
    """CEL for a message with values in it."""
    field_path: str | None = None
    """The field to blame, relative to `self`; none blames `self`."""
    reason: Literal["FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired", "FieldValueDuplicate"] = (
        "FieldValueInvalid"
    )

    def manifest(self) -> dict[str, Any]:
        """As it stands in `x-kubernetes-validations`."""
        manifest: dict[str, Any] = msgspec.to_builtins(self)
        return manifest


def rules_of(struct: type[Struct]) -> tuple[Rule, ...]:
    """The rules of a type: those of what it has in common with others, then its own."""
    return tuple(rule for each in reversed(struct.__mro__) for rule in _RULES.get(each, ()))


def _exactly_one(*fields: str, flag: str | None = None) -> str:
    given = [f"(has(self.{field}) ? 1 : 0)" for field in fields]
    return " + ".join(([f"(self.{flag} ? 1 : 0)"] if flag else []) + given) + " == 1"


def _needs(field: str, condition: str, message: str) -> Rule:
    """`field` may be given only where `condition` holds."""
    return Rule(rule=f"!has(self.{field}) || {condition}", message=message, field_path=f".{field}")


def _unreserved_keys(field: str) -> Rule:
    prefixes = " && ".join(f"!key.startsWith({_text(prefix)})" for prefix in RESERVED_LABEL_PREFIXES)
    return Rule(
        rule=f"!has(self.{field}) || self.{field}.all(key, {prefixes})",
        message=f"keys that start with {' or '.join(RESERVED_LABEL_PREFIXES)} are Syrinx's",
        field_path=f".{field}",
        reason="FieldValueForbidden",
    )


def _text(value: str) -> str:
    return json.dumps(value)


def _list(values: tuple[str, ...] | list[str]) -> str:
    return f"[{', '.join(map(_text, values))}]"


_ROWS_ARE_RESIDENT = Rule(
    rule="self.maxNumSeqs <= self.maxResident",
    message="every row of a step needs state: at most maxResident",
    field_path=".maxNumSeqs",
)


def _parallel(condition: str, message: str) -> Rule:
    """A talker that several GPUs share, and its pods, need `condition`."""
    return Rule(
        rule=f"!has(self.vllm) || self.vllm.tensorParallelSize == 1 || ({condition})",
        message=message,
        field_path=".vllm.tensorParallelSize",
    )


def _bounds(stage: str, field: str) -> Rule:
    bounds, value = f"self.tuning.bounds.{field}", f"self.{stage}.maxNumSeqs"
    return Rule(
        # Where min is more than max, that alone is said.
        rule=f"{bounds}.min > {bounds}.max || ({bounds}.min <= {value} && {value} <= {bounds}.max)",
        message=f"{stage}.maxNumSeqs, where tuning starts, is outside of it",
        field_path=f".tuning.bounds.{field}",
    )


def _shaped_by_the_talker(field: str, default: Any) -> Rule:
    """A codec's field has its default where the process is the talker's."""
    value = f"self.codec.{field}"
    if default is None:
        usual = f"!has({value})"
    elif isinstance(default, Resources):
        usual = f"{_quantities(f'{value}.requests', default.requests)} && {_empty(f'{value}.limits')}"
    else:
        usual = _empty(value) if default in ((), {}) else f"{value} == {json.dumps(default)}"
    return Rule(
        rule=f"self.topology == 'Separate' || ({usual})",
        message=f"with topology Colocated the codec is in the talker's process: give talker.{field} alone",
        field_path=f".codec.{field}",
        reason="FieldValueForbidden",
    )


def _empty(value: str) -> str:
    return f"(!has({value}) || {value}.size() == 0)"


def _quantities(value: str, wanted: Mapping[str, int | str]) -> str:
    names = f"{value}.size() == {len(wanted)} && {value}.all(name, name in {_list(list(wanted))})"
    amounts = (f"{value}[{_text(name)}] == {json.dumps(amount)}" for name, amount in wanted.items())
    return " && ".join((f"has({value})", names, *amounts))


ROOT: Final = (
    Rule(
        rule=f"self.metadata.name.size() <= {NAME_LENGTH} && "
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        message="lower-case letters, digits and '-', up to 40, a letter first: it is part of every object's name",
        field_path=".metadata.name",
    ),
)
"""Of a whole resource."""

_RULES: Mapping[type, tuple[Rule, ...]] = {
    PipelineSpec: (
        _bounds("talker", "talkerMaxNumSeqs"),
        _bounds("codec", "codecMaxNumSeqs"),
        Rule(
            rule="!has(self.codec.capturePairs) || self.tuning.bounds.capturePairs.max == 0 || "
            "self.codec.capturePairs.size() <= self.tuning.bounds.capturePairs.max",
            message="is less than codec.capturePairs has, where tuning starts",
            field_path=".tuning.bounds.capturePairs.max",
        ),
        *(_shaped_by_the_talker(field, getattr(CodecSpec(), name)) for name, field in PROCESS_FIELDS),
        Rule(
            rule="self.topology == 'Separate' || self.codec.maxResident >= self.talker.maxResident",
            message="with topology Colocated the codec serves all that the talker serves: at least talker.maxResident",
            field_path=".codec.maxResident",
        ),
        Rule(
            rule="self.topology == 'Separate' || self.talker.engine == 'torch'",
            message="vLLM needs a process of its own: torch, or topology Separate",
            field_path=".talker.engine",
        ),
        Rule(
            rule="self.topology == oldSelf.topology",
            message="cannot change: make a new pipeline",
            field_path=".topology",
            reason="FieldValueForbidden",
        ),
    ),
    ModelSpec: (
        Rule(
            rule=_exactly_one("path", "huggingFace", flag="bundled"),
            message="give either `bundled: true`, `path` or `huggingFace`, exactly one of them",
        ),
        Rule(
            rule="self.bundled == oldSelf.bundled && has(self.path) == has(oldSelf.path) && "
            "has(self.huggingFace) == has(oldSelf.huggingFace)",
            message="its kind (bundled, path or huggingFace) cannot change: make a new pipeline",
            reason="FieldValueForbidden",
        ),
        _needs("path", "self.path.matches('[^/]')", "names no directory"),
        _needs(
            "path",
            "has(self.claim) || self.path.startsWith('/')",
            "a relative path needs `claim`, the volume it lies in",
        ),
        _needs(
            "path", "!has(self.claim) || !self.path.matches('(^|/)[.][.](/|$)')", "leads out of `claim`: no `..` in it"
        ),
        _needs("claim", "has(self.path)", "needs `path`, the checkpoint's directory in it"),
        _needs("cache", "has(self.huggingFace)", "is for what is fetched: it needs `huggingFace`"),
    ),
    ModelCache: (
        Rule(rule=_exactly_one("claim", "storage"), message="give either `claim` or `storage`, exactly one of them"),
    ),
    Storage: (
        Rule(
            rule="self == oldSelf",
            message="a volume cannot be changed once it is made: make a new pipeline",
            reason="FieldValueForbidden",
        ),
    ),
    PodFields: (
        _unreserved_keys("podLabels"),
        _unreserved_keys("podAnnotations"),
        Rule(
            rule="!has(self.extraVolumes) || self.extraVolumes.all(one, "
            "self.extraVolumes.exists_one(other, other.mountPath == one.mountPath))",
            message="two volumes have the same mountPath",
            field_path=".extraVolumes",
            reason="FieldValueDuplicate",
        ),
    ),
    EnvVar: (
        Rule(
            rule=f"!(self.name in {_list(sorted(RESERVED_ENV))})",
            message="is set by Syrinx",
            message_expression='self.name + " is set by Syrinx"',
            field_path=".name",
            reason="FieldValueForbidden",
        ),
        Rule(
            rule=_exactly_one("value", "secret", "configMap"),
            message="give either `value`, `secret` or `configMap`, exactly one of them",
        ),
    ),
    ExtraVolume: (
        Rule(
            rule=f"!self.name.startsWith({_text(RESERVED_VOLUME_PREFIX)})",
            message=f"names that start with {RESERVED_VOLUME_PREFIX} are Syrinx's",
            field_path=".name",
            reason="FieldValueForbidden",
        ),
        Rule(
            rule=f"!{_list(RESERVED_PATHS)}.exists(own, self.mountPath == own || self.mountPath.startsWith(own + '/'))",
            message=f"{', '.join(RESERVED_PATHS)} are Syrinx's own",
            field_path=".mountPath",
            reason="FieldValueForbidden",
        ),
        Rule(
            rule="!self.mountPath.matches('/[.]{1,2}(/|$)')",
            message="no `.` or `..` in it",
            field_path=".mountPath",
        ),
        _needs(
            "subPath",
            "!self.subPath.matches('^/|(^|/)[.][.](/|$)')",
            "is a directory in the volume: no / in front and no `..` in it",
        ),
        Rule(
            rule=_exactly_one("claim", "secret", "configMap", "emptyDir"),
            message="give either `claim`, `secret`, `configMap` or `emptyDir`, exactly one of them",
        ),
    ),
    Toleration: (
        Rule(
            rule="has(self.key) || self.operator == 'Exists'",
            message="only with operator Exists there may be no key",
            field_path=".key",
        ),
        _needs("value", "self.operator == 'Equal'", "operator Exists compares no value"),
        _needs("tolerationSeconds", "has(self.effect) && self.effect == 'NoExecute'", "is for effect NoExecute"),
    ),
    ServiceSpec: (_needs("nodePort", "self.type != 'ClusterIP'", "needs type NodePort or LoadBalancer"),),
    GatewaySpec: (
        Rule(
            rule="self.port >= 1024",
            message="from 1024: the gateway does not run as root",
            field_path=".port",
        ),
        Rule(
            rule=f"self.port != {ADMIN_PORT}",
            message=f"{ADMIN_PORT} is the port of metrics and settings",
            field_path=".port",
        ),
    ),
    TalkerSpec: (
        _ROWS_ARE_RESIDENT,
        _needs("vllm", "self.engine == 'vllm'", "is for vLLM: it needs `engine: vllm`"),
        _parallel("!has(self.device) || self.device == 'cuda'", "above 1 it takes GPUs: give device cuda, not cpu"),
        _parallel(
            f"has(self.resources.limits) && self.resources.limits.exists(name, name == {_text(GPU)} && "
            "int(self.resources.limits[name]) >= self.vllm.tensorParallelSize)",
            f"takes as many GPUs: give that number in talker.resources.limits, as {GPU}",
        ),
    ),
    CodecSpec: (
        _ROWS_ARE_RESIDENT,
        Rule(
            rule="!has(self.capturePairs) || self.capturePairs.all(pair, pair.rows <= self.maxResident)",
            message="rows above maxResident are never used",
            field_path=".capturePairs",
        ),
        Rule(
            rule="!has(self.capturePairs) || self.capturePairs.map(pair, pair.rows * 100 + pair.frames).isSorted()",
            message="sort by rows, then frames",
            field_path=".capturePairs",
        ),
        Rule(
            rule="!has(self.capturePairs) || self.capturePairs.all(one, "
            "self.capturePairs.exists_one(other, other.rows == one.rows && other.frames == one.frames))",
            message="a pair of rows and frames stands twice",
            field_path=".capturePairs",
            reason="FieldValueDuplicate",
        ),
    ),
    ConnectorSpec: (
        Rule(
            rule=_exactly_one("url", flag="managed"),
            message="give either `managed: true` or `url`, exactly one of them",
        ),
        Rule(
            rule="self.managed == oldSelf.managed",
            message="its kind (managed or url) cannot change: make a new pipeline",
            reason="FieldValueForbidden",
        ),
        Rule(
            rule="has(self.storage) == has(oldSelf.storage)",
            message="a volume cannot come or go once Redis runs: make a new pipeline",
            field_path=".storage",
            reason="FieldValueForbidden",
        ),
        *(
            _needs(field, "!self.managed", "is for a Redis of yours, given as `url`")
            for field in ("passwordSecret", "passwordEnv", "caSecret")
        ),
        *(
            _needs(field, "!has(self.url)", "is for a managed Redis, not for one given as `url`")
            for field in ("image", "storage")
        ),
        _needs("caSecret", "!has(self.url) || self.url.startsWith('rediss://')", "needs a rediss:// address"),
        _needs(
            "passwordEnv",
            "has(self.passwordSecret)",
            "is for `syrinx up`: name a Secret in passwordSecret",
        ),
        _needs(
            "url",
            f"!self.url.matches({_text(PASSWORD_IN_URL)})",
            "holds a password, and a resource is no place for one: name a Secret in passwordSecret",
        ),
        _needs(
            "url",
            f"self.url.matches({_text(PASSWORD_IN_URL)}) || self.url.matches({_text(REDIS_URL)})",
            "is not accepted: redis://HOST:PORT/DB, or rediss://… for TLS",
        ),
    ),
    TuningBounds: (
        Rule(
            rule="!has(self.chunkRamps) || self.chunkRamps.all(one, self.chunkRamps.exists_one(other, other == one))",
            message="a ramp stands twice",
            field_path=".chunkRamps",
            reason="FieldValueDuplicate",
        ),
    ),
    RowBounds: (
        Rule(
            rule="self.min <= self.max",
            message="min is more than max",
        ),
    ),
    Peer: (
        _needs(
            "cidr",
            "(!has(self.__namespace__) && (!has(self.podLabels) || self.podLabels.size() == 0))",
            "stands alone: without `namespace` and `podLabels`",
        ),
    ),
}
