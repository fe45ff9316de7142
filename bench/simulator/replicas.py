"""Measures the number of replicas that the tuner chooses on drawn days with flash crowds, beside baselines."""

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from simulator import fresh
from simulator.auto import policy
from simulator.rows import TUNER, Row, baselines_of, measured
from simulator.scenario import TASK_TYPES, Load, Scenario
from simulator.world import World, clock, good
from simulator.world import run_fixed as simulate
from syrinx_operator.resource.knobs import RAMP_LADDER, Setting
from syrinx_operator.resource.tuning_status import RATE_BINS, Replicas, State
from syrinx_operator.tuner.builder import Event
from syrinx_operator.tuner.capacity import capacity
from syrinx_operator.tuner.decide import decide
from syrinx_operator.tuner.plan import Answer, Forecast, Question
from syrinx_operator.tuner.policy import Objective, Policy, Scale
from syrinx_operator.tuner.replicas import BIN_SECONDS, LOOK_SECONDS
from syrinx_stages.contract.stages import WORKERS, Stage

Counts = Mapping[Stage, int]

HOURS = 6.0
TARGET = 0.99
MAX_REPLICAS = 12
SPAN_SECONDS = 600.0
"""Length of the spans of which the least number of replicas is found."""
_SEGMENT = 120.0
"""The rate of requests changes so often."""
_DAY = 24 * 3600.0
_LATE = 20.0
"""Seconds after a span within which its requests' outcomes become known."""
_HPA_SECONDS, _HPA_TOLERANCE, _HPA_STABLE = 15.0, 0.1, 300.0
"""Of a HorizontalPodAutoscaler by default: period, tolerance, and stabilization before replicas are removed."""
_STEP_SECONDS = (0.03, 0.055)
"""Of a talker with one row: slow, so that a day is simulated in seconds."""
_TRIED, _TRIED_SECONDS, _STEP, _MAX_RATE = 4, 900.0, 1.2, 100.0
_PEAK = (0.6, 1.6)
"""Peak of the day without flash crowds, as a ratio of what `_TRIED` replicas of each stage serve."""


class Day(Struct, frozen=True, kw_only=True):
    """A drawn workload: some hours of a day."""

    scenario: Scenario
    """With as many replicas as there may be."""
    colocated: bool
    start_seconds: float
    """Time until a new replica is ready."""
    yesterday: tuple[float, ...] = ()
    """Requests per second of the day before, by ten minutes of the day."""
    flashes: int = 0
    """Flash crowds within these hours."""


class _Flash(NamedTuple):
    begin: float
    rise: float
    end: float
    factor: float

    def at(self, time: float) -> float:
        if not self.begin <= time < self.end:
            return 1.0
        return 1 + (self.factor - 1) * min(1.0, (time - self.begin + _SEGMENT) / self.rise)


def draw(workload: int, seed: int) -> Day:
    """Returns a workload. `seed` draws its day: when, the flash crowds, and the requests."""
    for attempt in itertools.count():
        randoms = random.Random(f"replicas {workload} {attempt}")
        kind = _kind(randoms)
        if most := _served(kind):
            break
    scenario = kind.scenario
    peak, depth = randoms.uniform(*_PEAK) * most, randoms.uniform(0.3, 0.7)
    days = random.Random(f"replicas {workload} {seed}")
    begin = days.uniform(0.0, _DAY - HOURS * 3600)
    today, flashes = _rates(days, peak, depth, begin)
    before, _ = _rates(days, peak * days.uniform(0.8, 1.1), depth, begin)
    counts = np.random.default_rng(days.getrandbits(32))
    # The simulation starts at midnight, the day does not.
    yesterday = tuple(
        float(counts.poisson(before((begin + (each + 0.5) * BIN_SECONDS) % _DAY) * BIN_SECONDS)) / BIN_SECONDS
        for each in range(RATE_BINS)
    )
    ((_, mix),) = scenario.load
    load: Load = tuple(
        (float(end), {name: share * today(begin + end - _SEGMENT / 2) for name, share in mix.items()})
        for end in np.arange(_SEGMENT, HOURS * 3600 + 1, _SEGMENT)
    )
    return replace(
        kind,
        scenario=replace(
            scenario,
            seed=1000 * workload + seed,
            seconds=HOURS * 3600,
            load=load,
            talkers=MAX_REPLICAS,
            codecs=MAX_REPLICAS,
        ),
        yesterday=yesterday,
        flashes=flashes,
    )


def _kind(randoms: random.Random) -> Day:
    """Returns a machine, its settings and objectives, and one request per second of a mix of task types."""
    machine = fresh.draw_costs(randoms)
    speed = randoms.uniform(*_STEP_SECONDS) / machine.step[0][1]
    colocated = randoms.random() < 0.3
    costs = replace(
        machine,
        step=tuple((rows, seconds * speed) for rows, seconds in machine.step),
        eager=type(machine.eager)(*(each * speed for each in machine.eager)),
        captured=type(machine.eager)(*(each * speed for each in machine.captured)),
        # Other stages are on other devices.
        interference=machine.interference if colocated else 1.0,
    )
    mix = fresh.draw_mix(randoms)
    rows = randoms.choice((4, 8, 16))
    setting = Setting(talker_max_num_seqs=rows, codec_max_num_seqs=rows, chunk_ramp=randoms.choice(RAMP_LADDER))
    objectives: dict[str, Objective] = {
        name: Objective(fresh.draw_objective(costs, name, randoms), TARGET) for name in TASK_TYPES
    }
    return Day(
        scenario=Scenario(
            name="replicas",
            seconds=_TRIED_SECONDS,
            load=((_TRIED_SECONDS, mix),),
            burst=randoms.choice((1.0, 1.0, 2.0)),
            objectives=objectives,
            initial=setting,
            talkers=_TRIED,
            codecs=_TRIED,
            costs=costs,
            max_queue_seconds=2.0,
            scrape_seconds=LOOK_SECONDS,
        ),
        colocated=colocated,
        start_seconds=randoms.uniform(30.0, 240.0),
    )


def _served(kind: Day) -> float:
    """Returns about how many requests per second `_TRIED` replicas serve well; 0 if fewer than one."""

    def serves(rate: float) -> bool:
        ((_, mix),) = kind.scenario.load
        load = ((_TRIED_SECONDS, {name: share * rate for name, share in mix.items()}),)
        scenario = replace(kind.scenario, load=load)
        return bool(good(simulate(scenario, scenario.initial), scenario).mean() >= TARGET)

    rate = 1.0
    while serves(rate) and rate < _MAX_RATE:
        rate *= _STEP
    return rate / _STEP if rate > 1.0 else 0.0


def _rates(randoms: random.Random, peak: float, depth: float, begin: float) -> tuple[Callable[[float], float], int]:
    """Returns the rate by time of day: a wave with slow noise, and up to two flash crowds in the hours from `begin`.

    Also returns the number of flash crowds.
    """
    noon = randoms.uniform(0.4, 0.7) * _DAY
    noise = [randoms.gauss(0, 0.05) for _ in range(49)]
    flashes = []
    for _ in range(randoms.choice((0, 1, 1, 2))):
        starts = begin + randoms.uniform(0.0, HOURS * 3600)
        length, factor = randoms.uniform(600.0, 2400.0), randoms.uniform(1.4, 2.5)
        flashes.append(_Flash(starts, randoms.uniform(60.0, 300.0), starts + length, factor))

    def rate(time: float) -> float:
        wave = 1 - depth * (1 - math.cos(2 * math.pi * (time - noon) / _DAY)) / 2
        at, part = divmod(time / _DAY * 48, 1.0)
        level = noise[int(at)] * (1 - part) + noise[int(at) + 1] * part
        return peak * wave * (1 + level) * max([each.at(time) for each in flashes], default=1.0)

    return rate, len(flashes)


# The least --------------------------------------------------------------------------------------------------------


class Least(NamedTuple):
    """The least numbers of replicas in hindsight, by span."""

    counts: list[Counts]
    seconds: float
    """Replica-seconds."""
    missed: float
    """Ratio of requests served badly."""


def least(day: Day) -> Least:
    """Returns the least numbers that serve the target of each span's requests well.

    Replicas come and go at once. Each span begins with what the least of the spans before left.
    """
    world = World(day.scenario)
    found: list[Counts] = []
    start = dict.fromkeys(WORKERS, 3)
    bad = 0
    for end in np.arange(SPAN_SECONDS, day.scenario.seconds + 1, SPAN_SECONDS):
        tried: dict[tuple[int, ...], tuple[World, float, int]] = {}

        def serves(counts: tuple[int, ...], world: World = world, end: float = end, tried: Any = tried) -> bool:
            if not all(1 <= each <= MAX_REPLICAS for each in counts):
                return False
            if counts not in tried:
                tried[counts] = _span(world, dict(zip(WORKERS, counts, strict=True)), float(end))
            return bool(tried[counts][1] >= TARGET)

        best = _search(serves, tuple(start.values()), colocated=day.colocated)
        serves(best)
        world, _, lost = tried[best]
        bad += lost
        start = dict(zip(WORKERS, best, strict=True))
        found.append(start)
    seconds = SPAN_SECONDS * sum(sum(each.values()) for each in found)
    return Least(found, seconds, bad / len(world.outcomes()))


def _span(world: World, counts: Counts, end: float) -> tuple[World, float, int]:
    """Returns the world at the end, the ratio of requests served well until then, and the number of others."""
    world, begin = world.copy(), world.now
    world.scale(counts, 0.0)
    world.run(end)
    later = world.copy()
    later.run(min(end + _LATE, world.scenario.seconds))
    outcomes = later.outcomes()
    well = good(outcomes, world.scenario)[(outcomes.accepted >= begin) & (outcomes.accepted < end)]
    return world, float(well.mean()) if len(well) else 1.0, int((~well).sum())


def _search(serves: Callable[[tuple[int, ...]], bool], start: tuple[int, ...], *, colocated: bool) -> tuple[int, ...]:
    """Returns numbers that serve, of which none can be less: near those of the span before, by cost."""
    moves = [(1, 1)] if colocated else [(1, 0), (0, 1)]
    for steps in range(MAX_REPLICAS):
        near = {
            tuple(a + sum(m[i] for m in chosen) for i, a in enumerate(start))
            for chosen in itertools.combinations_with_replacement(moves, steps)
        }
        if serving := [each for each in sorted(near) if serves(each)]:
            found = serving[0]
            break
    else:
        return tuple(MAX_REPLICAS for _ in start)
    while smaller := [less for m in moves if serves(less := tuple(a - b for a, b in zip(found, m, strict=True)))]:
        found = smaller[0]
    return found


# Methods ----------------------------------------------------------------------------------------------------------


def run_tuner(day: Day, start: Counts) -> tuple[World, list[tuple[float, Event]]]:
    """Runs the tuner, with the settings left as they are."""
    rules, world = rules_of(day), World(day.scenario)
    world.scale(start, 0.0)
    replicas = Replicas(
        rates=tuple(day.yesterday),
        last_bin=int(clock(0.0).timestamp()) // BIN_SECONDS - 1,
        ready_time=clock(0.0),
        judged_time=clock(0.0),
    )
    state, events, running = State(replicas=replicas), [], start
    while world.now < day.scenario.seconds:
        decision = decide(rules, state, world.evidence, _keep, capacity, clock(world.now))
        state = decision.state
        events += [(world.now, event) for event in decision.events]
        counts = {stage: part.count for stage, part in (state.replicas.stages if state.replicas else {}).items()}
        if counts and counts != running:
            world.scale(counts, day.start_seconds)
            running = counts
        world.run(min(day.scenario.seconds, world.now + max(decision.requeue_after, 1.0)))
    return world, events


def rules_of(day: Day) -> Policy:
    """Returns a policy that decides only the number of replicas."""
    scale = Scale(mode="Auto", minimum=1, maximum=MAX_REPLICAS)
    return replace(
        policy(day.scenario), mode="Recommend", scales=dict.fromkeys(WORKERS, scale), colocated=day.colocated
    )


def _keep(question: Question) -> Answer:
    """Answers that no setting is better."""
    same = Forecast(question.current, 1.0, 0.0, 1.0)
    return Answer(current=same, best=same, error=0.0)


def run_fixed(day: Day, counts: Counts) -> World:
    """Runs a constant number of replicas."""
    world = World(day.scenario)
    world.scale(counts, 0.0)
    world.run(day.scenario.seconds)
    return world


def run_hpa(day: Day, start: Counts) -> World:
    """Runs a HorizontalPodAutoscaler on live streams for each replica: the rows of a step or call."""
    world, setting = World(day.scenario), day.scenario.initial
    rows = {Stage.TALKER: setting.talker_max_num_seqs, Stage.CODEC: setting.codec_max_num_seqs}
    world.scale(start, 0.0)
    running, wanted = dict(start), list[dict[Stage, int]]()
    while world.now < day.scenario.seconds:
        world.run(world.now + _HPA_SECONDS)
        streams = world.live_streams()
        now = {}
        for stage in WORKERS:
            ratio = streams / (rows[stage] * running[stage])
            count = running[stage] if abs(ratio - 1) <= _HPA_TOLERANCE else math.ceil(streams / rows[stage])
            now[stage] = min(max(count, 1), MAX_REPLICAS)
        if day.colocated:
            now = dict.fromkeys(now, max(now.values()))
        wanted = [*wanted, now][-int(_HPA_STABLE / _HPA_SECONDS) :]
        counts = {stage: max(now[stage], min(running[stage], max(each[stage] for each in wanted))) for stage in WORKERS}
        if counts != running:
            world.scale(counts, day.start_seconds)
            running = counts
    return world


# All of them ------------------------------------------------------------------------------------------------------


class Score(Struct, frozen=True, kw_only=True):
    """How a method served a day."""

    cost_over_least: float
    """Replica-seconds beyond the least, as a ratio of that."""
    missed: float
    """Ratio of requests served badly."""


class DayRow(Row[Score], frozen=True, kw_only=True):
    """One workload on one of its days."""

    colocated: bool
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
    """Days of the command; `rows` has those that were measured."""
    hours: float
    target: float
    """Ratio of requests to serve well."""
    baselines: Mapping[str, Summary]
    rows: tuple[DayRow, ...]


def measure(workload: int, seed: int) -> DayRow:
    """Runs all methods on the same requests."""
    day = draw(workload, seed)
    best = least(day)
    start = best.counts[0]
    peak = {stage: max(each[stage] for each in best.counts) for stage in WORKERS}
    worlds = {TUNER: run_tuner(day, start)[0], "fixed at the peak": run_fixed(day, peak), "HPA": run_hpa(day, start)}
    totals = [sum(each.values()) for each in best.counts]
    return DayRow(
        workload=workload,
        seed=seed,
        requests=len(worlds[TUNER].outcomes()),
        colocated=day.colocated,
        start_seconds=round(day.start_seconds),
        flashes=day.flashes,
        fewest=min(totals),
        most=max(totals),
        least_missed=round(float(best.missed), 4),
        scores={
            name: Score(
                cost_over_least=round(float(world.replica_seconds) / best.seconds - 1, 4),
                missed=round(1 - float(good(world.outcomes(), day.scenario).mean()), 4),
            )
            for name, world in worlds.items()
        },
    )


def reports(workloads: int, seeds: int, first_seed: int, jobs: int) -> Iterator[ReplicasReport]:
    """Measures days of workloads that are drawn by seeds from `first_seed` on. Yields a report after each of them."""
    keys = list(itertools.product(range(first_seed, first_seed + workloads), range(seeds)))
    rows: list[DayRow] = []
    with ProcessPoolExecutor(jobs) as pool:
        for row in measured(pool, measure, keys, DayRow):
            print(f"workload {row.workload}, day {row.seed}: {_cells(row)}", flush=True)
            rows = sorted([*rows, row], key=lambda each: (each.workload, each.seed))
            yield ReplicasReport(
                **msgspec.structs.asdict(_summary(rows, TUNER)),
                command=f"PYTHONPATH=bench python -m simulator replicas --workloads {workloads} --seeds {seeds} "
                f"--first-seed {first_seed}",
                days=len(keys),
                hours=HOURS,
                target=TARGET,
                baselines=baselines_of(rows, partial(_summary, rows)),
                rows=tuple(rows),
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
        f"Measured by `{report.command}`: {len(report.rows)} of {report.days} drawn days of drawn workloads, "
        f"{report.hours:g} hours each, with a daily wave and flash crowds. The objective is that {report.target:.0%} "
        "of the requests are served well. A new replica takes its time to start; one that ends finishes its requests. "
        "The tuner knows the rates of the day before, and nothing else. Settings stay.",
        "",
        "- Cost: replica-seconds of talkers and codecs over the least. The least is found in hindsight with the same "
        "requests: for each ten minutes the numbers of which none can be less, with replicas that come and go at once.",
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
