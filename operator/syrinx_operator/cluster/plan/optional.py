"""Kinds that a spec may request and that not every cluster serves."""

from collections.abc import Iterator

from syrinx_operator.cluster.objects.kinds import HTTP_ROUTE, OPTIONAL, POD_MONITOR, SCALED_OBJECT, Kind
from syrinx_operator.cluster.objects.state import STAGES, Manifest, Problem
from syrinx_operator.resource.spec import PipelineSpec

_OPTIONAL = frozenset(kind.kind for kind in OPTIONAL)


def without_unserved(manifests: list[Manifest], served: frozenset[str]) -> list[Manifest]:
    """Returns the manifests whose kinds the cluster serves, so that the others do not fail a reconcile."""
    return [each for each in manifests if each["kind"] not in _OPTIONAL or each["kind"] in served]


def unserved(spec: PipelineSpec, served: frozenset[str]) -> Iterator[Problem]:
    """Yields a problem for each requested kind that the cluster does not serve."""
    for field, kind, provider in _requested(spec):
        if kind.kind not in served:
            advice = f"install {provider} or remove the field"
            yield Problem("KindNotServed", f"{field}: this cluster has no kind {kind.kind}; {advice}")


def _requested(spec: PipelineSpec) -> Iterator[tuple[str, Kind, str]]:
    """Yields the field, the kind and what provides it."""
    if spec.monitoring.pod_monitor is not None:
        yield "spec.monitoring.podMonitor", POD_MONITOR, "the Prometheus Operator"
    for stage in STAGES:
        autoscaling = getattr(spec, stage.value).autoscaling
        if autoscaling is not None and autoscaling.by == "Keda":
            yield f"spec.{stage}.autoscaling", SCALED_OBJECT, "KEDA"
    if spec.gateway.route is not None and spec.gateway.route.http_route is not None:
        yield "spec.gateway.route.httpRoute", HTTP_ROUTE, "the Gateway API"
