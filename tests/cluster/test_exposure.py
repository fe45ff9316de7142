"""The Service, Ingress and HTTPRoute of a pipeline as a real API server accepts and completes them."""

import pytest

from cluster.client import ApiError
from cluster.pipeline import Pipeline

PIPELINE = "exposed"
GATEWAY = f"{PIPELINE}-gateway"
HOST = "speech.example.org"
HTTP_ROUTE = {"httpRoute": {"parentRefs": [{"name": "public"}], "hostnames": [HOST], "path": "/v1"}}


@pytest.fixture(scope="module")
def demo(installed):
    """The pipeline of this file, whose pods need not run."""
    pipeline = Pipeline(installed, PIPELINE)
    pipeline.create()
    pipeline.wait("to have a Service", lambda: service(pipeline))
    yield pipeline
    pipeline.remove()


def service(demo):
    return demo.cluster.get("Service", GATEWAY)


def ingress(demo):
    return demo.cluster.get("Ingress", GATEWAY)


def serves_http_routes(demo):
    try:
        return demo.cluster.list("HTTPRoute") is not None
    except ApiError as error:
        if error.status == 404:
            return False
        raise


def test_a_service_becomes_a_node_port_and_back(demo):
    annotations = {"example.org/idle-timeout": "3600"}
    address = service(demo)["spec"]["clusterIP"]
    demo.edit({"gateway": {"service": {"type": "NodePort", "annotations": annotations}}})
    found = demo.wait("to have a NodePort", lambda: (each := service(demo))["spec"]["type"] == "NodePort" and each)
    assert 30_000 <= found["spec"]["ports"][0]["nodePort"] <= 32_767
    assert annotations.items() <= found["metadata"]["annotations"].items()
    demo.edit({"gateway": {"service": None}})
    found = demo.wait("to have none", lambda: (each := service(demo))["spec"]["type"] == "ClusterIP" and each)
    assert "nodePort" not in found["spec"]["ports"][0]
    assert "example.org/idle-timeout" not in found["metadata"]["annotations"]
    assert found["spec"]["clusterIP"] == address


def test_a_service_becomes_a_load_balancer_of_a_class(demo):
    demo.edit({"gateway": {"service": {"type": "LoadBalancer", "loadBalancerClass": "example.org/internal"}}})
    found = demo.wait("to have its type", lambda: (each := service(demo))["spec"]["type"] == "LoadBalancer" and each)
    assert found["spec"]["loadBalancerClass"] == "example.org/internal"
    demo.edit({"gateway": {"service": None}})
    demo.wait("to be a ClusterIP again", lambda: service(demo)["spec"]["type"] == "ClusterIP")
    assert demo.condition("Degraded")["status"] != "True", "the class was removed with the type"


def test_a_service_prefers_two_families_and_keeps_its_first(demo):
    first = service(demo)["spec"]["ipFamilies"][0]
    demo.edit({"gateway": {"service": {"ipFamilyPolicy": "PreferDualStack", "ipFamilies": [first]}}})
    demo.wait("to prefer both", lambda: service(demo)["spec"]["ipFamilyPolicy"] == "PreferDualStack")
    demo.edit({"gateway": {"service": {"annotations": {"example.org/a": "b"}}}})
    demo.wait("to be annotated", lambda: "example.org/a" in service(demo)["metadata"].get("annotations", {}))
    assert service(demo)["spec"]["ipFamilies"][0] == first and demo.condition("Degraded")["status"] != "True"
    other = "IPv4" if first == "IPv6" else "IPv6"
    demo.edit({"gateway": {"service": {"ipFamilies": [other]}}})
    demo.wait("to be refused", lambda: "first of ipFamilies cannot change" in demo.condition("Degraded")["message"])
    demo.edit({"gateway": {"service": {"ipFamilyPolicy": "SingleStack", "ipFamilies": [first]}}})
    demo.wait("to have one again", lambda: service(demo)["spec"]["ipFamilies"] == [first])
    demo.edit({"gateway": {"service": None}})


def test_external_traffic_goes_to_the_gateways_nodes(demo):
    demo.edit({"gateway": {"service": {"type": "NodePort", "externalTrafficPolicy": "Local"}}})
    demo.wait("to have the policy", lambda: service(demo)["spec"].get("externalTrafficPolicy") == "Local")
    demo.edit({"gateway": {"service": None}})
    demo.wait("to be a ClusterIP again", lambda: service(demo)["spec"]["type"] == "ClusterIP")
    assert "externalTrafficPolicy" not in service(demo)["spec"] and demo.condition("Degraded")["status"] != "True"


def test_an_ingress_routes_to_the_service(demo):
    tls = {"secret": "speech-tls"}
    route = {"ingress": {"className": "nginx", "host": HOST, "path": "/v1", "tls": tls}}
    demo.edit({"gateway": {"route": route}})
    found = demo.wait("to have an Ingress", lambda: ingress(demo))
    (rule,) = found["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert (rule["host"], path["path"], path["pathType"]) == (HOST, "/v1", "Prefix")
    backend = path["backend"]["service"]
    ports = {port["name"] for port in service(demo)["spec"]["ports"]}
    assert backend["name"] == GATEWAY and backend["port"]["name"] in ports
    assert found["spec"]["tls"] == [{"hosts": [HOST], "secretName": "speech-tls"}]
    assert found["metadata"]["annotations"]["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"
    demo.edit({"gateway": {"route": None}})
    demo.wait("to have no Ingress", lambda: not ingress(demo))


def test_an_http_route_is_created_where_the_cluster_has_them(demo):
    if not serves_http_routes(demo):
        pytest.skip("the cluster has no HTTPRoutes")
    demo.edit({"gateway": {"route": HTTP_ROUTE}})
    found = demo.wait("to have an HTTPRoute", lambda: demo.cluster.get("HTTPRoute", GATEWAY))
    (rule,) = found["spec"]["rules"]
    assert rule["backendRefs"][0]["name"] == GATEWAY
    assert rule["timeouts"] == {"request": "0s"}
    demo.edit({"gateway": {"route": None}})
    demo.wait("to have no HTTPRoute", lambda: not demo.cluster.get("HTTPRoute", GATEWAY))


def test_an_http_route_is_reported_where_the_cluster_has_none(demo):
    if serves_http_routes(demo):
        pytest.skip("the cluster has HTTPRoutes")
    demo.edit({"gateway": {"route": HTTP_ROUTE}})
    assert "HTTPRoute" in demo.wait_condition("Degraded", "KindNotServed")
    demo.edit({"gateway": {"route": None}})
    demo.wait_condition("Degraded", "AsExpected")
