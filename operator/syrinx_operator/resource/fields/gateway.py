"""Fields of the gateway: its Service and route, the API, keys, certificate and pods."""

from typing import Annotated, Literal

from msgspec import Meta

from syrinx_operator.resource.fields import pods
from syrinx_operator.resource.fields.autoscaling import AutoscalingSpec
from syrinx_operator.resource.fields.pods import KUBERNETES, Object
from syrinx_stages.contract import settings
from syrinx_stages.contract.api import LexiconWord, Respelling
from syrinx_stages.contract.settings import MAX_TEXT_LENGTH, ModelAlias, Seconds, VoiceAlias, VoiceName

_API = settings.ApiConfig()
_GATEWAY = settings.GatewaySettings()
_VOICES = settings.VoiceLimits()
LocalFile = Annotated[pods.Line, Meta(max_length=1024)]
"""A file on the machine of `syrinx up`, which resolves a relative path from the directory of the resource's file."""


class ServiceSpec(Object, frozen=True, kw_only=True):
    """The Kubernetes Service of the gateways."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """Type of the Service."""
    node_port: Annotated[int, Meta(ge=30_000, le=32_767)] | None = None
    """Port on each node, with type NodePort or LoadBalancer. Default: allocated by Kubernetes."""
    ip_family_policy: Literal["SingleStack", "PreferDualStack", "RequireDualStack"] | None = None
    """Whether the Service has addresses of both families. Default: SingleStack for a new Service, as in Kubernetes;
    an existing one keeps its policy."""
    ip_families: Annotated[tuple[Literal["IPv4", "IPv6"], ...], Meta(max_length=2)] = ()
    """Families of its addresses. The first cannot change. Default: allocated by Kubernetes."""
    external_traffic_policy: Literal["Cluster", "Local"] | None = None
    """Which nodes forward external traffic, with type NodePort or LoadBalancer. Local: those with a gateway, which sees
    the client's address. Default: Cluster."""
    load_balancer_class: pods.LabelKey | None = None
    """Implementation of the load balancer, with type LoadBalancer, for example example.org/internal. Default: the
    cluster's."""
    annotations: pods.Annotations = {}
    """Annotations of the Service, for example for load balancers."""


Hostname = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=253,
        pattern="^([*][.])?[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
        description="a host name in lower case, for example speech.example.org or *.example.org",
    ),
]
RoutePath = Annotated[str, Meta(min_length=1, max_length=512, pattern="^(/[-A-Za-z0-9_~][-A-Za-z0-9._~]*)*/?$")]


class ParentRef(Object, frozen=True, kw_only=True):
    """A Gateway that a route attaches to."""

    name: pods.Name
    """Name of the Gateway."""
    namespace: pods.Name | None = None
    """Namespace of the Gateway. Default: the pipeline's namespace."""
    section_name: pods.Name | None = None
    """Listener of the Gateway. Default: all that permit the route."""
    port: pods.Port | None = None
    """Port of the listeners. Default: all."""


class HttpRouteSpec(Object, frozen=True, kw_only=True):
    """An HTTPRoute of the Gateway API, without a request timeout."""

    parent_refs: Annotated[tuple[ParentRef, ...], Meta(min_length=1, max_length=8)]
    """Gateways that serve the route."""
    hostnames: Annotated[tuple[Hostname, ...], Meta(max_length=16)] = ()
    """Host names of the API. Default: those of the listeners."""
    path: RoutePath = "/"
    """Prefix of the paths to route, which is not rewritten: /v1 exposes the API without its pages."""
    annotations: pods.Annotations = {}
    """Annotations of the HTTPRoute."""


class IssuerRef(Object, frozen=True, kw_only=True):
    """An issuer of cert-manager."""

    name: pods.Name
    """Name of the issuer."""
    kind: Literal["Issuer", "ClusterIssuer"] = "ClusterIssuer"
    """Kind of the issuer."""


class IngressTls(Object, frozen=True, kw_only=True):
    """The certificate of an Ingress."""

    secret: pods.Name | None = None
    """Secret of type kubernetes.io/tls. With `issuer`, cert-manager writes it. Default: NAME-gateway-tls."""
    issuer: IssuerRef | None = None
    """Issuer of cert-manager that issues the certificate. Default: none; the Secret must exist."""


class IngressSpec(Object, frozen=True, kw_only=True):
    """An Ingress. With class nginx it does not buffer audio and waits an hour for it."""

    class_name: pods.Name | None = None
    """IngressClass. Default: the cluster's default class."""
    host: Hostname | None = None
    """Host name of the API. Default: all."""
    path: RoutePath = "/"
    """Prefix of the paths to route, which is not rewritten: /v1 exposes the API without its pages."""
    tls: IngressTls | None = None
    """Certificate for HTTPS, which the ingress controller terminates. Default: none."""
    annotations: pods.Annotations = {}
    """Annotations of the Ingress. They replace those that the operator sets."""


class RouteSpec(Object, frozen=True, kw_only=True):
    """How the API is reached from outside the cluster: exactly one of `httpRoute` and `ingress`."""

    http_route: HttpRouteSpec | None = None
    """An HTTPRoute. Needs the Gateway API 1.2 or newer."""
    ingress: IngressSpec | None = None
    """An Ingress."""


class ApiSpec(Object, frozen=True, kw_only=True):
    """Names that the public API accepts besides those of the checkpoint, and what it does with streams, instructions
    and failed segments."""

    openai_names: bool = _API.openai_names
    """Accept OpenAI's voice and model names (alloy, tts-1, ...) as aliases, so that clients work on their defaults."""
    voice_aliases: Annotated[dict[VoiceAlias, VoiceName], Meta(max_length=32)] = _API.voice_aliases
    """Other names of voices, in lower case, each with its voice. `default` is the voice of requests that name none. A
    gateway does not start without one of the voices. Default: none."""
    model_aliases: Annotated[tuple[ModelAlias, ...], Meta(max_length=16)] = _API.model_aliases
    """Other names that clients may send as `model`. Default: none."""
    unsupported_instructions: Literal["Ignore", "Refuse"] = _API.unsupported_instructions
    """What happens to requests with instructions that the checkpoint cannot follow. Ignore: they are served, with a
    Warning header. Refuse: they are answered with 422."""
    stream_format: Literal["Audio", "SSE"] = _API.stream_format
    """What requests with `stream: true` and without `stream_format` get. Audio: raw bytes, as clients of SGLang-Omni
    and Kokoro-FastAPI expect. SSE: events, as those of vLLM-Omni expect since 2026-06-24. Clients of OpenAI send no
    `stream` and get raw bytes."""
    runaway_guard: bool = _API.runaway_guard
    """Check each segment of a text, and retry it with another seed if it is too short, too long, a loop or silence.
    Requests may choose otherwise with `runaway_guard`."""
    max_text_length: Annotated[int, Meta(ge=1, le=MAX_TEXT_LENGTH)] = _API.max_text_length
    """Maximum number of characters of a text. Longer ones are answered with 400."""
    normalize: bool | None = _API.normalize
    """Write numbers, dates, times, money, units and abbreviations as words before they are spoken. Requests may choose
    otherwise with `normalize`. Default: if `generation_config.json` of the checkpoint says `"normalize": true`."""
    lexicon: Annotated[dict[LexiconWord, Respelling], Meta(max_length=200)] = _API.lexicon
    """Respellings of words or phrases. An entry in lower case matches in any case. Requests may add to it with
    `lexicon`. Default: none."""


class VoicesSpec(Object, frozen=True, kw_only=True):
    """How many voices clients may keep with POST /v1/audio/voices. Only a Base checkpoint clones voices."""

    max_per_key: Annotated[int, Meta(ge=1, le=1000)] = _VOICES.max_per_key
    """Maximum number of voices of an API key. Without keys all clients share their voices, up to maxTotal."""
    max_total: Annotated[int, Meta(ge=0, le=1000)] = _VOICES.max_total
    """Maximum number of voices in all; they take at most a quarter of Redis' maxmemory. 0: none can be uploaded."""


class ApiKeysSpec(Object, frozen=True, kw_only=True):
    """The API keys of the clients: `secret` on Kubernetes, `file` with `syrinx up`."""

    secret: Annotated[pods.SecretKey | None, KUBERNETES] = None
    """Secret with the file of API keys. Its changes take effect without a restart."""
    file: LocalFile | None = None
    """File of API keys for `syrinx up`. Its changes take effect without a restart."""


class TlsSpec(Object, frozen=True, kw_only=True):
    """The certificate of the API: `secret` on Kubernetes, `certificateFile` and `keyFile` with `syrinx up`."""

    secret: Annotated[pods.Name | None, KUBERNETES] = None
    """Secret of type kubernetes.io/tls. Its changes take effect without a restart."""
    certificate_file: LocalFile | None = None
    """File with the certificate and those of intermediate authorities (PEM) for `syrinx up`."""
    key_file: LocalFile | None = None
    """File with the private key (PEM, without a password) for `syrinx up`."""


Origin = Annotated[str, Meta(pattern=r"^([*]|[a-z][-+.a-z0-9]*://[^\s/?#@,*]+)$", max_length=253)]
"""The origin of a web page as browsers send it."""


class CorsSpec(Object, frozen=True, kw_only=True):
    """Access from web pages of other origins (CORS)."""

    allow_origins: Annotated[tuple[Origin, ...], Meta(max_length=64)] = ()
    """Origins whose pages may call the API, for example https://app.example.org; * allows all. Default: none."""


class GatewaySpec(pods.PodFields, frozen=True, kw_only=True):
    """The public HTTP API."""

    replicas: pods.Replicas = 1
    """Number of gateways. With `syrinx up` they share the port, and the default is one more than GPUs."""
    autoscaling: Annotated[AutoscalingSpec | None, KUBERNETES] = None
    """Autoscaler of the gateways. Default: none."""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8000
    """TCP port of the API. With `syrinx up`, 0 selects a free port."""
    service: Annotated[ServiceSpec, KUBERNETES] = ServiceSpec()
    """The Service of the gateways."""
    route: Annotated[RouteSpec | None, KUBERNETES] = None
    """Route to the Service from outside the cluster. Default: none."""
    max_queue: Annotated[int, Meta(ge=0, le=100_000)] = _GATEWAY.max_queue
    """Maximum number of requests that wait for a talker. Further requests are answered with 503."""
    max_queue_seconds: Seconds = _GATEWAY.max_queue_seconds
    """Maximum seconds that a request waits for a talker. A request that would wait longer, or has waited longer, is
    answered with 503. Also applies if no talker or codec is ready."""
    reference_hosts: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[^\s/@]+$", max_length=253)], ...], Meta(max_length=64)
    ] = ()
    """Hosts from which reference audio may be downloaded by URL. Default: none."""
    api: ApiSpec = ApiSpec()
    """Names that the API accepts besides those of the checkpoint, and what it does with instructions."""
    playground: bool | None = None
    """Serve a page at / on which to try speech. Default: true with `syrinx up`, otherwise false."""
    voices: VoicesSpec = VoicesSpec()
    """How many voices clients may keep."""
    api_keys: ApiKeysSpec | None = None
    """API keys, of which every request needs one. Default: none; everybody who reaches the gateway may use it."""
    tls: TlsSpec | None = None
    """Certificate for HTTPS. Default: none; the API is served over HTTP."""
    cors: CorsSpec = CorsSpec()
    """Access from web pages of other origins (CORS)."""
    trusted_proxies: Annotated[tuple[pods.Cidr, ...], Meta(max_length=64)] = ()
    """Address ranges of proxies, for example 10.0.0.0/8, whose X-Forwarded-For names the client. Default: none."""
    keep_alive_seconds: settings.KeepAliveSeconds = settings.KEEP_ALIVE_SECONDS
    """Seconds for which a client or a load balancer may keep a connection between two requests. Must be longer than
    the balancer keeps its own: a request that is sent while the gateway closes the connection is lost."""
    drain_seconds: pods.DrainSeconds = 120
    """Seconds in which a stopping gateway finishes its streams. Use the duration of your longest utterance."""
    resources: Annotated[pods.Resources, KUBERNETES] = pods.Resources(requests={"cpu": "50m", "memory": "128Mi"})
    """CPU and memory of the container."""
