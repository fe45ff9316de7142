"""Routes to the gateways from outside the cluster: an HTTPRoute of the Gateway API, or an Ingress."""

from typing import Final

from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.kinds import HTTP_ROUTE, INGRESS
from syrinx_operator.cluster.objects.state import Manifest, ObjectKey, Observed, Owner, Problem
from syrinx_operator.cluster.plan.objects import manifest, omit_empty
from syrinx_operator.resource.fields.gateway import GatewaySpec, HttpRouteSpec, IngressSpec
from syrinx_stages.contract.stages import Stage

_NGINX: Final = "nginx.ingress.kubernetes.io"
_NGINX_SECONDS: Final = "3600"
"""How long nginx waits for the next bytes. Its default of 60 seconds ends requests for whole files."""
_NGINX_BODY: Final = "24m"
"""Reference audio, in base64."""
_ISSUER_ANNOTATIONS: Final = {"Issuer": "cert-manager.io/issuer", "ClusterIssuer": "cert-manager.io/cluster-issuer"}
_REQUIRED: Final = ("Accepted", "ResolvedRefs")
_MAX_MESSAGE: Final = 300
"""Characters of a Gateway's own message that are repeated."""


def routes(owner: Owner, gateway: GatewaySpec) -> list[Manifest]:
    """Returns the HTTPRoute or Ingress of the gateways' Service, if the spec requests one."""
    route = gateway.route
    if route is None:
        return []
    if route.http_route is not None:
        return [_http_route(owner, gateway, route.http_route)]
    assert route.ingress is not None
    return [_ingress(owner, gateway, route.ingress)]


def route_problems(owner: Owner, observed: Observed) -> list[Problem]:
    """Returns why Gateways do not accept the HTTPRoute, as they report it; none if they do or have not yet reported."""
    name = names.workload(owner.name, Stage.GATEWAY)
    live = observed.objects.get(ObjectKey(HTTP_ROUTE.kind, name)) or {}
    found = []
    for parent in (live.get("status") or {}).get("parents") or ():
        for each in parent.get("conditions") or ():
            if each.get("type") in _REQUIRED and each.get("status") == "False":
                gateway, reason = parent.get("parentRef", {}).get("name"), each.get("reason")
                text = " ".join(str(each.get("message") or "").split())[:_MAX_MESSAGE]
                message = f"HTTPRoute {name}: Gateway {gateway} reports {each['type']} False ({reason}): {text}"
                found.append(Problem("RouteNotAccepted", message))
    return found


def _http_route(owner: Owner, gateway: GatewaySpec, route: HttpRouteSpec) -> Manifest:
    parents = [
        {
            "group": HTTP_ROUTE.group,
            "kind": "Gateway",
            "name": parent.name,
            **omit_empty(namespace=parent.namespace, sectionName=parent.section_name, port=parent.port),
        }
        for parent in route.parent_refs
    ]
    service = names.workload(owner.name, Stage.GATEWAY)
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": route.path}}],
        # 0s disables the timeout: a stream lasts as long as its speech.
        "timeouts": {"request": "0s"},
        "backendRefs": [{"group": "", "kind": "Service", "name": service, "port": gateway.port, "weight": 1}],
    }
    body = {"parentRefs": parents, **omit_empty(hostnames=list(route.hostnames)), "rules": [rule]}
    return manifest(
        owner, HTTP_ROUTE.api_version, HTTP_ROUTE.kind, Stage.GATEWAY, annotations=route.annotations, spec=body
    )


def _ingress(owner: Owner, gateway: GatewaySpec, ingress: IngressSpec) -> Manifest:
    service = {"name": names.workload(owner.name, Stage.GATEWAY), "port": {"name": names.HTTP_PORT_NAME}}
    path = {"path": ingress.path, "pathType": "Prefix", "backend": {"service": service}}
    body = {
        **omit_empty(ingressClassName=ingress.class_name),
        "rules": [{**omit_empty(host=ingress.host), "http": {"paths": [path]}}],
    }
    annotations: dict[str, str] = {}
    if ingress.class_name == "nginx":
        annotations |= _nginx_annotations(gateway)
    if ingress.tls is not None:
        secret = ingress.tls.secret or f"{names.workload(owner.name, Stage.GATEWAY)}-tls"
        body["tls"] = [{"hosts": [ingress.host], "secretName": secret}]
        if (issuer := ingress.tls.issuer) is not None:
            annotations[_ISSUER_ANNOTATIONS[issuer.kind]] = issuer.name
    annotations |= ingress.annotations
    return manifest(owner, INGRESS.api_version, INGRESS.kind, Stage.GATEWAY, annotations=annotations, spec=body)


def _nginx_annotations(gateway: GatewaySpec) -> dict[str, str]:
    """Returns the annotations of ingress-nginx with which audio arrives as it is generated."""
    return {
        f"{_NGINX}/proxy-buffering": "off",
        f"{_NGINX}/proxy-read-timeout": _NGINX_SECONDS,
        f"{_NGINX}/proxy-send-timeout": _NGINX_SECONDS,
        f"{_NGINX}/proxy-body-size": _NGINX_BODY,
        **({f"{_NGINX}/backend-protocol": "HTTPS"} if gateway.tls is not None else {}),
    }
