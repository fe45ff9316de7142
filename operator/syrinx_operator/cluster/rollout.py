"""How far a new pod template may go through a StatefulSet: one replica at a time, and not past a bad one. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from syrinx_operator.cluster.state import Replica


def partition(
    replicas: int,
    template: str,
    pods: Sequence[Replica],
    *,
    settings_generation: int,
    keep_last_old: bool,
) -> int:
    """The StatefulSet's partition: pods of this ordinal and above are of `template`, those below stay as they are.

    Kubernetes replaces the highest old ordinal at or above the partition, so what is returned lets it have none while
    a replica of `template` is not settled (ready, with the settings of `settings_generation` in force), and one
    otherwise. So a template whose replicas never settle stops at its first. What earlier templates left behind, ready
    or not, holds nothing up: the next edit gets out. `keep_last_old` spares the last old one of two replicas or more.
    """
    live = {number: pod for pod in pods if not pod.terminating and (number := _ordinal(pod)) in range(replicas)}
    old = [number for number, pod in live.items() if pod.template != template]
    if not old:
        return 0
    highest = max(old)
    new = [pod for pod in live.values() if pod.template == template]
    coming = any(number not in live for number in range(highest, replicas))
    spared = keep_last_old and replicas > 1 and len(old) == 1
    if coming or spared or not all(_settled(pod, settings_generation) for pod in new):
        return highest + 1
    return highest


def _settled(pod: Replica, settings_generation: int) -> bool:
    return pod.ready and pod.reported is not None and pod.reported.generation >= settings_generation


def _ordinal(pod: Replica) -> int:
    """The number a StatefulSet gave the pod; -1 for a pod that is none of its."""
    digits = pod.name.rpartition("-")[2]
    return int(digits) if digits.isascii() and digits.isdecimal() else -1
