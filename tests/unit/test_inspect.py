"""What `syrinx status` and `syrinx logs` show of a pipeline's objects."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from syrinx_operator.cluster.objects.names import COMPONENT_LABEL
from syrinx_operator.commands.inspect import rollout
from syrinx_operator.commands.inspect.cluster import ClusterError
from syrinx_operator.commands.inspect.logs import Choice, choose
from syrinx_operator.commands.inspect.status import lines
from syrinx_operator.resource.state.status import PENDING

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


def condition(kind: str, status: str, reason: str = "Fine", message: str = "all is well") -> dict[str, Any]:
    times = {"lastTransitionTime": "2026-01-01T11:50:00Z", "observedGeneration": 3}
    return {"type": kind, "status": status, "reason": reason, "message": message, **times}


def stage(summary: str, **fields: Any) -> dict[str, Any]:
    ready, _, desired = summary.partition("/")
    counts = {"replicas": int(desired), "readyReplicas": int(ready), "updatedReplicas": int(desired)}
    return {"summary": summary, "selector": "a=b", "settingsGeneration": 1, **counts, **fields}


def pipeline(*conditions: dict[str, Any], generation: int = 3, **status: Any) -> dict[str, Any]:
    metadata = {"name": "demo", "namespace": "speech", "generation": generation}
    known = {"observedGeneration": 3, "model": "Qwen3-TTS", "modelGeneration": "abc", "image": "registry/stages:1"}
    return {"metadata": metadata, "status": {**known, "conditions": list(conditions), **status}}


def shown(live: dict[str, Any]) -> list[str]:
    return lines(live, NOW, "kubectl syrinx")


def test_a_pipeline_without_problems() -> None:
    found = shown(
        pipeline(
            condition("Ready", "True"),
            condition("Degraded", "False"),
            condition("Progressing", "False", "Complete", "all components match the spec"),
            endpoint="http://demo-gateway.speech.svc:8000",
            talker=stage("2/2", settings={"maxNumSeqs": 8, "leadLimitSeconds": 8.0}),
            redis={"ready": True},
            slo=[{"taskType": "CustomVoice", "requests": 80, "within": 0.96, "ttfaP95Ms": 280, "met": "True"}],
        )
    )
    assert found == [
        "demo in namespace speech: ready for 10 min",
        "",
        "model     Qwen3-TTS, generation abc",
        "image     registry/stages:1",
        "endpoint  http://demo-gateway.speech.svc:8000",
        "talker    2/2 ready",
        "redis     ready",
        "rollout   Complete: all components match the spec",
        "latency   CustomVoice: 80 recent requests, first audio p95 280 ms, 96.0% within the objective",
    ]


def test_a_pipeline_that_is_not_ready_says_why_and_what_to_look_at_next() -> None:
    problem = {"replica": "demo-talker-0", "restarts": 4, "problem": "CrashLoopBackOff: exit code 1"}
    found = shown(
        pipeline(
            condition("Ready", "False", "TalkerNotReady", "no talker is ready"),
            condition("TalkerReady", "False", "CrashLoopBackOff", "demo-talker-0: exit code 1"),
            condition("CodecReady", "True"),
            condition("Degraded", "True", "CrashLoopBackOff", "demo-talker-0: exit code 1"),
            generation=4,
            talker=stage("0/1", settings={"maxNumSeqs": 8, "leadLimitSeconds": 8.0}, confirmed=[problem]),
        )
    )
    assert found[:4] == [
        "demo in namespace speech: not ready for 10 min: no talker is ready",
        "  the last edit is not applied yet",
        "  TalkerReady: CrashLoopBackOff: demo-talker-0: exit code 1",
        "  Degraded: CrashLoopBackOff: demo-talker-0: exit code 1",
    ]
    assert "talker    0/1 ready; 4 restarts; demo-talker-0: CrashLoopBackOff: exit code 1" in found
    assert found[-1] == "next: kubectl syrinx logs -n speech demo"


UNSEEN = {"conditions": [msgspec.to_builtins(PENDING)]}


@pytest.mark.parametrize("status", [UNSEEN, None, {}, {"conditions": "of another version"}])
def test_a_pipeline_without_a_readable_status(status: Any) -> None:
    live = pipeline() | {"status": status}
    assert shown(live) == [f"demo in namespace speech: {PENDING.message}"]


CRASHED = {"terminated": {"exitCode": 1}}
RUNNING = {"state": {"running": {}}}
NOT_READY = {"ready": False, **RUNNING}
WAITING = {"ready": False, "state": {"waiting": {}}}


def pod(name: str, component: str, container: dict[str, Any], init: dict[str, Any] | None = None) -> dict[str, Any]:
    own = {"name": component, "ready": True, "restartCount": 0, **container}
    before = [{"name": "fetch", "ready": False, "restartCount": 0, **init}] if init else []
    status = {"containerStatuses": [own], "initContainerStatuses": before}
    return {"metadata": {"name": name, "labels": {COMPONENT_LABEL: component}}, "status": status}


HEALTHY = [pod("g", "gateway", RUNNING), pod("t", "talker", RUNNING), pod("c", "codec", RUNNING)]
GATEWAY_WAITS, LOOPS = pod("g", "gateway", NOT_READY), {"restartCount": 4, "lastState": CRASHED}
CHOICES = {
    "healthy": (HEALTHY, Choice("g", "gateway", False, "all containers are ready")),
    "not ready": (
        [*HEALTHY, pod("t1", "talker", NOT_READY)],
        Choice("t1", "talker", False, "it is not ready, 0 restarts"),
    ),
    "crash loop": (
        [GATEWAY_WAITS, pod("t", "talker", WAITING | LOOPS)],
        Choice("t", "talker", True, "it ended with exit code 1, 4 restarts"),
    ),
    "crash loop between two failures": (
        [pod("t", "talker", NOT_READY | LOOPS | {"restartCount": 1})],
        Choice("t", "talker", True, "it ended with exit code 1, 1 restarts"),
    ),
    "init container": (
        [pod("t", "talker", WAITING, init={"state": CRASHED})],
        Choice("t", "fetch", False, "it ended with exit code 1, 0 restarts"),
    ),
    "restarts often": (
        [*HEALTHY, pod("c1", "codec", RUNNING | LOOPS)],
        Choice("c1", "codec", True, "it has restarted 4 times"),
    ),
    "root cause first": (
        [pod("c", "codec", NOT_READY), pod("r", "redis", NOT_READY)],
        Choice("r", "redis", False, "it is not ready, 0 restarts"),
    ),
    "nothing started": ([pod("t", "talker", WAITING)], None),
}


@pytest.mark.parametrize(("pods", "expected"), CHOICES.values(), ids=CHOICES)
def test_the_log_that_explains_a_pipeline(pods: list[dict[str, Any]], expected: Choice | None) -> None:
    assert choose(pods) == expected


def canary(phase: str, **fields: Any) -> dict[str, Any]:
    known = {"target": "t", "image": "registry/stages:2", "message": "step 1 of 2", "startTime": "2026-01-01T11:00:00Z"}
    return pipeline(canary={**known, "phase": phase, **fields})


def test_a_canary_is_shown_with_the_requests_of_both_versions() -> None:
    counts = {"canary": {"requests": 20, "good": 15, "errors": 5}}
    assert list(rollout.lines(canary("Running", weight=10, paused=True, **counts))) == [
        "demo: canary of registry/stages:2: Running, paused",
        "  step 1 of 2",
        "  weight           10 %",
        "  canary           20 requests, 75.0 % good, 5 failed",
        "  running version  no requests counted yet (registry/stages:1)",
    ]


def test_without_a_canary_the_rollout_is_shown() -> None:
    assert list(rollout.lines(pipeline(condition("Progressing", "False", "Complete")))) == [
        "demo has no canary; roll-out: Complete: all is well"
    ]


@pytest.mark.parametrize(
    ("live", "action", "possible"),
    [
        (pipeline(), "promote", "no canary"),
        (canary("Running"), "retry", "promote, abort, pause, resume"),
        (canary("RolledBack"), "abort", "promote, retry"),
    ],
)
def test_a_command_without_effect_is_refused(live: dict[str, Any], action: str, possible: str) -> None:
    with pytest.raises(ClusterError, match=possible):
        rollout.check(live, action)
