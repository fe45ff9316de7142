"""Draws workloads: a machine, its replicas, a load that may shift at midday, and a setting to start from."""

import math
import random
from itertools import pairwise
from typing import get_args

from simulator.scenario import TASK_TYPES, Costs, Decoder, Load, Scenario
from syrinx_operator.resource.knobs import RAMP_LADDER, Setting
from syrinx_operator.resource.tuning import TtfaMs
from syrinx_operator.tuner.policy import Objective

HOURS = (1.0, 6.0)
"""Shortest and longest day: the more requests a second, the shorter."""
_REQUESTS = 120_000
"""Requests of a day that is neither."""
_START_ROWS = (1, 2, 4, 8, 8, 16, 32, 64)
_LENGTH = 4.2


def draw(seed: int) -> Scenario:
    """Returns a workload of one simulated day."""
    randoms = random.Random(f"workload {seed}")
    costs = draw_costs(randoms)
    resident = randoms.choice((16, 32, 64))
    replicas = randoms.choice((1, 1, 1, 2, 3, 4, 8))
    initial = Setting(
        talker_max_num_seqs=min(randoms.choice(_START_ROWS), resident),
        codec_max_num_seqs=min(randoms.choice(_START_ROWS), resident),
        chunk_ramp=randoms.choice(RAMP_LADDER),
    )
    mix = draw_mix(randoms)
    total = replicas * capacity(costs, mix, resident)
    day = 3600 * min(max(_REQUESTS / (0.7 * total) / 3600, HOURS[0]), HOURS[1])
    if randoms.random() < 0.5:
        load: Load = ((day, _rates(mix, total * randoms.uniform(0.3, 0.95))),)
    else:
        other = draw_mix(randoms) if randoms.random() < 0.5 else mix
        morning, noon = randoms.uniform(0.3, 0.6), randoms.uniform(0.6, 0.95)
        halves = [(mix, morning), (other, noon)]
        if randoms.random() < 0.5:
            halves.reverse()
        load = tuple(
            (day / 2 * (half + 1), _rates(each, replicas * capacity(costs, each, resident) * level))
            for half, (each, level) in enumerate(halves)
        )
    return Scenario(
        name=f"fresh {seed}",
        seed=seed,
        seconds=day,
        load=load,
        burst=randoms.choice((1.0, 1.0, 2.0, 3.0)),
        audio_seconds=_LENGTH,
        objectives={name: Objective(draw_objective(costs, name, randoms), 0.95) for name in TASK_TYPES},
        initial=initial,
        talkers=replicas,
        codecs=replicas,
        costs=costs,
        talker_resident=resident,
        codec_resident=resident,
        max_queue_seconds=2.0,
    )


def draw_costs(randoms: random.Random) -> Costs:
    """Returns a machine between two cores of a CPU and a large GPU."""
    step = math.exp(randoms.uniform(math.log(0.004), math.log(0.03)))
    per_row = step * math.exp(randoms.uniform(math.log(0.002), math.log(0.15)))
    knee = randoms.choice((8, 16, 32, 64))
    steep = per_row * randoms.choice((1.0, 1.0, 3.0, 6.0))
    call = step * math.exp(randoms.uniform(math.log(0.15), math.log(1.0)))
    decoder = Decoder(
        call, call * randoms.uniform(0.0, 0.15), call * math.exp(randoms.uniform(math.log(0.01), math.log(0.4)))
    )
    prefill = step * randoms.uniform(0.5, 3.0)
    return Costs(
        step=(
            (1, step + per_row),
            (knee, step + knee * per_row),
            (1024, step + knee * per_row + (1024 - knee) * steep),
        ),
        eager=decoder,
        captured=decoder,
        prefill={"CustomVoice": prefill, "VoiceDesign": prefill, "Base": prefill * randoms.uniform(1.0, 2.5)},
        prepare={"Base": randoms.uniform(0.0, 0.15)},
        reference_frames={"Base": randoms.choice((0, 40, 75))},
        hop=randoms.choice((0.001, 0.003, 0.01)),
        noise=randoms.uniform(0.05, 0.2),
        interference=randoms.choice((1.0, 1.0, 1.15, 1.4)),
    )


def draw_mix(randoms: random.Random) -> dict[str, float]:
    """Returns the shares of task types."""
    weights = [randoms.choice((0.0, 0.0, 1.0, 1.0, 3.0)) for _ in TASK_TYPES]
    if not any(weights):
        weights[0] = 1.0
    return {name: weight / sum(weights) for name, weight in zip(TASK_TYPES, weights, strict=True) if weight}


def _rates(mix: dict[str, float], rate: float) -> dict[str, float]:
    return {name: share * rate for name, share in mix.items()}


def capacity(costs: Costs, mix: dict[str, float], resident: int) -> float:
    """Returns the requests per second that a talker and a codec on one device serve with large batches."""
    frames = _LENGTH / 0.08
    rows = min(16, resident)
    points = costs.step
    step = next(y0 + (y1 - y0) * (rows - x0) / (x1 - x0) for (x0, y0), (x1, y1) in pairwise(points) if rows <= x1)
    prefill = sum(share * costs.prefill[name] for name, share in mix.items())
    reference = sum(share * costs.reference_frames.get(name, 0) for name, share in mix.items())
    talker = frames * step / rows + prefill
    call = costs.eager
    codec = (frames + reference) / 8 * (call.base / 4 + call.per_row + 8 * call.per_frame)
    return 1 / (max(talker, codec) * costs.interference)


def draw_objective(costs: Costs, task_type: str, randoms: random.Random) -> float:
    """Returns a bound that an idle machine meets with room."""
    idle = 3 * costs.hop + 3 * costs.step[0][1] + costs.prefill[task_type] + costs.prepare.get(task_type, 0.0)
    idle += (
        costs.eager.base
        + (2 + costs.reference_frames.get(task_type, 0) * (task_type == "Base")) * costs.eager.per_frame
    )
    wanted = idle * randoms.uniform(2.0, 5.0)
    return next((ms / 1000 for ms in get_args(TtfaMs) if ms / 1000 >= wanted), 10.0)
