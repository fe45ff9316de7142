"""Workloads for measuring the tuner: task mixes, loads, machines and bad starting settings."""

from __future__ import annotations

from collections.abc import Mapping

from simulator import costs
from simulator.scenario import Costs, Scenario
from syrinx_operator.resource.knobs import Setting
from syrinx_operator.tuner.policy import Objective

_USUAL = (2, 2, 4, 8, 12)
_FOREVER = 1e9


def workloads() -> list[Scenario]:
    """Returns all workloads."""
    return [
        _one("two cores, presets", costs.CPU2, {"CustomVoice": 2.5}, 300, start=(1, 1)),
        _one("two cores, presets, busy", costs.CPU2, {"CustomVoice": 3.5}, 300, start=(2, 32)),
        _one("two cores, presets and clones", costs.CPU2, {"CustomVoice": 1.2, "Base": 0.4}, 500, start=(1, 8)),
        _one("four nodes of two cores", costs.CPU2, {"CustomVoice": 9.0}, 300, start=(2, 1), replicas=4),
        _one("H100 (published), presets", costs.H100_CUSTOMVOICE, {"CustomVoice": 2.0}, 500, start=(10, 1), rows=True),
        _one("H100 (published), clones", costs.H100_BASE, {"Base": 0.75}, 2000, start=(10, 1), rows=True),
        _one(
            "H100 (published), presets and clones",
            costs.H100_BASE,
            {"CustomVoice": 0.5, "Base": 0.25},
            2000,
            start=(10, 1),
            rows=True,
        ),
        _one("H20 (published), clones, late ramp", costs.H20_BASE, {"Base": 0.4}, 2000, (1, 1), ramp=(16, 16, 25)),
        _one("two H20 (published), clones", costs.H20_BASE, {"Base": 0.8}, 2000, start=(4, 1), rows=True, replicas=2),
        _one("H200, presets, light", costs.H200_PROTOTYPE, {"CustomVoice": 4.0}, 75, start=(1, 1), resident=64),
        _one("H200, presets", costs.H200_PROTOTYPE, {"CustomVoice": 12.0}, 100, start=(4, 1), resident=64),
        _one("H200, clones", costs.H200_PROTOTYPE, {"Base": 6.0}, 150, (2, 2), resident=64, ramp=(8, 8, 12, 16)),
        _one("H200, all task types", costs.H200_PROTOTYPE, _THREE, 150, start=(4, 64), resident=64, burst=2.0),
    ]


_THREE: Mapping[str, float] = {"CustomVoice": 5.0, "VoiceDesign": 2.0, "Base": 2.0}


def _one(
    name: str,
    machine: Costs,
    rates: Mapping[str, float],
    ms: float,
    start: tuple[int, int],
    resident: int = 32,
    *,
    replicas: int = 1,
    ramp: tuple[int, ...] = _USUAL,
    rows: bool = False,
    burst: float = 1.0,
) -> Scenario:
    """Returns a workload. `ms` is the TTFA objective of every task type, `start` the rows of talker and codec."""
    return Scenario(
        name=name,
        seconds=_FOREVER,
        load=((_FOREVER, dict(rates)),),
        objectives={task_type: Objective(ms / 1000, 0.95) for task_type in rates},
        initial=Setting(talker_max_num_seqs=start[0], codec_max_num_seqs=start[1], chunk_ramp=ramp),
        talkers=replicas,
        codecs=replicas,
        costs=machine,
        talker_resident=resident,
        codec_resident=resident,
        admission="rows" if rows else "resident",
        burst=burst,
    )
