"""Compares forecasts of the tuner's model with measured outcomes, and writes bench/results/calibration.{json,md}.

The model learns from the counters of one setting, and predicts how that one and another one serve the load. In
simulated time on drawn workloads, with the real services; and on a machine, through `syrinx up`.
"""

import asyncio
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gpu.plan import make_script
from guard.report import Made
from simulator.auto import policy
from simulator.fresh import draw
from simulator.rows import RESULTS
from simulator.scenario import Scenario
from simulator.world import World, run_fixed, well
from support.tuned import Up, load
from syrinx_operator.commands.bench.load import Script, corpus
from syrinx_operator.commands.bench.report import markdown, save
from syrinx_operator.commands.bench.stats import Outcome
from syrinx_operator.commands.tune.what_if import mean_frames
from syrinx_operator.observed.counters import CounterHistory
from syrinx_operator.resource.fields.model import ModelSpec
from syrinx_operator.resource.fields.tuning import SloSpec, TtfaMs, TtfaObjective, TuningSpec
from syrinx_operator.resource.knobs import RAMP_LADDER, ROWS_LADDER, Setting
from syrinx_operator.resource.resolve import resolve
from syrinx_operator.resource.spec import CodecSpec, PipelineSpec, TalkerSpec, TTSPipeline, default_pipeline
from syrinx_operator.resource.state.tuning_status import Measured, State
from syrinx_operator.tuner.model.curves import learned
from syrinx_operator.tuner.model.plan import calibrated, question_of
from syrinx_operator.tuner.model.whatif import Load, Model, plant_of
from syrinx_operator.tuner.policy import policy_of

SECONDS, REAL_SECONDS = 150.0, 60.0
"""Of a run, simulated and on a machine."""
REQUESTS = 2000
"""That the model plays."""
OBJECTIVE_MS: TtfaMs = 200
"""TTFA of the runs on a machine."""
Kind = Literal["simulated", "bundled voice on a CPU", "1.7B shape on a GPU"]


class Figures(Struct, frozen=True, kw_only=True):
    """How a load is served."""

    well: float
    """Ratio of the requests with audio in time and without a gap."""
    p50: float
    p95: float
    """TTFA in seconds of the requests that were served; 0 if none was."""
    rate: float
    """Requests served per second."""


class Case(Struct, frozen=True, kw_only=True):
    """A setting under a load: forecast and outcome."""

    kind: Kind
    workload: int
    """Its seed."""
    setting: Setting
    is_seen: bool
    """The model has learned from the counters of this very run."""
    forecast: Figures
    outcome: Figures


def figures(well: float, ttfas: Sequence[float], rate: float) -> Figures:
    """Returns the figures of a load of `rate` served requests per second. ttfas: of those, in seconds."""
    p50, p95 = np.quantile(ttfas, (0.5, 0.95)) if len(ttfas) else (0.0, 0.0)
    return Figures(well=round(well, 4), p50=round(float(p50), 4), p95=round(float(p95), 4), rate=round(rate, 3))


def forecast(model: Model, setting: Setting, rate: float) -> Figures:
    """Returns the model's forecast of a setting at a rate of requests."""
    score = model.score(setting)
    return figures(score.well, score.ttfas, score.served * rate)


# Simulated --------------------------------------------------------------------------------------------------------


def simulated(workload: int) -> list[Case]:
    """Returns the cases of a drawn workload: the setting that it starts with, and another one."""
    drawn = draw(workload)
    scenario = replace(drawn, phases=(drawn.phases[0]._replace(until=SECONDS),))
    history, rules = CounterHistory(), policy(scenario)

    def observe(world: World) -> float:
        history.observe(world.observe())
        return 15.0

    world = World(scenario).run(observe)
    now = world.clock()
    seen = history.evidence(rules.objectives, rules.interval, now - timedelta(seconds=world.now), now)
    question = question_of(rules, State(measured=learned(Measured(), seen)), seen, scenario.initial, now)
    if question is None:
        return []
    model = Model(question.load, calibrated(question), question.measured, REQUESTS)
    other = _other(scenario, random.Random(f"other {workload}"))
    again = run_fixed(replace(scenario, seed=workload + 500), other)
    rate = question.load.rate
    return [
        Case(
            kind="simulated",
            workload=workload,
            setting=setting,
            is_seen=run is world,
            forecast=forecast(model, setting, rate),
            outcome=_outcome(run),
        )
        for setting, run in ((scenario.initial, world), (other, again))
    ]


def _other(scenario: Scenario, randoms: random.Random) -> Setting:
    rows = [rows for rows in ROWS_LADDER if rows <= scenario.resident]
    return Setting(
        talker_max_num_seqs=randoms.choice(rows),
        codec_max_num_seqs=randoms.choice(rows),
        chunk_ramp=randoms.choice(RAMP_LADDER),
    )


def _outcome(world: World) -> Figures:
    ttfas = [each.ttfa for each in world.outcomes if each.complete]
    return figures(well(world), ttfas, len(ttfas) / world.scenario.seconds)


# On a machine -----------------------------------------------------------------------------------------------------


class Bed(NamedTuple):
    """A model on a machine, with what is drawn for it."""

    kind: Kind
    device: Literal["cpu", "cuda"]
    model: str | None
    """Directory of a checkpoint with random weights; None: the bundled voice."""
    rates: tuple[float, float]
    """Requests a second are drawn between these."""
    talker_rows: Sequence[int]
    codec_rows: Sequence[int]

    def script(self, seed: int) -> Script:
        """Returns the requests of a run."""
        return Script(corpus(), ("us",), seed) if self.model is None else make_script(("ryan",), True, seed)

    def pipeline(self, setting: Setting) -> TTSPipeline:
        """Returns the pipeline that `syrinx up` runs."""
        talker, codec = setting.talker_max_num_seqs, setting.codec_max_num_seqs
        spec = PipelineSpec(
            model=ModelSpec(path=self.model) if self.model else ModelSpec(bundled=True),
            talker=TalkerSpec(device=self.device, max_num_seqs=talker),
            codec=CodecSpec(device=self.device, max_num_seqs=codec, chunk_ramp=setting.chunk_ramp),
            slo=SloSpec(ttfa=(TtfaObjective(task_type="CustomVoice", ttfa_p95_ms=OBJECTIVE_MS),)),
            tuning=TuningSpec(mode="Recommend", interval_seconds=5),
        )
        return replace(default_pipeline("calibration"), spec=spec)


CPU = Bed("bundled voice on a CPU", "cpu", None, (2.0, 8.0), (1, 2, 4, 8, 16), (1, 2, 4, 8))
"""A core of the CPU serves about ten requests a second."""
GPU = Bed("1.7B shape on a GPU", "cuda", "", (20.0, 80.0), (8, 16, 32, 64, 128), (1, 2, 4, 8, 16, 32))


class _Run(NamedTuple):
    measured: Measured
    outcome: Figures


def measured_here(bed: Bed, workload: int) -> list[Case]:
    """Returns the cases of a drawn load: two settings of `syrinx up`."""
    randoms = random.Random(f"{bed.kind} {workload}")
    rate = randoms.uniform(*bed.rates)
    settings = [
        Setting(
            talker_max_num_seqs=randoms.choice(bed.talker_rows),
            codec_max_num_seqs=randoms.choice(bed.codec_rows),
            chunk_ramp=randoms.choice(RAMP_LADDER),
        )
        for _ in range(2)
    ]
    runs = [_run(bed, setting, rate, workload) for setting in settings]
    rules, measured = policy_of(resolve(bed.pipeline(settings[0]))), runs[0].measured
    asked = Load(rates={"CustomVoice": rate}, frames=mean_frames(measured))
    model = Model(asked, plant_of(rules, 1, 1, {}), measured, REQUESTS)
    return [
        Case(
            kind=bed.kind,
            workload=workload,
            setting=setting,
            is_seen=run is runs[0],
            forecast=forecast(model, setting, rate),
            outcome=run.outcome,
        )
        for setting, run in zip(settings, runs, strict=True)
    ]


def _run(bed: Bed, setting: Setting, rate: float, seed: int) -> _Run:
    async def listen(up: Up) -> list[Outcome]:
        async with load(up.url, rate, seed, bed.script(seed)) as outcomes:
            await asyncio.sleep(REAL_SECONDS)
            return list(outcomes)

    with tempfile.TemporaryDirectory() as directory, Up(Path(directory), bed.pipeline(setting)) as up:
        outcomes = asyncio.run(listen(up))
        measured = up.state.measured
    played = [each.playback for each in outcomes if each.playback is not None]
    ttfas = [each.first_byte for each in played]
    is_well = [each.first_byte <= OBJECTIVE_MS / 1000 and not each.underruns for each in played]
    return _Run(measured, figures(sum(is_well) / max(len(outcomes), 1), ttfas, len(played) / REAL_SECONDS))


# The table --------------------------------------------------------------------------------------------------------


def main(workloads: int, first_seed: int, jobs: int, loads: int, model: str | None) -> None:
    """Measures drawn workloads in simulated time, and drawn loads on an otherwise idle machine.

    They are of the bundled voice on the CPU, or of `model` on the GPU. What is measured replaces former cases of its
    kind.
    """
    bed = GPU._replace(model=model) if model else CPU
    seeds = range(first_seed, first_seed + workloads)
    with ProcessPoolExecutor(jobs) as pool:
        new = [case for found in pool.map(simulated, seeds) for case in found]
    new += [case for seed in range(first_seed, first_seed + loads) for case in measured_here(bed, seed)]
    file, made = RESULTS / "calibration.json", Made.now("simulator")
    before = msgspec.json.decode(file.read_bytes(), type=_Report) if file.exists() else _Report({}, [])
    report = _Report(
        before.made | {case.kind: made for case in new},
        [case for case in before.cases if case.kind not in {each.kind for each in new}] + new,
    )
    save(report, file)
    (RESULTS / "calibration.md").write_text(text(report.cases) + _origins(report.made))


class _Report(Struct, frozen=True):
    made: dict[str, Made]
    """By kind."""
    cases: list[Case]


def _origins(made: Mapping[str, Made]) -> str:
    rows = [(kind, f"`{each.command}`", each.revision or "", each.created) for kind, each in made.items()]
    return f"\n{markdown(('run', 'command', 'revision', 'made at'), rows)}\n"


def text(cases: Sequence[Case]) -> str:
    """Returns the errors by kind, and all cases, as Markdown."""
    kinds = dict.fromkeys((case.kind, case.is_seen) for case in cases)
    errors = [
        row for kind in kinds for row in _errors(kind, [case for case in cases if (case.kind, case.is_seen) == kind])
    ]
    return (
        "# The model beside the services\n\n"
        "From the counters of one setting, the tuner's model predicts how that setting (seen) and another one (unseen) "
        "serve a drawn load; then the services serve it. Errors are forecast minus outcome: percentage points of the "
        "requests served well, and relative for all others. A setting: rows of talker / codec, and the chunk ramp.\n\n"
        f"{markdown(('run', 'setting', 'cases', 'figure', 'median', 'worst'), errors)}\n\n"
        f"{markdown(_COLUMNS, map(_row, cases))}\n"
    )


def _errors(kind: tuple[Kind, bool], cases: Sequence[Case]) -> Iterator[tuple[str, ...]]:
    name = (kind[0], "seen" if kind[1] else "unseen", str(len(cases)))
    wells = [100 * (each.forecast.well - each.outcome.well) for each in cases]
    yield (*name, "served well", *(f"{error:+.1f}" for error in _spread(wells)))
    for figure, words in (("p50", "TTFA p50"), ("p95", "TTFA p95"), ("rate", "requests/s")):
        pairs = [(getattr(each.forecast, figure), getattr(each.outcome, figure)) for each in cases]
        relative = [100 * (predicted / observed - 1) for predicted, observed in pairs if observed]
        yield (*name, words, *(f"{error:+.0f} %" for error in _spread(relative)))


def _spread(errors: Sequence[float]) -> tuple[float, float]:
    """Returns the median and the largest of errors, by size."""
    by_size = sorted(errors, key=abs)
    return by_size[len(by_size) // 2], by_size[-1]


_COLUMNS = (
    "run",
    "seed",
    "rows",
    "ramp",
    "served well",
    "TTFA p50/p95 ms",
    "requests/s",
    "model: well",
    "ms",
    "/s",
)


def _row(case: Case) -> tuple[str, ...]:
    setting = case.setting
    ramp = ",".join(map(str, setting.chunk_ramp))
    rows = f"{setting.talker_max_num_seqs}/{setting.codec_max_num_seqs}"
    seen = "seen" if case.is_seen else "unseen"
    return (f"{case.kind}, {seen}", str(case.workload), rows, ramp, *_cells(case.outcome), *_cells(case.forecast))


def _cells(each: Figures) -> tuple[str, str, str]:
    return f"{each.well:.1%}", f"{each.p50 * 1000:.0f}/{each.p95 * 1000:.0f}", f"{each.rate:.2f}"
