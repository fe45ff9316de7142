"""The API server's defaults for built-in kinds."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]

_FIELD = {"fieldRef?": {"apiVersion": "v1"}}
_ACTION = {"httpGet?": {"path": "/", "scheme": "HTTP"}}
_PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3, **_ACTION}
_CONTAINER = {
    "imagePullPolicy": "IfNotPresent",
    "resources": {},
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "ports": [{"protocol": "TCP"}],
    "env": [{"valueFrom?": _FIELD}],
    "startupProbe?": _PROBE,
    "livenessProbe?": _PROBE,
    "readinessProbe?": _PROBE,
    "lifecycle?": {"preStop?": _ACTION},
}
_MODE = {"defaultMode": 420}
_POD_SPEC = {
    "restartPolicy": "Always",
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "securityContext": {},
    "terminationGracePeriodSeconds": 30,
    "containers": [_CONTAINER],
    "initContainers": [_CONTAINER],
    "volumes": [{"secret?": _MODE, "configMap?": _MODE, "downwardAPI?": {**_MODE, "items": [_FIELD]}}],
}
_TEMPLATE = {"replicas": 1, "revisionHistoryLimit": 10, "template": {"spec": _POD_SPEC}}
_PORTS = [{"ports": [{"protocol": "TCP"}]}]
_DEFAULTS: dict[str, Object] = {
    "Deployment": {"spec": {**_TEMPLATE, "progressDeadlineSeconds": 600, "strategy": {"type": "RollingUpdate"}}},
    "StatefulSet": {
        "spec": {
            **_TEMPLATE,
            "podManagementPolicy": "OrderedReady",
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
        }
    },
    "Pod": {
        "spec": {
            **_POD_SPEC,
            "enableServiceLinks": True,
            "serviceAccountName": "default",
            "priority": 0,
            "preemptionPolicy": "PreemptLowerPriority",
            "nodeName": "node-1",
        }
    },
    "Service": {
        "spec": {
            "type": "ClusterIP",
            "sessionAffinity": "None",
            "internalTrafficPolicy": "Cluster",
            "ports": [{"protocol": "TCP"}],
        }
    },
    "Secret": {"type": "Opaque"},
    "PersistentVolumeClaim": {"spec": {"volumeMode": "Filesystem", "storageClassName": "standard"}},
    "NetworkPolicy": {"spec": {"policyTypes": ["Ingress"], "ingress": _PORTS, "egress": _PORTS}},
    "HorizontalPodAutoscaler": {"spec": {"minReplicas": 1}},
}
"""Defaults by kind. `NAME?` sets those of an object only if it is there, `[...]` those of each item of a list."""


def fill(obj: Object) -> None:
    """Sets the defaults of an object, in place."""
    _fill(obj, _DEFAULTS.get(obj["kind"], {}))
    pod = obj["spec"] if obj["kind"] == "Pod" else obj.get("spec", {}).get("template", {}).get("spec", {})
    if name := pod.get("serviceAccountName"):
        pod.setdefault("serviceAccount", name)


def _fill(target: Object, defaults: Object) -> None:
    for key, default in defaults.items():
        if key.endswith("?"):
            if key[:-1] in target:
                _fill(target[key[:-1]], default)
        elif isinstance(default, list) and isinstance(default[0], dict):
            for item in target.get(key, ()):
                _fill(item, default[0])
        elif isinstance(default, dict):
            _fill(target.setdefault(key, {}), default)
        else:
            target.setdefault(key, list(default) if isinstance(default, list) else default)
