"""Why a replica does not run, and what would help. Pure."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from msgspec import Struct

from syrinx_operator.cluster.state import Component, Replica
from syrinx_operator.resource.spec import PipelineSpec
from syrinx_operator.resource.stage_config import codec_process

CRASH_LOOP = "CrashLoopBackOff"
MAX_WORDS = 300
"""Characters of the cluster's words that are repeated."""

_GATEWAY_SECONDS = 300
_REDIS_SECONDS = 120
_SLACK_SECONDS = 30

_ALIASES = {"ErrImagePull": "ImagePullBackOff", "RegistryUnavailable": "ImagePullBackOff"}
"""Words that the cluster uses in turns for one thing."""
_ADVICE = {
    "ImagePullBackOff": "check the image's name and, for a private registry, spec.imagePullSecrets",
    "InvalidImageName": "correct the image's name",
    "ErrImageNeverPull": "spec.imagePullPolicy is Never: the image must be on the node already",
    "CreateContainerConfigError": "a Secret or ConfigMap that it needs, or a key in it, is missing",
    CRASH_LOOP: "see `kubectl logs {pod} --previous --all-containers`",
    "Unschedulable": "no node takes it: compare its resources, node selector, tolerations and volumes with the nodes",
}
_MENDS_ITSELF = frozenset({"Unschedulable"})
"""Within the time to start: a node may be on its way."""
_ONCE = frozenset({"Terminated", "Error", "Completed"})
"""Said of a container that is about to be started anew: only if that goes on it is a crash loop."""


class Trouble(Struct, frozen=True):
    """What is wrong with one replica."""

    reason: str
    """In the cluster's word, in CamelCase."""
    message: str
    lasting: bool
    """Whether waiting will not mend it."""


def trouble(
    replica: Replica, limit: timedelta, now: datetime, *, looped: bool = False, since: datetime | None = None
) -> Trouble | None:
    """What is wrong with a replica that is not ready; None if it is, if it ends, or if it only starts.

    `limit` is how long it may take to get ready, from `since` if that is later than when it ceased to be. `looped`
    says that it was in a crash loop when last looked at: between two crashes it looks as if it were only starting.
    """
    if replica.ready or replica.terminating:
        return None
    late = _unready_for(replica, now, since) > limit
    reason, words = _read(replica)
    if not reason and looped and replica.restarts:
        reason, words = CRASH_LOOP, f"started anew {replica.restarts} times"
    if reason:
        advice = _ADVICE.get(reason, "see `kubectl describe pod {pod}`")
        lasting = late or reason not in _MENDS_ITSELF
        return Trouble(reason, f"{replica.name}: {words}; {advice.format(pod=replica.name)}", lasting)
    if late:
        minutes = limit.total_seconds() / 60
        advice = f"see `kubectl logs {replica.name} --all-containers`"
        return Trouble("NotReady", f"{replica.name} has not been ready for over {minutes:g} minutes; {advice}", True)
    return None


def time_to_start(spec: PipelineSpec, component: Component) -> timedelta:
    """How long a replica may take to get ready before something must be wrong."""
    seconds = {
        Component.GATEWAY: _GATEWAY_SECONDS,
        Component.TALKER: spec.talker.startup_seconds,
        Component.CODEC: codec_process(spec).startup_seconds,
        Component.REDIS: _REDIS_SECONDS,
    }[component]
    return timedelta(seconds=seconds + _SLACK_SECONDS)


def moment(text: str) -> datetime | None:
    """A time as Kubernetes writes it (RFC 3339); None if it is none."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    return parsed if parsed.tzinfo else None


def _read(replica: Replica) -> tuple[str, str]:
    """The reason and the words of a replica's problem; empty if it has none that counts."""
    words = replica.problem.removeprefix("Init:").strip()
    if not words:
        return "", ""
    found = re.match("[A-Z][A-Za-z0-9]{0,100}(?=:|$)", words)
    reason = found[0] if found else "NotRunning"
    return ("", "") if reason in _ONCE else (_ALIASES.get(reason, reason), words[:MAX_WORDS])


def _unready_for(replica: Replica, now: datetime, since: datetime | None) -> timedelta:
    began = moment(replica.unready_since)
    if began is None:
        return timedelta()
    return now - (began if since is None else max(began, since))
