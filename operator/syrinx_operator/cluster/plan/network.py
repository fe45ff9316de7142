"""Network access to the pods: Services, NetworkPolicies and the PodMonitor; and the pods' ServiceAccounts."""

from collections.abc import Sequence
from typing import Any

from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.kinds import POD_MONITOR
from syrinx_operator.cluster.objects.state import (
    STAGES,
    Component,
    Manifest,
    ObjectKey,
    Observed,
    OperatorConfig,
    Owner,
)
from syrinx_operator.cluster.plan.objects import manifest, omit_empty
from syrinx_operator.cluster.plan.workload.pods import places
from syrinx_operator.resource.fields.gateway import ServiceSpec
from syrinx_operator.resource.fields.pods import Peer
from syrinx_operator.resource.resolve import RedisForm, ResolvedPipeline
from syrinx_stages.contract.stages import Stage


def services(owner: Owner, pipeline: ResolvedPipeline, observed: Observed) -> list[Manifest]:
    """Returns the gateways' public Service, the headless ones of talkers and codecs, and the managed Redis's."""
    found = [_public_service(owner, pipeline, observed)]
    # Pods that are not ready need a DNS name too, for debugging.
    headless: dict[str, Any] = {"type": "ClusterIP", "clusterIP": "None", "publishNotReadyAddresses": True}
    for stage in pipeline.workloads[1:]:
        ports = [_port(place.admin_name, place.admin_port) for place in places(pipeline, stage).values()]
        found.append(_service(owner, stage, ports, **headless))
    redis = _port(names.REDIS_PORT_NAME, names.REDIS_PORT)
    sentinel = _port(names.SENTINEL_PORT_NAME, names.SENTINEL_PORT)
    for cell in names.redis_cells(pipeline):
        if pipeline.redis is RedisForm.SINGLE:
            found.append(_service(owner, cell, [redis], type="ClusterIP"))
        else:  # Servers find each other before they are ready.
            found.append(_service(owner, cell, [redis, sentinel], **headless))
    return found


def _public_service(owner: Owner, pipeline: ResolvedPipeline, observed: Observed) -> Manifest:
    gateway, public = pipeline.spec.gateway, pipeline.spec.gateway.service
    http = _port(names.HTTP_PORT_NAME, gateway.port) | {"appProtocol": "https" if gateway.tls else "http"}
    http |= omit_empty(nodePort=public.node_port)
    live = observed.objects.get(ObjectKey("Service", names.workload(owner.name, Stage.GATEWAY)))
    options = omit_empty(
        ipFamilyPolicy=public.ip_family_policy,
        ipFamilies=_ip_families(public, live),
        externalTrafficPolicy=public.external_traffic_policy,
        loadBalancerClass=public.load_balancer_class,
    )
    return _service(owner, Stage.GATEWAY, [http], public.annotations, type=public.type, **options)


def _ip_families(public: ServiceSpec, live: Manifest | None) -> list[str]:
    """Returns the families to apply.

    The API server adds the second one to a dual-stack Service, and refuses to apply one without it.
    """
    wanted: list[str] = list(public.ip_families)
    known: list[str] = live["spec"].get("ipFamilies", []) if live is not None else []
    is_known = wanted == known[: len(wanted)] and public.ip_family_policy != "SingleStack"
    return known if wanted and is_known else wanted


def service_accounts(owner: Owner, pipeline: ResolvedPipeline) -> list[Manifest]:
    """Returns the pods' ServiceAccounts, without a token: pods do not call the Kubernetes API."""
    accounts = {"stages": pipeline.spec.service_account.annotations}
    if (redis := pipeline.redis) is not None:
        accounts[redis.value] = {}
    return [
        manifest(owner, "v1", "ServiceAccount", each, annotations=annotations, automountServiceAccountToken=False)
        for each, annotations in accounts.items()
    ]


def network_policies(owner: Owner, pipeline: ResolvedPipeline, config: OperatorConfig) -> list[Manifest]:
    """Returns policies: API for all, metrics for operator and Prometheus, settings for operator, Redis for stages."""
    spec = pipeline.spec
    operator = Peer(namespace=config.operator_namespace, pod_labels={"app.kubernetes.io/name": "syrinx-operator"})
    admin_peers = [_peer(peer) for peer in (operator, *spec.monitoring.allow_from)]
    # The API server connects from an address that is not the operator's. The token protects the settings.
    settings_peers = admin_peers if config.proxied else [_peer(operator)]
    policies = []
    for stage in pipeline.workloads:
        public = [_rule(spec.gateway.port)] if stage is Stage.GATEWAY else []
        private = places(pipeline, stage).values()
        admin = [_rule(place.admin_port, admin_peers) for place in private]
        settings = [_rule(place.settings_port, settings_peers) for place in private]
        policies.append(policy(owner, stage, public + admin + settings))
    stages = {"podSelector": _pods(owner, *STAGES)}
    for cell in names.redis_cells(pipeline):
        if pipeline.redis is RedisForm.SINGLE:
            rules = [_rule(names.REDIS_PORT, [stages])]
        else:
            peers = [stages, {"podSelector": {"matchLabels": names.selector(owner.name, cell)}}]
            rules = [_rule(port, peers) for port in (names.REDIS_PORT, names.SENTINEL_PORT)]
        policies.append(policy(owner, cell, rules))
    return policies


def pod_monitors(owner: Owner, pipeline: ResolvedPipeline) -> list[Manifest]:
    """Returns the PodMonitor of all stages, if the spec requests one."""
    requested = pipeline.spec.monitoring.pod_monitor
    if requested is None:
        return []
    endpoint = {
        "path": "/metrics",
        "interval": f"{requested.interval_seconds}s",
        # The series have the label `pipeline`; `up` gets it from the pod.
        "honorLabels": True,
        "relabelings": [
            {"sourceLabels": ["__meta_kubernetes_pod_name"], "targetLabel": "pod"},
            {"sourceLabels": ["__meta_kubernetes_pod_label_syrinx_dev_pipeline"], "targetLabel": "pipeline"},
        ],
    }
    ports = dict.fromkeys(
        place.admin_name for stage in pipeline.workloads for place in places(pipeline, stage).values()
    )
    body = {"selector": _pods(owner, *STAGES), "podMetricsEndpoints": [{"port": port, **endpoint} for port in ports]}
    monitor = manifest(owner, POD_MONITOR.api_version, POD_MONITOR.kind, "monitoring", spec=body)
    monitor["metadata"]["name"] = owner.name
    # User labels, by which a Prometheus selects monitors; they never override the operator's.
    monitor["metadata"]["labels"] = {**requested.labels, **monitor["metadata"]["labels"]}
    return [monitor]


def _service(
    owner: Owner, component: str, ports: list[Manifest], annotations: dict[str, str] | None = None, **spec: Any
) -> Manifest:
    body = {**spec, "selector": names.selector(owner.name, component), "ports": ports}
    return manifest(owner, "v1", "Service", component, annotations=annotations, spec=body)


def _port(name: str, port: int) -> Manifest:
    return {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}


def policy(owner: Owner, component: str, ingress: list[Manifest]) -> Manifest:
    """Returns the policy of the pods of a component or another purpose, to which only `ingress` is allowed."""
    pods: Manifest = {"matchLabels": names.selector(owner.name, component)}
    if isinstance(component, Component) and component in STAGES:
        pods = _pods(owner, component)
    spec = {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": ingress}
    return manifest(owner, "networking.k8s.io/v1", "NetworkPolicy", component, spec=spec)


def _rule(port: int, peers: Sequence[Manifest] = ()) -> Manifest:
    rule: Manifest = {"ports": [{"port": port, "protocol": "TCP"}]}
    return {"from": list(peers), **rule} if peers else rule


def _pods(owner: Owner, *stages: Component) -> Manifest:
    """Returns a selector of the pods of stages, those of a canary included."""
    values = [value for stage in stages for value in (stage.value, names.canary(stage))]
    expression = {"key": names.COMPONENT_LABEL, "operator": "In", "values": values}
    return {"matchLabels": {names.PIPELINE_LABEL: owner.name}, "matchExpressions": [expression]}


def _peer(peer: Peer) -> Manifest:
    if peer.cidr is not None:
        return {"ipBlock": {"cidr": peer.cidr}}
    namespace = omit_empty(**{"kubernetes.io/metadata.name": peer.namespace})
    return {
        "namespaceSelector": omit_empty(matchLabels=namespace),
        "podSelector": omit_empty(matchLabels=dict(peer.pod_labels)),
    }
