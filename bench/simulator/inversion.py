"""A published inversion: voice clones want more rows of a codec, preset voices fewer. What rows are worth to the
services, on engines that were fitted to the published tables, and which ones the tuner finds from a bad start."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from itertools import product

from msgspec import Struct
from msgspec.structs import replace

from simulator.auto import policy, tune
from simulator.costs import H100_CLONES, H100_PRESETS, Costs
from simulator.listeners import Outcome
from simulator.rows import measured
from simulator.scenario import Phase, Scenario
from simulator.world import run_fixed
from syrinx_operator.observed.evidence import Objective
from syrinx_operator.resource.knobs import RAMP_LADDER, Setting
from syrinx_operator.tuner.builder import in_force
from syrinx_stages.contract.messages import TaskType

ROWS = (1, 2, 4, 8, 16)
"""Of the codec."""
_SECONDS, _LATE_SECONDS = 1800.0, 900.0
"""Of a run, and of its end, which is judged."""


def _case(name: str, costs: Costs, task_type: TaskType, rate: float, seconds: float, rows: int) -> Scenario:
    return Scenario(
        name=name,
        task_type=task_type,
        phases=(Phase(_SECONDS, rate),),
        objective=Objective(seconds, 0.95),
        initial=Setting(talker_max_num_seqs=32, codec_max_num_seqs=rows, chunk_ramp=RAMP_LADDER[1]),
        costs=costs,
        resident=32,
    )


_CASES = (
    _case("preset voices", H100_PRESETS, TaskType.CUSTOM_VOICE, rate=3.0, seconds=0.4, rows=16),
    _case("voice clones", H100_CLONES, TaskType.BASE, rate=1.5, seconds=1.5, rows=1),
)
"""From the number of rows that is worse according to the publication."""


class Late(Struct, frozen=True, kw_only=True):
    """The end of a run."""

    well: float
    """Ratio of requests served well."""
    setting: Setting
    """In force then."""


class Case(Struct, frozen=True, kw_only=True):
    """A kind of voice. Ratios are of requests served well, means over the seeds."""

    start: Setting
    rate: float
    """Requests per second."""
    objective_seconds: float
    by_rows: Mapping[int, float]
    """By the codec's rows, with the rest of the start's setting."""
    found: tuple[Late, ...]
    """What the tuner has found, with each seed."""


class Inversion(Struct, frozen=True, kw_only=True):
    """The kinds of voices by name."""

    command: str
    cases: Mapping[str, Case]


def measure(pool: Executor, seeds: Sequence[int], command: str) -> Inversion:
    """Measures all of it."""
    numbers = range(len(_CASES))
    fixed = dict(measured(pool, serve, product(numbers, seeds, ROWS), float, tuned=False))
    found = dict(measured(pool, find, product(numbers, seeds), Late))
    cases = {
        case.name: Case(
            start=case.initial,
            rate=case.phases[0].rate,
            objective_seconds=case.objective.seconds,
            by_rows={rows: _mean(fixed[number, seed, rows] for seed in seeds) for rows in ROWS},
            found=tuple(found[number, seed] for seed in seeds),
        )
        for number, case in enumerate(_CASES)
    }
    return Inversion(command=command, cases=cases)


def serve(number: int, seed: int, rows: int) -> float:
    """Returns the ratio of requests that this many rows of the codec serve well."""
    case = replace(_CASES[number], seed=seed)
    return _late_well(case, run_fixed(case, replace(case.initial, codec_max_num_seqs=rows)).outcomes)


def find(number: int, seed: int) -> Late:
    """Returns what the tuner has found."""
    case = replace(_CASES[number], seed=seed)
    rules = policy(case)
    tuned = tune(case, rules)
    return Late(well=_late_well(case, tuned.world.outcomes), setting=in_force(rules, tuned.state))


def _late_well(case: Scenario, outcomes: Iterable[Outcome]) -> float:
    late = [each.is_well(case.objective.seconds) for each in outcomes if each.at >= _LATE_SECONDS]
    return round(sum(late) / len(late), 4)


def _mean(values: Iterable[float]) -> float:
    values = tuple(values)
    return round(sum(values) / len(values), 4)


def table(found: Inversion) -> list[str]:
    """Returns the lines of a section in Markdown."""
    return [
        "## Rows of a codec for preset voices and clones",
        "",
        f"Measured by `{found.command}`, with engines fitted to the tables of "
        "[vllm-omni #3322](https://github.com/vllm-project/vllm-omni/pull/3322), in which clones want more rows and "
        "preset voices fewer. Ratios of requests served well in the last "
        f"{_LATE_SECONDS / 60:g} of {_SECONDS / 60:g} minutes, by `codec.maxNumSeqs`; then the tuner, which starts "
        "with the worse number according to these tables.",
        "",
        f"| voices | {' | '.join(map(str, ROWS))} | tuner starts with | finds | serves well |",
        f"|{'---|' * (len(ROWS) + 4)}",
        *(_row(name, case) for name, case in found.cases.items()),
        "",
    ]


def _row(name: str, case: Case) -> str:
    rows = ", ".join(str(each.setting.codec_max_num_seqs) for each in case.found)
    well = ", ".join(f"{each.well:.1%}" for each in case.found)
    by_rows = " | ".join(f"{case.by_rows[each]:.1%}" for each in ROWS)
    return f"| {name}, {case.rate:g} requests/s | {by_rows} | {case.start.codec_max_num_seqs} | {rows} | {well} |"
