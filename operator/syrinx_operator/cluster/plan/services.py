"""Services, and the accounts that pods run as."""

from __future__ import annotations

from typing import Any

from syrinx_operator.cluster import names
from syrinx_operator.cluster.plan.objects import manifest, present
from syrinx_operator.cluster.state import Component, Manifest, Owner
from syrinx_operator.cluster.topology import members, workloads
from syrinx_operator.resource.rules import ADMIN_PORT
from syrinx_operator.resource.spec import PipelineSpec


def services(owner: Owner, spec: PipelineSpec) -> list[Manifest]:
    """The public one of the gateways, one for the names of the stages' pods, and that of a managed Redis."""
    public = spec.gateway.service
    http = {
        **_port(names.HTTP_PORT_NAME, spec.gateway.port),
        "appProtocol": "http",
        **present(nodePort=public.node_port),
    }
    redis = [_service(owner, Component.REDIS, [_port(names.REDIS_PORT_NAME, names.REDIS_PORT)], type="ClusterIP")]
    return [
        _service(owner, Component.GATEWAY, [http], annotations=public.annotations, type=public.type),
        *(_headless(owner, spec, stage) for stage in workloads(spec) if stage is not Component.GATEWAY),
        *(redis if spec.connector.managed else ()),
    ]


def service_accounts(owner: Owner, spec: PipelineSpec) -> list[Manifest]:
    """Accounts without a token: nothing here talks to Kubernetes."""
    accounts = [(names.service_account(owner.name, Component.GATEWAY), "stages")]
    if spec.connector.managed:
        accounts.append((names.service_account(owner.name, Component.REDIS), Component.REDIS))
    return [
        manifest(owner, "v1", "ServiceAccount", name, component, automountServiceAccountToken=False)
        for name, component in accounts
    ]


def _headless(owner: Owner, spec: PipelineSpec, stage: Component) -> Manifest:
    ports = [_port(names.ADMIN_PORT_NAME, ADMIN_PORT)]
    ports += [_port(names.GUEST_ADMIN_PORT_NAME, names.GUEST_ADMIN_PORT) for _ in members(spec, stage)[1:]]
    # A pod that is not ready is the one somebody wants to look at.
    return _service(owner, stage, ports, type="ClusterIP", clusterIP="None", publishNotReadyAddresses=True)


def _service(
    owner: Owner, component: Component, ports: list[Manifest], annotations: dict[str, str] | None = None, **spec: Any
) -> Manifest:
    name = names.workload(owner.name, component)
    body = {**spec, "selector": names.selector(owner.name, component), "ports": ports}
    return manifest(owner, "v1", "Service", name, component, annotations=annotations, spec=body)


def _port(name: str, port: int) -> Manifest:
    return {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}
