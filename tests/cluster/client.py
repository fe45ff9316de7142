"""A small synchronous Kubernetes client for the cluster tests; every call has a timeout."""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Callable
from typing import Any

import aiohttp
import httpx
from kubernetes import client, config
from kubernetes.stream import stream as attach

from syrinx_operator.commands.client import SpeechClient

Object = dict[str, Any]
CALL_SECONDS = 30.0
STREAM_SECONDS = 120.0
"""Maximum seconds between two chunks of a proxied stream."""
POLL_SECONDS = 0.5

_CORE = (
    "Pod",
    "Service",
    "ConfigMap",
    "Secret",
    "ServiceAccount",
    "PersistentVolumeClaim",
    "Event",
    "Namespace",
    "Node",
    "ResourceQuota",
)
_GROUPS = {
    "StatefulSet": "apps/v1",
    "Deployment": "apps/v1",
    "Job": "batch/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "Ingress": "networking.k8s.io/v1",
    "HTTPRoute": "gateway.networking.k8s.io/v1",
    "PodDisruptionBudget": "policy/v1",
    "HorizontalPodAutoscaler": "autoscaling/v2",
    "Role": "rbac.authorization.k8s.io/v1",
    "RoleBinding": "rbac.authorization.k8s.io/v1",
    "ClusterRole": "rbac.authorization.k8s.io/v1",
    "ClusterRoleBinding": "rbac.authorization.k8s.io/v1",
    "StorageClass": "storage.k8s.io/v1",
    "CustomResourceDefinition": "apiextensions.k8s.io/v1",
    "TTSPipeline": "syrinx.dev/v1beta1",
}
_CLUSTER_WIDE = {"Namespace", "Node", "StorageClass", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
_PLURALS = {"NetworkPolicy": "networkpolicies"}


class ApiError(Exception):
    """An error response of the API server."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body[:2000]}")
        self.status = status
        try:
            self.message = str(json.loads(body)["message"])
        except (ValueError, KeyError, TypeError):
            self.message = body


class TimedOut(AssertionError):
    """A condition did not become true in time; the message says which and what was observed last."""


class Kubernetes:
    """The cluster of KUBECONFIG, or the one this runs in, restricted to one namespace."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.configuration = client.Configuration()
        config.load_config(client_configuration=self.configuration)
        self.http = httpx.Client(
            base_url=self.configuration.host, verify=_tls(self.configuration), timeout=CALL_SECONDS, trust_env=False
        )

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Sends a request. Raises ApiError unless the status is 2xx."""
        response = self.http.request(method, path, **self._authorised(options))
        if not response.is_success:
            raise ApiError(response.status_code, response.text)
        return response

    def stream(self, method: str, path: str, **options: Any) -> Any:
        """Like `httpx.Client.stream`, with credentials."""
        return self.http.stream(method, path, **self._authorised(options))

    def connect(self, path: str) -> SpeechClient:
        """Returns a client for a gateway at a path proxied by the API server, with unlimited concurrency."""
        return SpeechClient(
            self.configuration.host.rstrip("/") + path,
            connector=aiohttp.TCPConnector(limit=0, ssl=_tls(self.configuration)),
            headers=self._authorised({}).get("headers"),
            timeout=aiohttp.ClientTimeout(sock_connect=CALL_SECONDS, sock_read=STREAM_SECONDS),
            proxy=None,
        )

    def _authorised(self, options: Object) -> Object:
        token = self.configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        if token is None and self.configuration.username:
            pair = f"{self.configuration.username}:{self.configuration.password}"
            token = "Basic " + base64.b64encode(pair.encode()).decode()
        if token:
            options["headers"] = {**options.get("headers", {}), "Authorization": token}
        return options

    def path(self, kind: str, name: str = "", subresource: str = "") -> str:
        """Returns the URL path of a kind, an object or a subresource."""
        plural = _PLURALS.get(kind) or kind.lower() + ("es" if kind.endswith("s") else "s")
        root = "/api/v1" if kind in _CORE else f"/apis/{_GROUPS[kind]}"
        scope = "" if kind in _CLUSTER_WIDE else f"/namespaces/{self.namespace}"
        return root + scope + f"/{plural}" + (f"/{name}" if name else "") + (f"/{subresource}" if subresource else "")

    def get(self, kind: str, name: str) -> Object | None:
        """Returns the object, or None if it does not exist."""
        try:
            body: Object = self.call("GET", self.path(kind, name)).json()
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return body

    def list(self, kind: str, selector: str = "") -> list[Object]:
        """Returns the kind's objects in the namespace, sorted by name."""
        parameters = {"labelSelector": selector} if selector else {}
        items: list[Object] = self.call("GET", self.path(kind), params=parameters).json().get("items") or []
        return sorted(items, key=lambda item: str(item["metadata"]["name"]))

    def create(self, manifest: Object, dry_run: bool = False) -> Object:
        """Creates an object; unknown fields are rejected."""
        return self._write("POST", self.path(manifest["kind"]), manifest, dry_run)

    def replace(self, manifest: Object, dry_run: bool = False) -> Object:
        """Replaces an object like `kubectl replace`, whatever its version; unknown fields are rejected."""
        path = self.path(manifest["kind"], manifest["metadata"]["name"])
        deadline = time.monotonic() + CALL_SECONDS
        while True:
            try:
                return self._write("PUT", path, manifest, dry_run)
            except ApiError as error:
                # A loaded server compares the version with a copy from before the object was created again.
                if error.status != 409 or time.monotonic() > deadline:
                    raise
                time.sleep(POLL_SECONDS)

    def _write(self, method: str, path: str, manifest: Object, dry_run: bool) -> Object:
        parameters = {"fieldManager": "syrinx-tests", "fieldValidation": "Strict"} | (
            {"dryRun": "All"} if dry_run else {}
        )
        if method == "PUT":
            version = self.call("GET", path).json()["metadata"]["resourceVersion"]
            manifest = {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": version}}
        body: Object = self.call(method, path, params=parameters, json=manifest).json()
        return body

    def apply(self, manifest: Object, dry_run: bool = False) -> Object:
        """Applies like `kubectl apply --server-side`; unknown fields are rejected."""
        parameters = {"fieldManager": "syrinx-tests", "force": "true", "fieldValidation": "Strict"}
        if dry_run:
            parameters["dryRun"] = "All"
        response = self.call(
            "PATCH",
            self.path(manifest["kind"], manifest["metadata"]["name"]),
            params=parameters,
            content=json.dumps(manifest),
            headers={"Content-Type": "application/apply-patch+yaml"},
        )
        body: Object = response.json()
        return body

    def patch(self, kind: str, name: str, change: Object, subresource: str = "") -> Object:
        """Applies a merge patch like `kubectl patch --type merge`."""
        response = self.call(
            "PATCH",
            self.path(kind, name, subresource),
            content=json.dumps(change),
            headers={"Content-Type": "application/merge-patch+json"},
        )
        body: Object = response.json()
        return body

    def delete(self, kind: str, name: str, grace: int | None = None) -> None:
        """Deletes an object if it exists."""
        options: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        try:
            self.call(
                "DELETE",
                self.path(kind, name),
                content=json.dumps(options),
                headers={"Content-Type": "application/json"},
            )
        except ApiError as error:
            if error.status != 404:
                raise

    def execute(self, pod: str, container: str, script: str) -> str:
        """Returns what a shell script prints in a container, like `kubectl exec`. Raises ApiError."""
        core = client.CoreV1Api(client.ApiClient(self.configuration))
        options = {"container": container, "command": ["sh", "-c", script], "_request_timeout": CALL_SECONDS}
        try:
            return str(attach(core.connect_get_namespaced_pod_exec, pod, self.namespace, stdout=True, **options))
        except client.ApiException as error:
            raise ApiError(error.status, str(error.reason)) from None

    def logs(self, pod: str, container: str | None = None, lines: int = 60) -> str:
        """Returns the last lines of a container's log, by default of the pod's only one, or why there are none."""
        parameters = {"tailLines": str(lines)} | ({"container": container} if container else {})
        try:
            return self.call("GET", self.path("Pod", pod, "log"), params=parameters).text
        except (ApiError, httpx.HTTPError) as error:
            return f"(no logs: {error})"


def wait_until(what: str, seconds: float, check: Callable[[], Any]) -> Any:
    """Polls `check` until its result is true and returns it.

    Raises `TimedOut` with `what` and the last false value (or error) after `seconds`.
    """
    deadline = time.monotonic() + seconds
    last: object = None
    while True:
        try:
            last = check()
            if last:
                return last
        except (ApiError, httpx.HTTPError) as error:
            last = error
        if time.monotonic() > deadline:
            raise TimedOut(f"waited {seconds:g} s for {what}; last seen: {last!r}")
        time.sleep(POLL_SECONDS)


def _tls(configuration: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if not configuration.verify_ssl:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    return context
