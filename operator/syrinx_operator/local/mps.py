"""Whether the processes of a local pipeline share a GPU, and how."""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence

from syrinx_operator.local.events import Event, Observer
from syrinx_operator.local.gpus import is_shared
from syrinx_operator.resource.stage_config import StageProcess
from syrinx_stages.processes.mps import mps_clients


@contextlib.asynccontextmanager
async def shared_gpu(
    plan: Sequence[StageProcess],
    placed: Mapping[str, Sequence[str]],
    environment: Mapping[str, str],
    observe: Observer,
) -> AsyncIterator[dict[str, str]]:
    """Runs MPS for the processes of a plan if several share a GPU; yields the environment variables of its clients.

    `placed` are the GPUs of each process, if there are several.
    """
    clients = [process for process in plan if process.config.device == "cuda"]
    if not (is_shared(placed) if placed else len(clients) > 1):
        yield {}
        return
    async with mps_clients(environment, lambda kind, text: observe(Event(kind, "mps", text))) as variables:
        yield variables
