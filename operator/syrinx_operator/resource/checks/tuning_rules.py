"""The rules between fields of tuning and autoscaling."""

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from syrinx_operator.resource.checks.conditions import (
    Condition,
    Rule,
    at_most,
    equals,
    has,
    is_empty,
    requires,
    starts_with,
    unique,
)
from syrinx_operator.resource.fields import tuning
from syrinx_operator.resource.fields.autoscaling import ReplicaBounds, StageAutoscalingSpec


def _bounds_include_start(stage: str) -> Rule:
    bounds, start = f"tuning.bounds.{stage}MaxNumSeqs", f"{stage}.maxNumSeqs"
    minimum, maximum, values = f"{bounds}.min", f"{bounds}.max", f"self.tuning.bounds.{stage}_max_num_seqs"
    return Rule(
        bounds,
        # If min is greater than max, the rule of RowBounds reports it.
        ~has(start) | ~at_most(minimum, maximum) | (at_most(minimum, start) & at_most(start, maximum)),
        f"{start}, the starting point of tuning, is outside these bounds",
        detail=f"{start}, the starting point of tuning, is {{self.{stage}.max_num_seqs}}: outside "
        f"{{{values}.min}} to {{{values}.max}}",
    )


def _keda_needs_prometheus(stage: str) -> Rule:
    field = f"{stage}.autoscaling"
    condition = _without_keda(stage) | has("tuning.prometheus")
    message = "by: Keda needs tuning.prometheus, which has the metrics"
    return Rule(field, condition, message, cluster_only=True)


def _without_keda(stage: str) -> Condition:
    return ~has(f"{stage}.autoscaling") | ~equals(f"{stage}.autoscaling.by", "Keda")


_KEDA_NEEDS_ITS_OWN_CREDENTIALS = Rule(
    "tuning.prometheus.kedaAuthentication",
    ~has("tuning.prometheus")
    | has("tuning.prometheus.kedaAuthentication")
    | (
        ~has("tuning.prometheus.headersSecret")
        & ~has("tuning.prometheus.basicAuthSecret")
        & ~has("tuning.prometheus.tokenSecret")
    )
    | (_without_keda("gateway") & _without_keda("talker") & _without_keda("codec")),
    "KEDA does not use the Secrets of tuning.prometheus: create an object with its credentials and name it here",
    cluster_only=True,
)


def _syrinx_scales(stage: str) -> Iterator[Rule]:
    field = f"{stage}.autoscaling"
    other = ~has(field) | ~equals(f"{field}.by", "Syrinx")
    yield Rule(
        "slo.ttfa", other | ~is_empty("slo.ttfa"), f"{field} by Syrinx needs an objective here", cluster_only=True
    )
    message = f"{field} by Syrinx needs Recommend or Auto"
    yield Rule("tuning.mode", other | ~equals("tuning.mode", "Off"), message, cluster_only=True)


_BY_SYRINX = equals("by", "Syrinx")
TUNING_PIPELINE_RULES: Final[tuple[Rule, ...]] = (
    _bounds_include_start("talker"),
    _bounds_include_start("codec"),
    Rule(
        "tuning.bounds.capturePairs.max",
        equals("tuning.bounds.capturePairs.max", 0)
        | Condition(
            "!has(self.codec.capturePairs) || self.codec.capturePairs.size() <= self.tuning.bounds.capturePairs.max",
            lambda value: len(value.codec.capture_pairs or ()) <= value.tuning.bounds.capture_pairs.max,
        ),
        "must be 0 or at least the number of codec.capturePairs, the starting point of tuning",
    ),
    *(_keda_needs_prometheus(stage) for stage in ("gateway", "talker", "codec")),
    _KEDA_NEEDS_ITS_OWN_CREDENTIALS,
    *(rule for stage in ("talker", "codec") for rule in _syrinx_scales(stage)),
)
"""Those of the pipeline."""
TUNING_RULES: Final[Mapping[type[Struct], tuple[Rule, ...]]] = {
    tuning.PrometheusSpec: (
        requires("tokenSecret", ~has("basicAuthSecret"), "must not be set with `basicAuthSecret`: both authenticate"),
        requires("caSecret", starts_with("url", "https:"), "needs a https:// URL"),
    ),
    tuning.TuningBounds: (unique("chunkRamps", "a ramp is listed twice"),),
    ReplicaBounds: (
        Rule(
            "minReplicas",
            at_most("minReplicas", "maxReplicas"),
            "must be at most maxReplicas",
            detail="{self.min_replicas} is more than maxReplicas, {self.max_replicas}",
        ),
    ),
    StageAutoscalingSpec: (
        requires("mode", _BY_SYRINX, "is for `by: Syrinx`"),
        *(
            requires(field, ~_BY_SYRINX, "is for `by: Keda` and `by: Hpa`")
            for field in ("streamsPerReplica", "maxWaitSeconds")
        ),
    ),
    tuning.RowBounds: (
        Rule(
            "",
            at_most("min", "max"),
            "min is greater than max",
            detail="min, {self.min}, is greater than max, {self.max}",
        ),
    ),
}
