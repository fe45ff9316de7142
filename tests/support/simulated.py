"""Small scenarios of the simulated services."""

from __future__ import annotations

from msgspec.structs import replace

from simulator.costs import CPU2, Costs
from simulator.scenario import Phase, Scenario
from syrinx_operator.observed.evidence import Objective
from syrinx_operator.resource.knobs import Setting

START = Setting(talker_max_num_seqs=1, codec_max_num_seqs=1, chunk_ramp=(2, 2, 3, 4, 5, 7, 9, 12))
GOOD = replace(START, talker_max_num_seqs=8, codec_max_num_seqs=4)


def service(seconds: float = 30.0, rate: float = 2.0, costs: Costs = CPU2, **fields: object) -> Scenario:
    """Returns a service on two cores, or another machine, with good settings."""
    given = {
        "name": "service",
        "phases": (Phase(seconds, rate),),
        "objective": Objective(0.3, 0.95),
        "initial": GOOD,
        "costs": costs,
        **fields,
    }
    return Scenario(**given)
