"""`syrinx status`, `logs` and `rollout`: read a pipeline on a Kubernetes cluster, and command its canary."""

from datetime import UTC, datetime

from syrinx_operator.commands.inspect import rollout as canary
from syrinx_operator.commands.inspect.cluster import ClusterError, connect
from syrinx_operator.commands.inspect.logs import choose
from syrinx_operator.commands.inspect.status import lines


async def status(name: str | None, namespace: str | None, command: str) -> str:
    """Returns the state of a pipeline as text. `command` is how the user runs this program. Raises ClusterError."""
    async with connect(namespace) as cluster:
        pipeline = await cluster.pipeline(name)
    return "\n".join(lines(pipeline, datetime.now(UTC), command))


async def logs(name: str | None, namespace: str | None, tail: int) -> tuple[str, str]:
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


async def rollout(action: str, name: str | None, namespace: str | None) -> str:
    """Returns the state of a pipeline's canary, or gives a command about it. Raises ClusterError."""
    async with connect(namespace) as cluster:
        pipeline = await cluster.pipeline(name)
        if action == "status":
            return "\n".join(canary.lines(pipeline))
        canary.check(pipeline, action)
        found: str = pipeline["metadata"]["name"]
        await cluster.command(found, action)
    return f"{found}: {action}: the operator follows in a moment"
