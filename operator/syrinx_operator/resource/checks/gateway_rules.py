"""The rules between fields of the gateway."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from syrinx_operator.resource.checks.conditions import (
    Condition,
    Rule,
    equals,
    exactly_one,
    has,
    immutable,
    requires,
    unique,
)
from syrinx_operator.resource.checks.pod_template import pod_template
from syrinx_operator.resource.fields import gateway, pods
from syrinx_stages.contract.settings import SETTINGS_PORT

GATEWAY_RULES: Final[Mapping[type[Struct], tuple[Rule, ...]]] = {
    gateway.ServiceSpec: (
        requires("nodePort", ~equals("type", "ClusterIP"), "needs type NodePort or LoadBalancer"),
        requires("externalTrafficPolicy", ~equals("type", "ClusterIP"), "needs type NodePort or LoadBalancer"),
        unique("ipFamilies", "a family is listed twice"),
        Rule(
            "ipFamilyPolicy",
            Condition(
                "!has(self.ipFamilies) || self.ipFamilies.size() < 2 || "
                "(has(self.ipFamilyPolicy) && self.ipFamilyPolicy != 'SingleStack')",
                lambda value: (
                    len(value.ip_families) < 2 or value.ip_family_policy in ("PreferDualStack", "RequireDualStack")
                ),
            ),
            "two ipFamilies need PreferDualStack or RequireDualStack",
        ),
        requires("loadBalancerClass", equals("type", "LoadBalancer"), "needs type LoadBalancer"),
        immutable(
            "self.type != 'LoadBalancer' || oldSelf.type != 'LoadBalancer' || "
            "(has(self.loadBalancerClass) ? self.loadBalancerClass : '') == "
            "(has(oldSelf.loadBalancerClass) ? oldSelf.loadBalancerClass : '')",
            "is immutable for a Service of type LoadBalancer",
            "loadBalancerClass",
            advice="change type to ClusterIP first",
        ),
    ),
    gateway.RouteSpec: (exactly_one("httpRoute", "ingress"),),
    gateway.IngressSpec: (requires("tls", has("host"), "needs `host`, the name in the certificate"),),
    gateway.IngressTls: (Rule("", has("secret") | has("issuer"), "set `secret`, `issuer` or both"),),
    gateway.ApiSpec: (unique("modelAliases", "an alias is listed twice"),),
    gateway.ApiKeysSpec: (
        Rule("", has("secret") | has("file"), "set `secret`, or `file` for `syrinx up`"),
        requires("file", has("secret"), "is for `syrinx up`: set secret", cluster_only=True),
    ),
    gateway.TlsSpec: (
        Rule(
            "",
            has("secret") | has("certificateFile") | has("keyFile"),
            "set `secret`, or `certificateFile` and `keyFile` for `syrinx up`",
        ),
        requires("certificateFile", has("keyFile"), "needs `keyFile`, its private key"),
        requires("keyFile", has("certificateFile"), "needs `certificateFile`, its certificate"),
        requires("certificateFile", has("secret"), "is for `syrinx up`: set secret", cluster_only=True),
    ),
    gateway.GatewaySpec: (
        pod_template("gateway"),
        Rule(
            "port",
            Condition("self.port >= 1024", lambda value: value.port >= 1024),
            "must be at least 1024: the gateway does not run as root",
            cluster_only=True,
        ),
        Rule("port", ~equals("port", pods.ADMIN_PORT), f"{pods.ADMIN_PORT} is reserved for metrics", cluster_only=True),
        Rule("port", ~equals("port", SETTINGS_PORT), f"{SETTINGS_PORT} is reserved for settings", cluster_only=True),
    ),
}
