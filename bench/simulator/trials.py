"""Error rates of trials: of changes that change nothing, and of one that usually helps and rarely does much harm."""

import random
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor
from datetime import datetime, timedelta
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from simulator.auto import policy
from simulator.fresh import draw
from simulator.rows import measured
from simulator.scenario import Phase, Scenario
from simulator.scripted import Scripted
from simulator.world import Ended, World, well
from syrinx_operator.observed.counters import CounterHistory
from syrinx_operator.observed.evidence import Evidence
from syrinx_operator.resource.knobs import Knob, Setting
from syrinx_operator.resource.resolve import resolve
from syrinx_operator.resource.spec import default_pipeline
from syrinx_operator.resource.state.tuning_status import State, Trial
from syrinx_operator.tuner.builder import DecisionBuilder
from syrinx_operator.tuner.decide import Assignment, assignment, decide
from syrinx_operator.tuner.policy import Policy, policy_of
from syrinx_operator.tuner.trial import start_trial

_WARM_UP = 300.0
"""Seconds before a trial, which show what is usual."""
_LONGEST = 7200.0
"""Seconds of an A/A run. Its trial ends before."""
_MAX_RATE = 8.0
"""Requests per second of an A/A run. A machine that needs more is drawn again."""
_SCRAPE_SECONDS = 15.0
_BADLY = (0.02, 0.6)
"""Range of the ratio of bad requests in the A/A runs."""
_USUAL_GAIN, _RARE_HARM, _RARE = 0.05, 0.6, 0.1


class Errors(Struct, frozen=True, kw_only=True):
    """Verdicts of trials."""

    runs: int
    promoted: float
    """Ratio of the trials."""
    rolled_back: float
    inconclusive: float


class Pipeline(Protocol):
    """What a trial needs of a pipeline."""

    def apply(self, assignment: Assignment) -> None:
        """Applies an assignment."""

    def clock(self) -> datetime:
        """Returns the time now."""

    def evidence(self, since: datetime, until: datetime) -> Evidence:
        """Returns the evidence of a window."""


def errors(verdicts: Iterable[str]) -> Errors:
    """Returns the ratios of verdicts."""
    counts = Counter(verdicts)
    runs = counts.total()
    promoted, rolled_back, inconclusive = (
        counts[verdict] / runs for verdict in ("Promoted", "RolledBack", "Inconclusive")
    )
    return Errors(runs=runs, promoted=promoted, rolled_back=rolled_back, inconclusive=inconclusive)


def no_op(pool: Executor, first_seed: int, runs: int) -> Errors:
    """Returns the verdicts on a change that changes nothing: each run on another machine, with bursty traffic."""
    return _verdicts(pool, no_op_trial, range(first_seed, first_seed + runs))


def skewed(pool: Executor, first_seed: int, runs: int) -> Errors:
    """Returns the verdicts on a change that makes 5 points of requests good in most pairs, and 60 bad in a tenth."""
    return _verdicts(pool, skewed_trial, range(first_seed, first_seed + runs))


def _verdicts(pool: Executor, trial: Callable[[int], str], seeds: Iterable[int]) -> Errors:
    return errors(verdict for _, verdict in measured(pool, trial, [(seed,) for seed in seeds], str))


def no_op_trial(seed: int) -> str:
    """Returns the verdict on a ramp whose last chunk, which repeats anyway, is there twice."""
    scenario = _bursty(seed)
    ramp = scenario.initial.chunk_ramp
    candidate = scenario.initial.with_value(Knob.RAMP, (*ramp, ramp[-1]))
    services, verdict = _Services(policy(scenario)), ""

    def direct(world: World) -> float:
        nonlocal verdict
        services.observe(world)
        if verdict or world.now < _WARM_UP:
            return _SCRAPE_SECONDS
        try:
            return min(next(trial), _SCRAPE_SECONDS)
        except StopIteration as end:
            verdict = end.value
            raise Ended from None

    trial = _trial(services, services.rules, candidate)
    World(scenario).run(direct)
    return verdict


class _Services:
    """Simulated services, as the tuner observes them."""

    def __init__(self, rules: Policy) -> None:
        self.rules = rules
        self._history = CounterHistory()
        self._world: World

    def observe(self, world: World) -> None:
        """Reads the counters."""
        self._world = world
        self._history.observe(world.observe())

    def apply(self, assignment: Assignment) -> None:
        self._world.apply(assignment)

    def clock(self) -> datetime:
        return self._world.clock()

    def evidence(self, since: datetime, until: datetime) -> Evidence:
        return self._history.evidence(self.rules.objectives, self.rules.interval, since, until)


def _bursty(seed: int) -> Scenario:
    """Returns a drawn machine with a load that it serves neither well nor never."""
    randoms = random.Random(f"A/A {seed}")
    while True:
        if (scenario := _loaded(draw(randoms.getrandbits(32)), randoms)) is not None:
            return scenario


def _loaded(drawn: Scenario, randoms: random.Random) -> Scenario | None:
    """Returns one replica of each stage with bursty traffic; None if that takes more requests than `_MAX_RATE`."""
    burst, least, rate = randoms.choice((2.0, 3.0, 4.0)), 0.0, drawn.phases[0].rate / drawn.talkers
    rows = drawn.initial.with_value(Knob.TALKER_ROWS, drawn.resident).with_value(Knob.CODEC_ROWS, drawn.resident)
    for _ in range(8):
        if rate > _MAX_RATE:
            break
        phase = Phase(_WARM_UP, rate, drawn.phases[0].audio_seconds, burst)
        scenario = replace(drawn, initial=rows, talkers=1, codecs=1, phases=(phase,))
        bad = 1 - well(World(scenario).run())
        if _BADLY[0] <= bad <= _BADLY[1]:
            return replace(scenario, phases=(phase._replace(until=_LONGEST),))
        least, rate = (least, (least + rate) / 2) if bad > _BADLY[1] else (rate, 1.3 * rate)
    return None


def skewed_trial(seed: int) -> str:
    """Returns the verdict on a change with the mean of -1.5 points."""
    randoms = random.Random(f"skewed {seed}")
    rules = replace(policy_of(resolve(default_pipeline())), mode="Auto")
    candidate = rules.requested.with_value(Knob.CODEC_ROWS, 2 * rules.requested.codec_max_num_seqs)
    usual = randoms.uniform(_USUAL_GAIN, 1 - _RARE_HARM)
    effects = dict[int, float]()
    pair = 0

    def bad(setting: Setting, _: float) -> float:
        if setting != candidate:
            return usual
        return usual + effects.setdefault(pair, _RARE_HARM if randoms.random() < _RARE else -_USUAL_GAIN)

    def follow(trial: Trial) -> None:
        nonlocal pair
        pair = trial.period // 2

    world = Scripted(bad, rules.requested, rate=randoms.uniform(1.0, 10.0), seed=seed)
    # The coin depends on the time.
    world.run(_WARM_UP + seed)
    trial = _trial(world, rules, candidate, follow)
    while True:
        try:
            world.run(world.now + next(trial))
        except StopIteration as end:
            return str(end.value)


def _trial(
    pipeline: Pipeline, rules: Policy, candidate: Setting, follow: Callable[[Trial], None] = lambda _: None
) -> Generator[float, None, str]:
    """Runs one trial: yields the seconds until it goes on, and returns its verdict.

    `follow` is called after each evaluation.
    """
    now = pipeline.clock()
    recent = pipeline.evidence(now - timedelta(seconds=_WARM_UP), now)
    state = State(requested=rules.requested, mode=rules.mode, identity=recent.identity, measured_time=now)
    builder = DecisionBuilder(rules, state, pipeline.evidence, _never, _never, now, requeue_after=rules.interval)
    start_trial(builder, candidate, "", recent)
    state, pause = builder.state, builder.requeue_after
    while state.trial is not None:
        follow(state.trial)
        pipeline.apply(assignment(rules, state))
        yield pause
        decision = decide(rules, state, pipeline.evidence, _never, _never, pipeline.clock())
        state, pause = decision.state, decision.requeue_after
    return state.history[-1].verdict


def _never(*_: object) -> None:
    """Answers no question."""
