"""Measures the number of replicas that the tuner chooses on drawn days with flash crowds, beside baselines."""

import itertools
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from simulator import fresh
from simulator.auto import policy
from simulator.costs import Calls
from simulator.rows import TUNER, Row, baselines_of, measured
from simulator.scenario import Phase, Scenario
from simulator.world import World, well
from support.inline import Inline
from syrinx_operator.observed.evidence import Objective
from syrinx_operator.resource.knobs import RAMP_LADDER, Setting
from syrinx_operator.resource.state.tuning_status import State
from syrinx_operator.tuner.policy import Policy, Scale
from syrinx_operator.tuner.replicas import LOOK_SECONDS
from syrinx_operator.tuner.runner import Tuner
from syrinx_stages.contract.stages import WORKERS, Stage

Counts = dict[Stage, int]
Numbers = tuple[int, ...]
"""Which of `_RATES` talkers and codecs serve well."""

HOURS = 1.5
TARGET = 0.99
MAX_REPLICAS = 6
SPAN_SECONDS = 300.0
"""Length of the spans of which the least number of replicas is known."""
_SEGMENT = 60.0
"""The rate of requests changes so often."""
_DAY = 24 * 3600.0
_HPA_SECONDS, _HPA_TOLERANCE, _HPA_STABLE = 15.0, 0.1, 300.0
"""Of a HorizontalPodAutoscaler by default: period, tolerance, and stabilization before replicas are removed."""
_STEP_SECONDS = (0.035, 0.06)
"""Of a talker with one row: slow, so that few requests need several replicas."""
_TRIED, _TRIED_REQUESTS = 2, 400
_RATES = tuple(0.06 * 1.15**step for step in range(28))
"""Requests per second with which `_TRIED` replicas are tried."""
_PEAK = (0.3, 0.7)
"""Peak of the day without flash crowds, as a ratio of what `MAX_REPLICAS` serve."""


class Day(Struct, frozen=True, kw_only=True):
    """A drawn workload: some hours of a day."""

    scenario: Scenario
    """With the least replicas of its begin."""
    served: Mapping[Stage, float]
    """Requests per second that a replica of a stage serves well, as measured."""
    start_seconds: float
    """Time until a new replica is ready."""
    flashes: int
    """Flash crowds within these hours."""

    def least(self) -> list[Counts]:
        """Returns the numbers of a perfect forecast for each span, with replicas that come and go at once."""
        phases, spans = self.scenario.phases, int(HOURS * 3600 / SPAN_SECONDS)
        each = len(phases) // spans
        peaks = [max(phase.rate for phase in phases[at * each : (at + 1) * each]) for at in range(spans)]
        return [{stage: _needed(peak / self.served[stage]) for stage in WORKERS} for peak in peaks]


class _Flash(NamedTuple):
    begin: float
    rise: float
    end: float
    factor: float

    def at(self, time: float) -> float:
        if not self.begin <= time < self.end:
            return 1.0
        return 1 + (self.factor - 1) * min(1.0, (time - self.begin + _SEGMENT) / self.rise)


def draw(workload: int, seed: int, numbers: Numbers) -> Day:
    """Returns a workload whose replicas were measured. `seed` draws its day: when, the flash crowds, the requests."""
    served = {stage: _RATES[at] / _TRIED for stage, at in zip(WORKERS, numbers, strict=True)}
    kind, randoms = _kind(workload), random.Random(f"load of replicas {workload}")
    peak, depth = randoms.uniform(*_PEAK) * MAX_REPLICAS * min(served.values()), randoms.uniform(0.3, 0.7)
    start_seconds = randoms.uniform(20.0, 120.0)
    days = random.Random(f"replicas {workload} {seed}")
    begin = days.uniform(0.0, _DAY - HOURS * 3600)
    today, flashes = _rates(days, peak, depth, begin)
    ends = (_SEGMENT * (at + 1) for at in range(int(HOURS * 3600 / _SEGMENT)))
    phases = tuple(kind.phases[0]._replace(until=end, rate=today(begin + end - _SEGMENT / 2)) for end in ends)
    scenario = replace(kind, seed=1000 * workload + seed, phases=phases)
    day = Day(scenario=scenario, served=served, start_seconds=start_seconds, flashes=flashes)
    first = day.least()[0]
    return replace(day, scenario=replace(scenario, talkers=first[Stage.TALKER], codecs=first[Stage.CODEC]))


def _kind(workload: int) -> Scenario:
    """Returns a machine, its settings and its objective."""
    randoms = random.Random(f"replicas {workload}")
    machine = fresh.draw_costs(randoms)
    speed = randoms.uniform(*_STEP_SECONDS) / machine.step[0][1]
    calls = Calls(*(each * speed for each in machine.eager))
    costs = replace(
        machine,
        step=tuple((rows, seconds * speed) for rows, seconds in machine.step),
        eager=calls,
        captured=calls,
        prefill=machine.prefill * speed,
        prepare=0.0,
        reference_frames=0,
        # Other stages are on other devices.
        interference=1.0,
    )
    rows = randoms.choice((2, 4, 8))
    return Scenario(
        name="replicas",
        phases=(Phase(_SEGMENT, _RATES[0], burst=randoms.choice((1.0, 1.0, 2.0))),),
        objective=Objective(fresh.draw_objective(costs, randoms), TARGET),
        initial=Setting(talker_max_num_seqs=rows, codec_max_num_seqs=rows, chunk_ramp=randoms.choice(RAMP_LADDER)),
        costs=costs,
    )


def serves(workload: int, stage: int, at: int) -> bool:
    """Returns whether `_TRIED` replicas of a stage serve one of `_RATES` well, with the other stage's in plenty."""
    kind = _kind(workload)
    counts = [_TRIED * (1 if other == stage else 3) for other in range(len(WORKERS))]
    phases = (kind.phases[0]._replace(until=_TRIED_REQUESTS / _RATES[at], rate=_RATES[at]),)
    return well(World(replace(kind, phases=phases, talkers=counts[0], codecs=counts[1])).run()) >= TARGET


def measured_capacities(pool: Executor, workloads: Iterable[int]) -> dict[int, Numbers]:
    """Returns for each workload which of `_RATES` its talkers and its codecs serve well: by bisection.

    Workloads whose replicas serve next to nothing are left out.
    """
    stages = list(itertools.product(workloads, range(len(WORKERS))))
    served = dict.fromkeys(stages, -1)
    failed = dict.fromkeys(stages, len(_RATES))
    tried = dict.fromkeys(stages, 0)
    while tried:
        for (*stage, at), is_served in measured(pool, serves, [(*stage, at) for stage, at in tried.items()], bool):
            (served if is_served else failed)[stage[0], stage[1]] = at
        middles = {stage: (served[stage] + failed[stage]) // 2 for stage in stages if served[stage] >= 0}
        tried = {stage: at for stage, at in middles.items() if at > served[stage]}
    found = {workload: tuple(served[workload, stage] for stage in range(len(WORKERS))) for workload, _ in stages}
    return {workload: numbers for workload, numbers in found.items() if min(numbers) >= 0}


def _needed(replicas: float) -> int:
    return min(max(math.ceil(replicas), 1), MAX_REPLICAS)


def _rates(randoms: random.Random, peak: float, depth: float, begin: float) -> tuple[Callable[[float], float], int]:
    """Returns the rate by time of day: a wave with slow noise, and up to two flash crowds in the hours from `begin`.

    Also returns the number of flash crowds.
    """
    noon = randoms.uniform(0.4, 0.7) * _DAY
    noise = [randoms.gauss(0, 0.05) for _ in range(49)]
    flashes = []
    for _ in range(randoms.choice((0, 1, 1, 2))):
        starts = begin + randoms.uniform(0.0, HOURS * 3600)
        length, factor = randoms.uniform(300.0, 1200.0), randoms.uniform(1.4, 2.5)
        flashes.append(_Flash(starts, randoms.uniform(60.0, 300.0), starts + length, factor))

    def rate(time: float) -> float:
        wave = 1 - depth * (1 - math.cos(2 * math.pi * (time - noon) / _DAY)) / 2
        at, part = divmod(time / _DAY * 48, 1.0)
        level = noise[int(at)] * (1 - part) + noise[int(at) + 1] * part
        return peak * wave * (1 + level) * max([each.at(time) for each in flashes], default=1.0)

    return rate, len(flashes)


# Methods ----------------------------------------------------------------------------------------------------------


def run_tuner(day: Day) -> World:
    """Runs the tuner, with the settings left as they are."""
    tuner, rules = Tuner(audit=lambda _: None, pool=Inline), rules_of(day.scenario)
    world, state = World(day.scenario), State()

    def direct(world: World) -> float:
        nonlocal state
        decision = tuner.step("replicas", rules, state, world.observe(), world.clock())
        state = decision.state
        if state.replicas is not None:
            world.scale({stage: part.count for stage, part in state.replicas.stages.items()}, day.start_seconds)
        return min(max(decision.requeue_after, 1.0), LOOK_SECONDS)

    return world.run(direct)


def rules_of(scenario: Scenario) -> Policy:
    """Returns a policy that decides only the number of replicas."""
    scale = Scale(mode="Auto", minimum=1, maximum=MAX_REPLICAS)
    return replace(policy(scenario), mode="Recommend", scales=dict.fromkeys(WORKERS, scale))


def run_fixed(day: Day) -> World:
    """Runs the largest of the least numbers all the time."""
    peak = {stage: max(each[stage] for each in day.least()) for stage in WORKERS}
    return World(replace(day.scenario, talkers=peak[Stage.TALKER], codecs=peak[Stage.CODEC])).run()


def run_least(day: Day) -> World:
    """Runs the least numbers of each span."""
    least = day.least()

    def direct(world: World) -> float:
        world.scale(least[min(int(world.now / SPAN_SECONDS), len(least) - 1)], 0.0)
        return SPAN_SECONDS

    return World(day.scenario).run(direct)


def run_hpa(day: Day) -> World:
    """Runs a HorizontalPodAutoscaler on live streams for each replica: the rows of a step or call."""
    setting = day.scenario.initial
    rows = {Stage.TALKER: setting.talker_max_num_seqs, Stage.CODEC: setting.codec_max_num_seqs}
    running: Counts = {Stage.TALKER: day.scenario.talkers, Stage.CODEC: day.scenario.codecs}
    wanted: list[Counts] = []

    def direct(world: World) -> float:
        nonlocal running, wanted
        streams, now = world.live_streams(), Counts()
        for stage in WORKERS:
            needed = streams / rows[stage]
            is_near = abs(needed / running[stage] - 1) <= _HPA_TOLERANCE
            now[stage] = running[stage] if is_near else _needed(needed)
        wanted = [*wanted, now][-int(_HPA_STABLE / _HPA_SECONDS) :]
        running = {
            stage: max(now[stage], min(running[stage], max(each[stage] for each in wanted))) for stage in WORKERS
        }
        world.scale(running, day.start_seconds)
        return _HPA_SECONDS

    return World(day.scenario).run(direct)


METHODS: Mapping[str, Callable[[Day], World]] = {
    TUNER: run_tuner,
    "fixed at the peak": run_fixed,
    "HPA": run_hpa,
    "least": run_least,
}


# All of them ------------------------------------------------------------------------------------------------------


class Served(Struct, frozen=True, kw_only=True):
    """How a method served a day."""

    requests: int
    missed: float
    """Ratio of requests served badly."""
    replica_seconds: float


class Score(Struct, frozen=True, kw_only=True):
    """How good a method was."""

    cost_over_least: float
    """Replica-seconds beyond the least, as a ratio of that."""
    missed: float
    """Ratio of requests served badly."""


class DayRow(Row[Score], frozen=True, kw_only=True):
    """One workload on one of its days."""

    start_seconds: float
    flashes: int
    fewest: int
    """Talkers and codecs of the least numbers, in the span that needs fewest."""
    most: int
    least_missed: float
    """Ratio of requests that the least numbers serve badly."""


class Summary(Score, frozen=True, kw_only=True):
    """A method over all days: means, and the worst."""

    cost_over_least_worst: float
    missed_worst: float


class ReplicasReport(Summary, frozen=True, kw_only=True):
    """The tuner, its baselines, and all days."""

    command: str
    days: int
    hours: float
    target: float
    """Ratio of requests to serve well."""
    baselines: Mapping[str, Summary]
    rows: tuple[DayRow, ...]


def run(workload: int, seed: int, method: int, *numbers: int) -> Served:
    """Runs a method on a day."""
    world = [*METHODS.values()][method](draw(workload, seed, numbers))
    missed = 1 - well(world)
    return Served(requests=len(world.outcomes), missed=missed, replica_seconds=world.replica_seconds)


def measure(pool: Executor, workloads: int, first_seed: int, seeds: int, command: str) -> ReplicasReport:
    """Measures days of the first workloads from a seed on whose replicas serve something."""
    drawn = measured_capacities(pool, range(first_seed, first_seed + 2 * workloads))
    kept = dict(list(drawn.items())[:workloads])
    keys = [
        (workload, seed, method, *numbers)
        for method in range(len(METHODS))
        for workload, numbers in kept.items()
        for seed in range(seeds)
    ]
    found = dict(measured(pool, run, keys, Served))
    rows = [
        _row(workload, seed, numbers, [found[workload, seed, method, *numbers] for method in range(len(METHODS))])
        for workload, numbers in kept.items()
        for seed in range(seeds)
    ]
    return ReplicasReport(
        **msgspec.structs.asdict(_summary(rows, TUNER)),
        command=command,
        days=len(rows),
        hours=HOURS,
        target=TARGET,
        baselines=baselines_of(rows, partial(_summary, rows)),
        rows=tuple(rows),
    )


def _row(workload: int, seed: int, numbers: Numbers, found: Sequence[Served]) -> DayRow:
    day = draw(workload, seed, numbers)
    totals = [sum(each.values()) for each in day.least()]
    *others, best = found
    return DayRow(
        workload=workload,
        seed=seed,
        requests=best.requests,
        start_seconds=round(day.start_seconds),
        flashes=day.flashes,
        fewest=min(totals),
        most=max(totals),
        least_missed=round(best.missed, 4),
        scores={
            name: Score(
                cost_over_least=round(each.replica_seconds / (SPAN_SECONDS * sum(totals)) - 1, 4),
                missed=round(each.missed, 4),
            )
            for name, each in zip(METHODS, others, strict=False)
        },
    )


def _summary(rows: Sequence[DayRow], method: str) -> Summary:
    costs, missed = ([getattr(row.scores[method], name) for row in rows] for name in ("cost_over_least", "missed"))
    return Summary(
        cost_over_least=round(sum(costs) / len(costs), 4),
        missed=round(sum(missed) / len(missed), 5),
        cost_over_least_worst=max(costs),
        missed_worst=max(missed),
    )


def table(report: ReplicasReport) -> list[str]:
    """Returns the lines of a section in Markdown."""
    return [
        "## Replicas",
        "",
        f"Measured by `{report.command}`: {report.days} drawn days of drawn workloads, "
        f"{report.hours:g} hours each, with a daily wave and flash crowds. The objective is that {report.target:.0%} "
        "of the requests are served well. A new replica takes its time to start; one that ends finishes its requests. "
        "Settings stay.",
        "",
        "- Cost: replica-seconds of talkers and codecs over the least. The least is what a perfect forecast runs: for "
        "each five minutes the largest rate over what a replica was measured to serve, and replicas come at once.",
        "- Missed: ratio of requests served badly.",
        "- Fixed at the peak: the largest of the least numbers all the time, which nobody knows before. HPA: live "
        "streams for each replica, as many as rows in a step.",
        "",
        "| method | cost over the least, mean | worst | missed, mean | worst |",
        "|---|---|---|---|---|",
        *(
            f"| {name} | {each.cost_over_least:+.1%} | {each.cost_over_least_worst:+.1%} | {each.missed:.2%} | "
            f"{each.missed_worst:.2%} |"
            for name, each in {TUNER: report, **report.baselines}.items()
        ),
        "",
        "| workload, day | requests | starts in | flash crowds | least, replicas | its missed | tuner | fixed | HPA |",
        "|---|---|---|---|---|---|---|---|---|",
        *(
            f"| {row.workload}, {row.seed} | {row.requests:,} | {row.start_seconds:.0f} s | {row.flashes} | "
            f"{row.fewest} to {row.most} | {row.least_missed:.2%} | {_cells(row)} |"
            for row in report.rows
        ),
        "",
    ]


def _cells(row: DayRow) -> str:
    return " | ".join(f"{each.cost_over_least:+.0%}, {each.missed:.2%}" for each in row.scores.values())
