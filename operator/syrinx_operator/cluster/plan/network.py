"""NetworkPolicies: who may connect to what."""

from __future__ import annotations

from collections.abc import Sequence

from syrinx_operator.cluster import names
from syrinx_operator.cluster.plan.objects import manifest
from syrinx_operator.cluster.state import STAGES, Component, Manifest, OperatorConfig, Owner
from syrinx_operator.cluster.topology import members, workloads
from syrinx_operator.resource.pods import Peer
from syrinx_operator.resource.rules import ADMIN_PORT
from syrinx_operator.resource.spec import PipelineSpec

_NAMESPACE_LABEL = "kubernetes.io/metadata.name"


def network_policies(owner: Owner, spec: PipelineSpec, config: OperatorConfig) -> list[Manifest]:
    """The public API for everybody, admin ports for the operator and Prometheus, Redis for the stages alone."""
    operator = Peer(namespace=config.operator_namespace, pod_labels={"app.kubernetes.io/name": "syrinx-operator"})
    readers = [_peer(peer) for peer in (operator, *spec.monitoring.allow_from)]
    admin = _rule(ADMIN_PORT, readers)
    policies = [_policy(owner, Component.GATEWAY, [_rule(spec.gateway.port), admin])]
    for stage in workloads(spec)[1:]:
        guests = [_rule(names.GUEST_ADMIN_PORT, readers) for _ in members(spec, stage)[1:]]
        policies.append(_policy(owner, stage, [admin, *guests]))
    if spec.connector.managed:
        policies.append(_policy(owner, Component.REDIS, [_rule(names.REDIS_PORT, [_stages(owner)])]))
    return policies


def _policy(owner: Owner, component: Component, ingress: list[Manifest]) -> Manifest:
    name = names.workload(owner.name, component)
    pods = {"matchLabels": names.selector(owner.name, component)}
    spec = {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": ingress}
    return manifest(owner, "networking.k8s.io/v1", "NetworkPolicy", name, component, spec=spec)


def _rule(port: int, peers: Sequence[Manifest] = ()) -> Manifest:
    """Without peers: for everybody."""
    rule: Manifest = {"ports": [{"port": port, "protocol": "TCP"}]}
    return {"from": list(peers), **rule} if peers else rule


def _stages(owner: Owner) -> Manifest:
    stages = {"key": names.COMPONENT_LABEL, "operator": "In", "values": [stage.value for stage in STAGES]}
    return {"podSelector": {"matchLabels": {names.PIPELINE_LABEL: owner.name}, "matchExpressions": [stages]}}


def _peer(peer: Peer) -> Manifest:
    if peer.cidr is not None:
        return {"ipBlock": {"cidr": peer.cidr}}
    namespaces = {"matchLabels": {_NAMESPACE_LABEL: peer.namespace}} if peer.namespace is not None else {}
    pods = {"matchLabels": dict(peer.pod_labels)} if peer.pod_labels else {}
    return {"namespaceSelector": namespaces, "podSelector": pods}
