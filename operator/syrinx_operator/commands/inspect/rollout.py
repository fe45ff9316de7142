"""Shows the canary of a pipeline and commands it, for `syrinx rollout`."""

from collections.abc import Iterator, Mapping
from typing import Any

from syrinx_operator.cluster.runners.canary import COMMANDS
from syrinx_operator.commands.inspect.cluster import ClusterError, connect
from syrinx_operator.resource.state.canary_status import CanaryStatus, Counts
from syrinx_operator.resource.state.status import read

ACTIONS: Mapping[str, str] = {"status": "show the canary", **COMMANDS}


async def run(action: str, name: str | None, namespace: str | None) -> str:
    """Returns the state of a pipeline's canary, or gives a command about it. Raises ClusterError."""
    async with connect(namespace) as cluster:
        pipeline = await cluster.pipeline(name)
        if action == "status":
            return "\n".join(lines(pipeline))
        check(pipeline, action)
        found: str = pipeline["metadata"]["name"]
        await cluster.command(found, action)
    return f"{found}: {action}: the operator follows in a moment"


def lines(pipeline: Mapping[str, Any]) -> Iterator[str]:
    """Yields what a canary does, or why there is none."""
    status, name = read(pipeline.get("status")), pipeline["metadata"]["name"]
    canary = status.canary
    if canary is None:
        condition = next((each for each in status.conditions if each.type == "Progressing"), None)
        rollout = f"; roll-out: {condition.reason}: {condition.message}" if condition is not None else ""
        yield f"{name} has no canary{rollout}"
        return
    yield f"{name}: canary of {canary.image}: {canary.phase}{', paused' if canary.paused else ''}"
    yield f"  {canary.message}"
    yield f"  weight           {canary.weight} %"
    yield f"  canary           {_counts(canary.canary)}"
    yield f"  running version  {_counts(canary.stable)} ({status.image})"


def check(pipeline: Mapping[str, Any], action: str) -> None:
    """Raises ClusterError if a command would have no effect."""
    name, canary = pipeline["metadata"]["name"], read(pipeline.get("status")).canary
    if canary is None:
        raise ClusterError(f"{name} has no canary")
    if action not in _possible(canary):
        raise ClusterError(f"the canary of {name} is {canary.phase}: possible are {', '.join(_possible(canary))}")


def _possible(canary: CanaryStatus) -> tuple[str, ...]:
    # While a version is promoted, another one may wait for it.
    other = {"RolledBack": ("promote", "retry"), "Promoted": ("promote",)}
    return other.get(canary.phase, ("promote", "abort", "pause", "resume"))


def _counts(counts: Counts) -> str:
    if not counts.requests:
        return "no requests counted yet"
    return f"{counts.requests} requests, {100 * counts.good_ratio:.1f} % good, {counts.errors} failed"
