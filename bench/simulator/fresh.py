"""Draws workloads: a machine, its replicas, a load that may shift at midday, and a setting to start from."""

import math
import random
from typing import get_args

from msgspec.structs import replace

from simulator.costs import Calls, Costs
from simulator.scenario import Phase, Scenario
from syrinx_operator.observed.evidence import Objective
from syrinx_operator.resource.fields.tuning import TtfaMs
from syrinx_operator.resource.knobs import RAMP_LADDER, Setting
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.messages import TaskType

DAY_SECONDS = 3600.0
_MAX_STREAMS = 12.0
"""At once, on average: a simulation of more takes too long. Other workloads are drawn again."""
_START_ROWS = (1, 2, 4, 8, 8, 16, 32, 64)
_LENGTH = 4.2


def draw(seed: int) -> Scenario:
    """Returns a workload of one simulated day."""
    randoms = random.Random(f"workload {seed}")
    while True:
        scenario = _drawn(seed, randoms)
        if max(phase.rate * phase.audio_seconds for phase in scenario.phases) <= _MAX_STREAMS:
            return scenario


def _drawn(seed: int, randoms: random.Random) -> Scenario:
    costs = draw_costs(randoms)
    task_type = randoms.choice((TaskType.CUSTOM_VOICE, TaskType.CUSTOM_VOICE, TaskType.BASE))
    if task_type is not TaskType.BASE:
        costs = replace(costs, prepare=0.0, reference_frames=0)
    resident = randoms.choice((16, 32, 64))
    replicas = randoms.choice((1, 1, 1, 2, 3))
    initial = Setting(
        talker_max_num_seqs=min(randoms.choice(_START_ROWS), resident),
        codec_max_num_seqs=min(randoms.choice(_START_ROWS), resident),
        chunk_ramp=randoms.choice(RAMP_LADDER),
    )
    return Scenario(
        name=f"fresh {seed}",
        seed=seed,
        task_type=task_type,
        phases=_phases(costs, replicas, resident, randoms),
        objective=Objective(draw_objective(costs, randoms), 0.95),
        initial=initial,
        talkers=replicas,
        codecs=replicas,
        costs=costs,
        resident=resident,
    )


def _phases(costs: Costs, replicas: int, resident: int, randoms: random.Random) -> tuple[Phase, ...]:
    burst = randoms.choice((1.0, 1.0, 2.0, 3.0))

    def phase(until: float, level: float, length: float, burst: float) -> Phase:
        return Phase(until, level * replicas * capacity(costs, length, resident), length, burst)

    if randoms.random() < 0.5:
        return (phase(DAY_SECONDS, randoms.uniform(0.3, 0.95), _LENGTH, burst),)
    halves = [randoms.uniform(0.3, 0.6), randoms.uniform(0.6, 0.95)]
    randoms.shuffle(halves)
    other = (randoms.choice((1.0, 1.0, 2.0, 0.5)) * _LENGTH, randoms.choice((burst, burst, 1.0, 4.0)))
    return phase(DAY_SECONDS / 2, halves[0], _LENGTH, burst), phase(DAY_SECONDS, halves[1], *other)


def draw_costs(randoms: random.Random) -> Costs:
    """Returns a machine between two cores of a CPU and a large GPU."""
    step = math.exp(randoms.uniform(math.log(0.004), math.log(0.03)))
    per_row = step * math.exp(randoms.uniform(math.log(0.002), math.log(0.15)))
    knee = randoms.choice((8, 16, 32, 64))
    steep = per_row * randoms.choice((1.0, 1.0, 3.0, 6.0))
    call = step * math.exp(randoms.uniform(math.log(0.15), math.log(1.0)))
    calls = Calls(
        call, call * randoms.uniform(0.0, 0.15), call * math.exp(randoms.uniform(math.log(0.01), math.log(0.4)))
    )
    return Costs(
        is_gpu=randoms.random() < 0.5,
        step=(
            (1, step + per_row),
            (knee, step + knee * per_row),
            (1024, step + knee * per_row + (1024 - knee) * steep),
        ),
        eager=calls,
        captured=calls,
        prefill=step * randoms.uniform(0.5, 3.0),
        prepare=randoms.uniform(0.0, 0.15),
        reference_frames=randoms.choice((1, 40, 75)),
        noise=randoms.uniform(0.05, 0.2),
        interference=randoms.choice((1.0, 1.0, 1.15, 1.4)),
    )


def capacity(costs: Costs, length: float, resident: int) -> float:
    """Returns the requests per second that a talker and a codec on one device serve with large batches."""
    frames = length / FAMILY.frame_seconds
    rows = min(16, resident)
    talker = frames * costs.step_seconds(rows) / rows + costs.prefill
    codec = (frames + costs.reference_frames) / 8 * costs.eager.at(4, 8) / 4
    return 1 / (max(talker, codec) * costs.interference)


def draw_objective(costs: Costs, randoms: random.Random) -> float:
    """Returns a bound that an idle machine meets with room."""
    idle = 0.005 + 3 * costs.step[0][1] + costs.prefill + costs.prepare + costs.eager.at(1, 2 + costs.reference_frames)
    wanted = idle * randoms.uniform(2.0, 5.0)
    return next((ms / 1000 for ms in get_args(TtfaMs) if ms / 1000 >= wanted), 10.0)
