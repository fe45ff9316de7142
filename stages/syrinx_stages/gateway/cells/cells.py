"""The cells of a pipeline: which one gets a request, and what they are together."""

import asyncio
import math
import random
from collections.abc import Iterator, Sequence

from syrinx_stages.connector.base import ConnectorError, QueueFull, RequestExists, StreamEntry
from syrinx_stages.connector.redis.streams import RedisConnector
from syrinx_stages.contract import metrics as m
from syrinx_stages.contract.keys import StreamKind
from syrinx_stages.contract.messages import SpeechRequest
from syrinx_stages.contract.settings import GatewaySettings
from syrinx_stages.gateway.cells.cell import Cell, Queued
from syrinx_stages.gateway.cells.monitor import CONNECTOR_SECONDS
from syrinx_stages.gateway.errors import ApiError
from syrinx_stages.runtime.settings import LiveSettings
from syrinx_stages.runtime.tasks import Tasks
from syrinx_stages.runtime.telemetry.metrics import Metrics

FIRST_CHOICE_SECONDS = 1.0
"""How long a cell may take to queue a request that another one could get instead. It takes milliseconds."""


class Cells:
    """All cells of the pipeline, as this gateway sees them. Raises `ConnectorError` where `Cell` does."""

    def __init__(
        self, connectors: Sequence[RedisConnector], settings: LiveSettings[GatewaySettings], metrics: Metrics
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._cells = tuple(Cell(connector, settings, self._export) for connector in connectors)

    def __iter__(self) -> Iterator[Cell]:
        return iter(self._cells)

    def __getitem__(self, number: int) -> Cell:
        return self._cells[number]

    async def start(self, tasks: Tasks) -> None:
        """Measures once and starts the background tasks."""
        await asyncio.gather(
            *(check for cell in self for check in (cell.monitor.measure(), cell.storage.check_server()))
        )
        for cell in self:
            cell.start(tasks)

    def unready(self) -> str | None:
        """Why no cell can serve a request, or None: the reason of the first cell."""
        reasons = [cell.unready() for cell in self]
        return reasons[0] if all(reasons) else None

    def warnings(self) -> Sequence[str]:
        """What may cost requests or streams."""
        return [warning for cell in self for warning in cell.storage.warnings]

    def missing_stage_error(self) -> ApiError | None:
        """The 503 once every cell lacks a stage, as `PipelineMonitor.missing_stage_error`."""
        errors = [cell.monitor.missing_stage_error() for cell in self]
        return errors[0] if all(errors) else None

    @property
    def expected_wait(self) -> float:
        """How long the next request will wait for a talker, in seconds: in the best cell, because it may go there."""
        return min(cell.monitor.queue.expected_seconds for cell in self._preferred(None))

    def has_other(self, cell: Cell) -> bool:
        """Whether another cell would serve a request."""
        return any(other.is_serving for other in self if other is not cell)

    async def queue(
        self, request: SpeechRequest, data: bytes | None, gateway: str, without: Cell | None = None
    ) -> Queued:
        """Queues a request in the better one of two random cells; if that refuses, in the other one.

        without: a cell that does not get it, unless it is the only one.

        gateway: as in `RedisConnector.submit`: the client has chosen the ID, so no other cell may have such a request.

        Raises ConnectorError or TimeoutError: of two refusals the one with the shorter `retry_after`.
        """
        if gateway:
            await self._require_new(request.id)
        choice, limits = self._choose(without), self._settings.current
        errors: list[ConnectorError | TimeoutError] = []
        for cell in choice:
            seconds = CONNECTOR_SECONDS if cell is choice[-1] else min(FIRST_CHOICE_SECONDS, CONNECTOR_SECONDS)
            try:
                return Queued(cell, await cell.queue(request, data, limits, gateway, seconds), request)
            except RequestExists:
                raise
            except (ConnectorError, TimeoutError) as error:
                errors.append(error)
        raise min(errors, key=lambda error: error.retry_after if isinstance(error, QueueFull) else math.inf)

    async def attach(self, request_id: str, token: str) -> tuple[Queued, Sequence[StreamEntry]] | None:
        """Takes over a request, whichever cell has it, and returns it with the entries of its text.

        Returns None if no cell has it. Raises ConnectorError or TimeoutError if a cell did not answer that may have it.
        """

        async def attach(cell: Cell) -> tuple[Queued, Sequence[StreamEntry]] | None:
            async with asyncio.timeout(CONNECTOR_SECONDS):
                if (found := await cell.connector.attach(request_id, token)) is None:
                    return None
                return Queued(cell, *found), await cell.connector.history(request_id, StreamKind.TEXT)

        attaching = [asyncio.create_task(attach(cell)) for cell in self]
        failed: Exception | None = None
        try:
            for answer in asyncio.as_completed(attaching):
                try:
                    if (found := await answer) is not None:
                        return found
                except (ConnectorError, TimeoutError) as error:
                    failed = error
        finally:
            for task in attaching:
                task.cancel()
        if failed is not None:
            raise failed
        return None

    async def settle(self) -> None:
        """Waits for the releases in progress."""
        await asyncio.gather(*(cell.settle() for cell in self))

    async def close(self) -> None:
        """Closes the connections of the readers."""
        await asyncio.gather(*(cell.close() for cell in self))

    async def _require_new(self, request_id: str) -> None:
        """Raises RequestExists if a cell that answers has a request with this ID, which its client has chosen."""
        if len(self._cells) == 1:
            return  # The submission itself finds it.
        found = await asyncio.gather(
            *(cell.exists(request_id) for cell in self if cell.is_serving), return_exceptions=True
        )
        if True in found:
            raise RequestExists(f"request id {request_id} is in use")

    def _preferred(self, without: Cell | None) -> Sequence[Cell]:
        """Returns the cells that may get a request: those that serve, if there are any."""
        others = [cell for cell in self if cell is not without] or self._cells
        return [cell for cell in others if cell.is_serving] or others

    def _choose(self, without: Cell | None) -> Sequence[Cell]:
        """Returns two random cells, the better one first; one if there are not more."""
        cells = self._preferred(without)
        return cells if len(cells) == 1 else sorted(random.sample(cells, 2), key=lambda cell: cell.load)

    def _export(self) -> None:
        queues = [cell.monitor.queue for cell in self]
        self._metrics[m.QUEUE_LENGTH].set(sum(queue.length for queue in queues))
        self._metrics[m.QUEUE_AGE].set(max(queue.oldest_seconds for queue in queues))
        self._metrics[m.EXPECTED_WAIT].set(self.expected_wait)
        self._metrics[m.REDIS_FULL].labels("gateway").set(any(cell.storage.full for cell in self))
