"""The rules between fields of a TTSPipeline, which types alone cannot express.

Each rule is written once. `syrinx check` and the operator evaluate it in Python; the CRD has it in CEL, for the API
server. A rule belongs to a type and holds wherever that type is used. `self` is the value of the type.
"""

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct, structs

from syrinx_operator.resource import spec
from syrinx_operator.resource.checks.conditions import (
    FORBIDDEN,
    Condition,
    ItemsCondition,
    Rule,
    Violation,
    at_most,
    cel_of,
    equals,
    exactly_one,
    has,
    immutable,
    is_empty,
    is_true,
    matches,
    read,
    repeated,
    requires,
    starts_with,
    unique,
)
from syrinx_operator.resource.checks.documents import Path
from syrinx_operator.resource.checks.gateway_rules import GATEWAY_RULES
from syrinx_operator.resource.checks.pod_rules import POD_RULES
from syrinx_operator.resource.checks.pod_template import pod_template
from syrinx_operator.resource.checks.tuning_rules import TUNING_PIPELINE_RULES, TUNING_RULES
from syrinx_operator.resource.fields import model, pods
from syrinx_operator.resource.fields.connector import ConnectorSpec
from syrinx_operator.resource.spec import NAME_LENGTH

_PORT = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_HOST = rf"(([A-Za-z0-9]|[{{]cell[}}])([-A-Za-z0-9._]|[{{]cell[}}])*|\[[0-9A-Fa-f.:]+\])(:{_PORT})?"
_USER = r"([^\s/@:?#\[\]]+@)?"
_HOSTS = rf"{_USER}{_HOST}(,{_HOST})*"
REDIS_URL: Final = (
    rf"^((rediss?://{_USER}{_HOST}|rediss?[+]sentinel://{_HOSTS}/[A-Za-z0-9]([-A-Za-z0-9._]|[{{]cell[}}])*)"
    rf"(/([0-9]*|[{{]cell[}}]))?|rediss?[+]cluster://{_HOSTS})$"
)
"""SCHEME://[USER@]HOST[:PORT][/DB], SCHEME+sentinel://[USER@]HOST[:PORT],…/SERVICE[/DB] or
SCHEME+cluster://[USER@]HOST[:PORT],…; a host is a name, an IPv4 address, or an IPv6 address in brackets. `{cell}` may
be part of hosts and service, and the database."""
_PARENT: Final = "(^|/)[.][.](/|$)"
_LINK_LOCAL: Final = r"^https?://(169[.]254[.]|\[[Ff][Ee]80:|\[[Ff][Dd]00:[Ee][Cc]2:)"
PASSWORD_IN_URL: Final = "^[^/]*//[^/?#]*:[^/?#]*@"

PROCESS_FIELDS: Final = tuple((field.name, field.encode_name) for field in structs.fields(spec.StageSpec))
"""Fields that configure a stage's pod, in Python and in a resource. A colocated codec uses the talker's."""

GPU: Final = "nvidia.com/gpu"
"""Resource name of GPUs."""


def violations(pipeline: spec.TTSPipeline) -> list[Violation]:
    """Returns violations of the rules that hold everywhere."""
    return list(_violations(pipeline, (), cluster_only=False))


def cluster_violations(pipeline: spec.TTSPipeline) -> list[Violation]:
    """Returns violations of the rules that hold on Kubernetes only."""
    return list(_violations(pipeline, (), cluster_only=True))


def rules_of(struct: type[Struct]) -> tuple[Rule, ...]:
    """Returns the rules of a type, which the API server evaluates: those of its base classes first."""
    return tuple(rule for each in reversed(struct.__mro__) for rule in _RULES.get(each, ()))


def _violations(value: Struct, path: Path, *, cluster_only: bool) -> Iterator[Violation]:
    for rule in rules_of(type(value)):
        if rule.cluster_only == cluster_only:
            yield from rule.violations(value, path)
    for field in pods.fields_of(type(value)):
        part, part_path = getattr(value, field.name), (*path, field.encode_name)
        if isinstance(part, Struct):
            yield from _violations(part, part_path, cluster_only=cluster_only)
        elif isinstance(part, tuple):
            if (key := pods.list_map_key(field)) and not cluster_only:
                for index, text in repeated(part, key):
                    yield Violation((*part_path, index, key), f"{text} is listed twice")
            for index, item in enumerate(part):
                if isinstance(item, Struct):
                    yield from _violations(item, (*part_path, index), cluster_only=cluster_only)


def _colocated_codec_has_default(name: str, field: str) -> Rule:
    default, path = getattr(spec.CodecSpec(), name), f"codec.{field}"
    if default is None:
        cel = f"!has({cel_of(path)})"
    elif isinstance(default, pods.Resources):
        assert not default.limits
        cel = f"{_has_quantities(cel_of(f'{path}.requests'), default.requests)} && ({is_empty(f'{path}.limits').cel})"
    else:
        cel = is_empty(path).cel if default in ((), {}) else equals(path, default).cel
    message = f"with topology Colocated the codec runs in the talker's pod: set talker.{field} instead"
    is_default = Condition(cel, lambda value: bool(read(value, path) == default))
    return Rule(path, _SEPARATE | is_default, message, reason=FORBIDDEN)


def _has_quantities(cel: str, quantities: Mapping[str, int | str]) -> str:
    """CEL for: a map has exactly these quantities."""
    names = f"{cel}.size() == {len(quantities)} && {cel}.all(name, name in {json.dumps(list(quantities))})"
    amounts = (f"{cel}[{json.dumps(name)}] == {json.dumps(amount)}" for name, amount in quantities.items())
    return " && ".join((f"has({cel})", names, *amounts))


def _enough_for_cells(stage: str) -> Iterator[Rule]:
    replicas, autoscaling = f"{stage}.replicas", f"{stage}.autoscaling"
    exempt = ~equals("topology", "Separate") if stage == "codec" else equals("connector.cells", 1)
    message = "each cell needs one: must be at least connector.cells"
    detail = f"{message}, {{self.connector.cells}}"
    yield Rule(replicas, exempt | at_most("connector.cells", replicas), message, detail=detail)
    minimum = f"{autoscaling}.minReplicas"
    yield Rule(minimum, exempt | ~has(autoscaling) | at_most("connector.cells", minimum), message, detail=detail)


_SEPARATE = equals("topology", "Separate")
_RESIDENT_ROWS = Rule(
    "maxNumSeqs",
    ~has("maxNumSeqs") | ~has("maxResident") | at_most("maxNumSeqs", "maxResident"),
    "every row of a step needs resident state: must be at most maxResident",
    detail="{self.max_num_seqs} rows per step need as many resident requests: must be at most maxResident, which is "
    "{self.max_resident}",
)
_FRACTION_OF_A_GPU = requires(
    "memoryFraction", ~has("device") | equals("device", "cuda"), "is that of a GPU: set device cuda, or leave it out"
)
_REPLICATE: Final = "set replicas to at least 2"
_ONE_GPU = ~has("vllm") | equals("vllm.tensorParallelSize", 1)


def _has_gpus(talker: spec.TalkerSpec) -> bool:
    assert talker.vllm is not None
    limit = str(talker.resources.limits.get(GPU, 0))
    return limit.isdecimal() and int(limit) >= talker.vllm.tensor_parallel_size


_ENOUGH_GPUS = Condition(
    f"has(self.resources.limits) && self.resources.limits.exists(name, name == {json.dumps(GPU)} && "
    "int(self.resources.limits[name]) >= self.vllm.tensorParallelSize)",
    _has_gpus,
)


def _pairs_out_of_order(codec: spec.CodecSpec) -> Iterator[tuple[Path, str]]:
    for index, (before, pair) in enumerate(itertools.pairwise(codec.capture_pairs or ()), 1):
        if (pair.rows, pair.frames) < (before.rows, before.frames):
            yield (index,), f"rows {pair.rows}, frames {pair.frames}"


# isSorted() exceeds the cost budget of Kubernetes before 1.30, so compare each position with the number of smaller
# items. There are at most 100 frames.
_SORTED_PAIRS = ItemsCondition(
    "!has(self.capturePairs) || self.capturePairs.all(one, self.capturePairs.filter(other, "
    "other.rows * 100 + other.frames < one.rows * 100 + one.frames).size() == self.capturePairs.indexOf(one))",
    _pairs_out_of_order,
)
_RULES: Mapping[type[Struct], tuple[Rule, ...]] = {
    spec.TTSPipeline: (
        Rule(
            "metadata.name",
            Condition(f"self.metadata.name.size() <= {NAME_LENGTH}", lambda each: len(each.name) <= NAME_LENGTH)
            & matches("metadata.name", spec.NAME),
            f"must be up to {NAME_LENGTH} lower-case letters, digits and '-', starting with a letter: it is a "
            "prefix of the names of the pipeline's objects",
        ),
    ),
    spec.PipelineSpec: (
        *TUNING_PIPELINE_RULES,
        *(_colocated_codec_has_default(name, field) for name, field in PROCESS_FIELDS),
        *(rule for stage in ("talker", "codec") for rule in _enough_for_cells(stage)),
        immutable("self.topology == oldSelf.topology", "is immutable", "topology"),
    ),
    spec.VoiceSpec: (
        exactly_one("file", "url"),
        requires(
            "file",
            starts_with("file", "/"),
            "must be an absolute path in the gateways' container",
            cluster_only=True,
        ),
    ),
    model.ModelSpec: (
        exactly_one("path", "huggingFace", "s3", "image", flag="bundled"),
        requires("path", matches("path", "[^/]"), "names no directory"),
        requires(
            "path",
            has("claim") | has("volume") | starts_with("path", "/"),
            "a relative path needs `claim` or `volume`, which contains it",
            cluster_only=True,
        ),
        requires(
            "path",
            (~has("claim") & ~has("volume")) | ~matches("path", _PARENT),
            "must not contain `..`: it is a directory in the volume",
        ),
        requires("claim", has("path"), "needs `path`, the checkpoint's directory in the volume"),
        requires("volume", has("path") & ~has("claim"), "needs `path`, its directory in the volume, and no `claim`"),
        requires("cache", has("huggingFace") | has("s3"), "needs `huggingFace` or `s3`: only downloads are cached"),
    ),
    model.ModelCache: (exactly_one("claim", "storage"),),
    model.ModelVolume: (exactly_one("nfs", "csi"),),
    model.ModelImage: (
        requires("path", ~matches("path", _PARENT), "must not contain `..`: it is a directory in the image"),
    ),
    model.S3: (
        requires(
            "endpoint",
            ~matches("endpoint", _LINK_LOCAL),
            "must not be a link-local address, at which clouds give nodes their credentials",
        ),
    ),
    spec.StageSpec: (Rule("standby", ~is_true("standby"), f"is for `syrinx up`: {_REPLICATE}", cluster_only=True),),
    spec.TalkerSpec: (
        pod_template("talker"),
        _RESIDENT_ROWS,
        Rule(
            "standby",
            ~is_true("standby") | equals("engine", "torch"),
            f"is for engine torch: {_REPLICATE}",
        ),
        requires("vllm", equals("engine", "vllm"), "needs `engine: vllm`"),
        requires("memoryFraction", equals("engine", "torch"), "is for engine torch: set vllm.gpuMemoryUtilization"),
        _FRACTION_OF_A_GPU,
        Rule(
            "vllm.tensorParallelSize",
            _ONE_GPU | ~has("device") | equals("device", "cuda"),
            "more than 1 needs GPUs: set device cuda",
            detail="{self.vllm.tensor_parallel_size} needs GPUs: set device cuda",
        ),
        Rule(
            "vllm.tensorParallelSize",
            _ONE_GPU | _ENOUGH_GPUS,
            f"needs as many {GPU} in talker.resources.limits",
            detail=f"needs {{self.vllm.tensor_parallel_size}} GPUs: set talker.resources.limits {GPU}: "
            "{self.vllm.tensor_parallel_size}",
            cluster_only=True,
        ),
    ),
    spec.CodecSpec: (
        pod_template("codec"),
        _RESIDENT_ROWS,
        _FRACTION_OF_A_GPU,
        Rule(
            "capturePairs",
            ItemsCondition(
                "!has(self.capturePairs) || !has(self.maxResident) || "
                "self.capturePairs.all(item, item.rows <= self.maxResident)",
                lambda codec: (
                    ((index, "rows"), shape.rows)
                    for index, shape in enumerate(codec.capture_pairs or ())
                    if codec.max_resident and shape.rows > codec.max_resident
                ),
            ),
            "rows above maxResident are never used",
            detail="{item} is more than maxResident, {self.max_resident}: never used",
        ),
        Rule(
            "capturePairs",
            _SORTED_PAIRS,
            "must be sorted by rows, then frames",
            detail="{item} comes too late: must be sorted by rows, then frames",
        ),
        unique("capturePairs", "a pair of rows and frames is listed twice", "rows", "frames"),
    ),
    ConnectorSpec: (
        exactly_one("url", flag="managed"),
        pod_template("redis", 6379, 26379),
        *(
            requires(field, ~is_true("managed"), "must not be set for a managed Redis")
            for field in ("passwordSecret", "passwordEnv", "caSecret")
        ),
        *(requires(field, ~has("url"), "must not be set with `url`") for field in ("image", "storage", "podTemplate")),
        Rule("replicas", equals("replicas", 1) | ~has("url"), "must not be set with `url`"),
        requires(
            "url",
            equals("cells", 1) | matches("url", "[{]cell[}]") | matches("url", "^rediss?[+]cluster://"),
            "must contain {cell}, which stands for the number of a cell, unless it is that of a Redis Cluster",
            detail="must contain {{cell}}, which stands for the number of one of {self.cells} cells, unless it is that "
            "of a Redis Cluster",
        ),
        requires("caSecret", ~has("url") | starts_with("url", "rediss"), "needs a rediss:// URL"),
        requires("passwordEnv", has("passwordSecret"), "is for `syrinx up`: set passwordSecret", cluster_only=True),
        requires(
            "url",
            ~matches("url", PASSWORD_IN_URL),
            "must not contain a password: put it into a Secret and set passwordSecret",
            detail="must not contain a password: put it into a Secret and set passwordSecret (with `syrinx up`, an "
            "environment variable and passwordEnv)",
        ),
        requires(
            "url",
            matches("url", PASSWORD_IN_URL) | matches("url", REDIS_URL),
            "must be redis://HOST:PORT/DB, redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB or "
            "redis+cluster://HOST:PORT,HOST:PORT, or rediss… for TLS",
            detail="{self.url!r} is not accepted; expected redis://HOST:PORT/DB, "
            "redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB or redis+cluster://HOST:PORT,HOST:PORT, "
            "or rediss… for TLS",
        ),
        immutable("self.managed == oldSelf.managed", "the choice of managed or url is immutable"),
        immutable(
            "has(self.storage) == has(oldSelf.storage) || self.replicas == 1 || oldSelf.replicas == 1",
            "cannot be added or removed while there are replicas",
            "storage",
            advice="set replicas to 1, wait until the roll-out is complete, and set replicas and storage",
        ),
    ),
    **POD_RULES,
    **GATEWAY_RULES,
    **TUNING_RULES,
}
