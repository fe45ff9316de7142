"""The operator under test: a Deployment from the chart, or a process of this checkout with the same rights."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import yaml

from cluster.client import Kubernetes, Object, wait_until
from cluster.parameters import Parameters

GONE_SECONDS = 60.0
TOKEN_SECONDS = 4 * 3600
"""Validity of a token: all tests take less."""


class Operator(Protocol):
    """Operations on the operator under test."""

    def start(self, stages_image: str | None = None) -> None:
        """Starts the operator, optionally with another default stage image."""

    def kill(self) -> None:
        """Kills the operator like `kill -9`."""

    def logs(self) -> str:
        """Returns the end of its log."""


class OperatorPod:
    """The chart's Deployment. Scaling to zero keeps a killed pod from being replaced."""

    def __init__(self, cluster: Kubernetes, deployment: Object, parameters: Parameters) -> None:
        self._cluster = cluster
        self._deployment = deployment
        self._parameters = parameters
        self._selector = ",".join(f"{k}={v}" for k, v in deployment["spec"]["selector"]["matchLabels"].items())

    @property
    def _name(self) -> str:
        return str(self._deployment["metadata"]["name"])

    def start(self, stages_image: str | None = None) -> None:
        """Applies the Deployment and waits for its pod."""
        image = stages_image or self._parameters.stages_image
        for container in self._deployment["spec"]["template"]["spec"]["containers"]:
            for variable in container["env"]:
                if variable["name"] == "SYRINX_STAGES_IMAGE":
                    variable["value"] = image
        self._cluster.apply(self._deployment)

        def available() -> bool:
            body = self._cluster.get("Deployment", self._name) or {}
            status = body.get("status", {})
            current = status.get("observedGeneration") == body.get("metadata", {}).get("generation")
            return current and status.get("updatedReplicas", 0) >= 1 and status.get("availableReplicas", 0) >= 1

        wait_until("the operator's pod to be available", self._parameters.ready_seconds, available)

    def kill(self) -> None:
        """Scales to zero and deletes the pod without a grace period."""
        self._cluster.patch("Deployment", self._name, {"spec": {"replicas": 0}})
        for pod in self._cluster.list("Pod", self._selector):
            self._cluster.delete("Pod", pod["metadata"]["name"], grace=0)
        wait_until("the operator's pod to be gone", GONE_SECONDS, lambda: not self._cluster.list("Pod", self._selector))

    def logs(self) -> str:
        """Returns the logs of all of its pods."""
        pods = self._cluster.list("Pod", self._selector)
        return "\n".join(
            f"--- {pod['metadata']['name']}\n{self._cluster.logs(pod['metadata']['name'])}" for pod in pods
        )


class OperatorProcess:
    """`kopf run` of this checkout as the chart's ServiceAccount, with stages reached through the API server."""

    def __init__(self, cluster: Kubernetes, account: str, parameters: Parameters, namespaces: Sequence[str]) -> None:
        self._cluster = cluster
        self._account = account
        self._parameters = parameters
        self._scope = [f"--namespace={namespace}" for namespace in namespaces]
        self._directory = tempfile.TemporaryDirectory(prefix="syrinx-cluster-test-")
        self._log = Path(self._directory.name) / "operator.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, stages_image: str | None = None) -> None:
        """Starts the process."""
        environment = {
            **os.environ,
            "KUBECONFIG": str(write_kubeconfig(self._cluster, self._account, Path(self._directory.name))),
            "SYRINX_STAGES_IMAGE": stages_image or self._parameters.stages_image,
            "SYRINX_REDIS_IMAGE": self._parameters.redis_image,
            "SYRINX_OPERATOR_NAMESPACE": self._cluster.namespace,
            "SYRINX_STAGE_ACCESS": "proxy",
            "SYRINX_PORT": "0",
        }
        command = [sys.executable, "-m", "kopf", "run", "--standalone", "-m", "syrinx_operator.main"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([*command, *self._scope], env=environment, stdout=log, stderr=log)
        if self._process.poll() is not None:
            raise AssertionError(f"the operator did not start:\n{self.logs()}")

    def kill(self) -> None:
        """Sends SIGKILL."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(GONE_SECONDS)
            self._process = None

    def logs(self) -> str:
        """Returns the end of its log."""
        return self._log.read_text(errors="replace")[-8000:] if self._log.exists() else "(it has written nothing)"


def write_kubeconfig(cluster: Kubernetes, account: str, directory: Path) -> Path:
    """Returns a new kubeconfig in a directory with a token of a ServiceAccount, so that its rights are tested too."""
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": TOKEN_SECONDS},
    }
    path = cluster.path("ServiceAccount", account, "token")
    token = cluster.call("POST", path, json=request).json()["status"]["token"]
    configuration = cluster.configuration
    server: Object = {"server": configuration.host}
    if configuration.verify_ssl:
        server["certificate-authority"] = configuration.ssl_ca_cert
    else:
        server["insecure-skip-tls-verify"] = True
    context = {"cluster": "test", "user": account, "namespace": cluster.namespace}
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": server}],
        "users": [{"name": account, "user": {"token": token}}],
        "contexts": [{"name": "test", "context": context}],
        "current-context": "test",
    }
    file = directory / "kubeconfig"
    file.touch(mode=0o600)
    file.write_text(yaml.safe_dump(body))
    return file
