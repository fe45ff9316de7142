"""Pods that a workload is to have and that nobody makes, as under a quota: no pod is there to say why. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from syrinx_operator.cluster.diagnosis import MAX_WORDS
from syrinx_operator.cluster.state import Manifest

MISSING_AFTER = timedelta(seconds=60)
"""How long a workload may be short of pods: Kubernetes makes them within seconds."""


def missing(workload: Manifest, since: datetime | None, now: datetime) -> str:
    """What is said of a workload without all of its pods; empty if it has them, or may get them any moment.

    `since` is since when the pipeline has not been as wanted. Of a Deployment the cluster says why there is no pod;
    of a StatefulSet only its Events do.
    """
    if since is None or now - since < MISSING_AFTER:
        return ""
    kind, name = workload["kind"], workload["metadata"]["name"]
    status = workload.get("status") or {}
    why: Manifest = next((each for each in status.get("conditions") or () if each.get("type") == "ReplicaFailure"), {})
    if why.get("status") == "True":
        words = " ".join(str(why.get("message") or "").split())[:MAX_WORDS]
        return f"{kind} {name} cannot make its pods: {words}"
    made, wanted = status.get("replicas", 0), workload["spec"].get("replicas", 1)
    if made >= wanted:
        return ""
    return f"{kind} {name} has {made} of {wanted} pods; its Events say why: `kubectl describe {kind.lower()} {name}`"
