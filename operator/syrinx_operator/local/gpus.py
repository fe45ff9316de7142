"""The GPUs of a local pipeline: those of the machine, the processes that each of them runs, and how these share it."""

import contextlib
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import cache
from itertools import cycle, islice

from syrinx_operator.local.events import Event, Observer
from syrinx_operator.resource.stage_config import StageProcess
from syrinx_stages.contract.stages import Stage
from syrinx_stages.processes.mps import mps_clients

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The GPUs of a process, by index or UUID."""
PROBE = (sys.executable, "-m", "syrinx_stages.runtime.gpus")
PROBE_SECONDS = 60.0


@cache
def visible_gpus() -> Mapping[str, int]:
    """Returns the GPUs that CUDA shows to this process, in its order: the UUID and the bytes of memory of each.

    Empty if they cannot be listed.

    UUIDs mean the same to a daemon of MPS and to its clients, which number GPUs differently.
    """
    try:
        listed = subprocess.run(PROBE, capture_output=True, text=True, check=True, timeout=PROBE_SECONDS)
    except (OSError, subprocess.SubprocessError):
        # The stages start without a choice, and describe the error.
        return {}
    return {uuid: int(memory) for uuid, memory in map(str.split, listed.stdout.splitlines())}


def place(plan: Sequence[StageProcess], gpus: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Returns the GPUs of each process by the name of its replica: in turn, so that each GPU has as many.

    A talker on vLLM gets as many as its tensor parallelism needs; all processes get all if there are too few. A standby
    has those of its replica.
    """
    on_gpu = [process for process in plan if process.config.device == "cuda"]
    needed = {each.config.replica: _width(each) for each in on_gpu if not each.config.standby_of}
    if len(gpus) < max(needed.values(), default=1):
        return {}
    turns = cycle(gpus)
    placed = {name: tuple(islice(turns, width)) for name, width in needed.items()}
    return {each.config.replica: placed[each.config.standby_of or each.config.replica] for each in on_gpu}


def is_shared(placed: Mapping[str, Sequence[str]]) -> bool:
    """Returns whether several processes use the same GPU."""
    return max(Counter(gpu for chosen in placed.values() for gpu in chosen).values(), default=0) > 1


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


def describe(placed: Mapping[str, Sequence[str]], gpus: Sequence[str]) -> Event:
    """Returns a notice about the processes of each GPU; a warning if one has none."""
    on_gpu = {gpu: [name for name, chosen in placed.items() if gpu in chosen] for gpu in gpus}
    text = "; ".join(f"GPU {index}: {', '.join(names) or 'idle'}" for index, names in enumerate(on_gpu.values()))
    if all(on_gpu.values()):
        return Event("notice", "gpus", text)
    return Event("warning", "gpus", f"{text}. Raise the replicas of talker and codec, or leave them out, to use all")


def _width(process: StageProcess) -> int:
    is_vllm = process.stage == Stage.TALKER and process.config.engine == "vllm"
    return process.config.vllm.tensor_parallel_size if is_vllm else 1
