"""The watched objects: one informer for each kind and namespace, and what is wrong with them."""

import asyncio
from collections.abc import Iterator

from syrinx_operator.cluster.objects.kinds import PIPELINE, UNLABELED, WATCHED, Kind
from syrinx_operator.cluster.objects.names import PIPELINE_LABEL
from syrinx_operator.cluster.watch.api import Api
from syrinx_operator.cluster.watch.informer import Change, Informer


class Cache:
    """The objects of all watched kinds in the operator's namespaces. Reading it makes no request."""

    def __init__(
        self,
        api: Api,
        namespaces: tuple[str, ...] | None,
        on_change: Change,
        *,
        relist_seconds: float,
        max_backoff_seconds: float,
    ) -> None:
        """`namespaces` is None for all. `on_change` is called for each change that is watched or found by a LIST."""
        self._informers = {
            (kind, namespace): Informer(
                api,
                kind,
                namespace,
                "" if kind in UNLABELED else PIPELINE_LABEL,
                on_change,
                relist_seconds=relist_seconds,
                max_backoff_seconds=max_backoff_seconds,
            )
            for kind in WATCHED
            for namespace in ((None,) if namespaces is None else namespaces)
        }
        self._is_cluster_wide = namespaces is None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Starts listing and watching."""
        self._tasks = [asyncio.create_task(each.run(), name=f"watch {each}") for each in self._informers.values()]

    async def close(self) -> None:
        """Stops watching."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def of(self, kind: Kind, namespace: str) -> Informer:
        """Returns the informer that has the objects of a kind in a namespace."""
        return self._informers[kind, None if self._is_cluster_wide else namespace]

    async def require_current(self, namespace: str) -> None:
        """Returns once every kind is known as it is now.

        Raises ApiError if a kind could not be listed, or if its watch has been failing.
        """
        informers = self._in(namespace)
        await asyncio.gather(*(each.tried() for each in informers))
        for each in informers:
            if (error := each.staleness()) is not None:
                raise error
        await asyncio.gather(*(each.refresh(namespace) for each in informers))

    async def outdate(self, namespace: str) -> None:
        """Lists a namespace again before it is used, since others have written in it. Raises ApiError."""
        for each in self._in(namespace):
            each.outdate(namespace)
        await self.of(PIPELINE, namespace).refresh(namespace)

    def is_serving(self) -> bool:
        """Returns whether the pipelines of some namespace are known."""
        return any(each.staleness() is None for (kind, _), each in self._informers.items() if kind == PIPELINE)

    def problems(self) -> list[str]:
        """Returns what cannot be watched and why, by namespace and kind."""
        return [f"{each}: {each.error or 'not listed yet'}" for each in self._informers.values() if not _is_up(each)]

    def watches(self) -> Iterator[tuple[str, str, bool]]:
        """Yields namespace (empty: all), kind, and whether it is watched."""
        for (kind, namespace), each in self._informers.items():
            yield namespace or "", kind.kind, _is_up(each)

    def has_ended(self) -> bool:
        """Returns whether a watch has ended, which only a bug can cause."""
        return any(task.done() for task in self._tasks)

    def _in(self, namespace: str) -> list[Informer]:
        return [self.of(kind, namespace) for kind in WATCHED]


def _is_up(informer: Informer) -> bool:
    return informer.error is None and informer.staleness() is None
