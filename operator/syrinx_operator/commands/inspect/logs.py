"""Reads the log of the container that explains a pipeline's state, for `syrinx logs`."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from syrinx_operator.cluster.objects.names import COMPONENT_LABEL, cell_in
from syrinx_operator.commands.inspect.cluster import ClusterError, Manifest, connect

ORDER = ("redis", "redis-ha", "talker", "codec", "gateway")
"""Components in the order in which they need each other: the first that fails explains the others."""
_MANY_RESTARTS = 3
"""Of a container that has restarted this often, the log before the last restart is the telling one."""


class Choice(Struct, frozen=True):
    """A container's log."""

    pod: str
    container: str
    previous: bool
    """Whether the log is that of the container before its last restart, which has the error."""
    reason: str
    """Why it was chosen."""


async def read(name: str | None, namespace: str | None, tail: int) -> tuple[str, str]:
    """Returns which log explains the state of a pipeline, and its last `tail` lines. Raises ClusterError."""
    async with connect(namespace) as cluster:
        found: str = (await cluster.pipeline(name))["metadata"]["name"]
        choice = choose(await cluster.pods(found))
        if choice is None:
            message = f"no container of {found} has started; for the reason see `syrinx status"
            raise ClusterError(f"{message} -n {cluster.namespace} {found}`")
        text = await cluster.log(choice.pod, choice.container, previous=choice.previous, lines=tail)
    which = "the log before its last restart" if choice.previous else "the log"
    return f"{which} of {choice.container} in {choice.pod}, because {choice.reason}", text.rstrip("\n")


def choose(pods: Sequence[Manifest]) -> Choice | None:
    """Returns the log that explains why a pipeline is not ready, or that of a gateway if nothing is wrong.

    None if there are no containers that have started.
    """
    candidates = [found for pod in pods for found in _candidates(pod)]
    return min(candidates, key=lambda found: found[0])[1] if candidates else None


def _candidates(pod: Manifest) -> Iterator[tuple[tuple[int, int, str], Choice]]:
    """Yields each container that has a log, after its rank: lower is more telling."""
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    component, _ = cell_in(pod["metadata"].get("labels", {}).get(COMPONENT_LABEL, ""))
    order = ORDER.index(component) if component in ORDER else len(ORDER)
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        state, restarts = container.get("state") or {}, container.get("restartCount", 0)
        last = (container.get("lastState") or {}).get("terminated")
        # A container in a crash loop runs for a while, without being ready, between two failures.
        ended = state.get("terminated") or (None if container.get("ready") else last)

        def choice(previous: bool, reason: str, container: Manifest = container) -> Choice:
            return Choice(name, container["name"], previous, reason)

        if ended is not None and ended.get("exitCode"):
            reason = f"it ended with exit code {ended['exitCode']}, {restarts} restarts"
            yield (0, order, name), choice(ended is last, reason)
        elif "running" not in state:
            continue
        elif not container.get("ready"):
            yield (1, order, name), choice(restarts >= _MANY_RESTARTS, f"it is not ready, {restarts} restarts")
        elif restarts >= _MANY_RESTARTS:
            yield (2, order, name), choice(True, f"it has restarted {restarts} times")
        else:
            yield (3, -order if component in ORDER else 1, name), choice(False, "all containers are ready")
