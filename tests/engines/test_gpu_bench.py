"""The parts of the GPU benchmarks that need no GPU: workload, plans, load generator, random checkpoints, report."""

import math
import statistics

import msgspec
import pytest
from msgspec import structs

from gpu import checkpoint, plan, report, summary
from gpu.monitor import Usage
from gpu.plan import MEAN_SECONDS, make_script
from gpu.results import EngineResult, Gathered, Kill, ServicePoint, ServiceRun
from gpu.worth import Effect, WorthRun
from syrinx_operator.commands.bench.load import GeneratorStats, corpus
from syrinx_operator.commands.bench.stats import Outcome, Playback, summarize
from syrinx_operator.local.machine import Machine
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.model.config import ModelConfig
from syrinx_stages.model.talker import Talker
from syrinx_stages.model.tokenizer import load_tokenizer

MACHINE = Machine(cpu="a processor", cores=16, memory_gib=128, system="Linux", python="3.12", packages={})


def outcome(ttfa: float, *, underruns: int = 0, duration: float = 4.0) -> Outcome:
    return Outcome(
        Playback(
            first_byte=ttfa,
            first_playable=ttfa,
            ttfa=ttfa,
            end=1.0,
            duration=duration,
            underruns=underruns,
            underrun_seconds=0.1 * underruns,
            longest_underrun=0.1 if underruns else 0.0,
            gaps=(),
        )
    )


def point(load: str, amount: float, outcomes: list[Outcome]) -> ServicePoint:
    return ServicePoint(
        load=load,
        amount=amount,
        seconds=10,
        stats=summarize("open", amount, outcomes, 10.0),
        usage=Usage([], {}, {}, None),
        generator=GeneratorStats(4, 0.1, 1.0),
    )


def run(*points: ServicePoint) -> ServiceRun:
    return ServiceRun(
        created="2026-11-21",
        command="python -m gpu.service",
        revision=None,
        machine=MACHINE,
        gpu="NVIDIA H200",
        driver="580",
        system="syrinx",
        topology="one GPU",
        model="1.7B, random weights",
        random_weights=True,
        seed=0,
        utterance_seconds=4.2,
        points=list(points),
    )


def complete(*points: ServicePoint) -> ServiceRun:
    return structs.replace(run(*points), complete=True)


def test_utterance_lengths_have_the_published_mean_and_grow_with_the_text():
    texts = corpus()
    bodies = [make_script(("ryan",), True).body(number) for number in range(1000)]
    lengths = [body["max_new_tokens"] * FAMILY.frame_seconds for body in bodies]
    assert statistics.fmean(lengths) == pytest.approx(MEAN_SECONDS, rel=0.03)
    assert min(lengths) >= 1.0 and max(lengths) <= 15.0
    short, long = (texts.index(min(bodies, key=key)["input"]) for key in (max_tokens, lambda body: -max_tokens(body)))
    assert short < 5 and long > 95


def max_tokens(body: dict) -> int:
    return body["max_new_tokens"]


@pytest.mark.parametrize("maximum", [0, 1, 100, 128, 317, 640, 1000, 1536, 5000])
def test_search_finds_the_maximum_to_one_part_in_sixteen(maximum):
    levels = plan.search_max(128, 1536)
    tried = [next(levels)]
    with pytest.raises(StopIteration) as end:
        while True:
            tried.append(levels.send(tried[-1] <= maximum))
    found = end.value.value
    assert found <= maximum
    assert found == 1536 or min(maximum, 1536) - found <= max(1, found // 8)
    assert len(tried) <= 12


@pytest.mark.parametrize(
    ("maximum", "found"), [(960, 960), (1100, 1080), (5000, 1140), (930, 900), (800, 780), (10, 0)]
)
def test_a_repeated_search_stays_near_the_known_maximum(maximum: int, found: int) -> None:
    levels = plan.search_near(960, 2048)
    tried = [next(levels)]
    with pytest.raises(StopIteration) as end:
        while True:
            tried.append(levels.send(tried[-1] <= maximum))
    assert (end.value.value, tried[0]) == (found, 960)
    assert len(tried) <= plan.NEAR_LEVELS


def test_live_streams_are_the_worst_search():
    good, bad = [outcome(0.02)] * 200, [outcome(0.02, underruns=1)] * 200
    levels = [(0, 512, good), (0, 600, bad), (1, 512, bad), (1, 480, good), (2, 512, good), (2, 544, good)]
    points = [structs.replace(point("live", amount, outcomes), search=search) for search, amount, outcomes in levels]
    result = summary.figures(complete(*points))
    assert (result["live_streams"], result["live_streams_by_search"]) == (480, [512, 480, 544])
    assert "Listeners without a gap: 480, the worst of 3 searches: 512, 480, 544." in report._service(complete(*points))
    assert summary.figures(complete(*points[:4], structs.replace(points[2], search=2)))["live_streams"] == 0
    assert summary.figures(complete())["live_streams"] is None


def test_a_search_that_was_stopped_does_not_count():
    good = [outcome(0.02)] * 200
    points = [structs.replace(point("live", amount, good), search=search) for search, amount in ((0, 512), (1, 128))]
    assert summary.figures(run(*points))["live_streams_by_search"] == [512]
    assert summary.figures(run(*points[:1]))["live_streams"] is None


def test_a_technique_is_worth_its_median_gain():
    loads = [("1 clients", "audio s/s", 12.0, 10.0), ("8 clients", "TTFA p95, ms", 20.0, 30.0)]
    effects = [Effect(technique="graphs", load=load, figure=what, on=on, off=off) for load, what, on, off in loads]
    unknown = Effect(technique="graphs", load="8 clients", figure="failed requests, %", on=0.0, off=1.0)
    worth = WorthRun("abc", [*effects, unknown])
    assert worth.ratios() == {"graphs": pytest.approx(1.35)}
    assert "1.50x" in worth.table()
    assert "failed" not in worth.table()


@pytest.mark.parametrize(("size", "parameters"), [("1b7", 1.917e9), ("0b6", 0.906e9)])
def test_random_checkpoints_have_the_published_parameter_count(size, parameters):
    config = msgspec.convert(checkpoint.talker_settings(size, 77091), ModelConfig).talker_config
    shapes = dict(checkpoint.shapes(Talker, config, "talker"))
    assert sum(map(math.prod, shapes.values())) == pytest.approx(parameters, rel=1e-3)
    assert shapes["talker.model.layers.27.mlp.down_proj.weight"] == checkpoint.HIDDEN[size]


def test_transformers_gives_the_same_text_ids_as_the_own_tokenizer(tmp_path):
    import transformers

    checkpoint.write_configs(tmp_path, "1b7")
    config = msgspec.json.decode((tmp_path / "config.json").read_bytes(), type=ModelConfig)
    theirs, own = transformers.Qwen2TokenizerFast.from_pretrained(tmp_path), load_tokenizer(tmp_path, config)
    for text in corpus()[::10]:
        ids = own.assistant(text)
        assert theirs(f"<|im_start|>assistant\n{text}")["input_ids"] == [*ids.role, *ids.text]
    named = {name: getattr(config, f"{name}_token_id") for name in checkpoint.NAMED_TOKENS}
    assert {name: theirs.convert_tokens_to_ids(f"<|{name}|>") for name in named} == named
    extractor = transformers.AutoFeatureExtractor.from_pretrained(tmp_path / "speech_tokenizer")
    assert extractor.sampling_rate == FAMILY.sample_rate


def test_figures_of_a_run():
    result = summary.figures(
        complete(
            point("open", 20, [outcome(0.02)] * 19 + [outcome(0.03, underruns=1)]),
            point("closed", 1, [outcome(0.02)] * 10),
            point("closed", 4, [outcome(0.025)] * 10),
            point("live", 512, [outcome(0.02)] * 200),
            point("live", 600, [*[outcome(0.02)] * 200, outcome(0.02, underruns=2)]),
            point("burst", 128, [outcome(0.05)] * 127 + [outcome(0.15)]),
        )
    )
    assert result["open_loop_ttfa_p95_ms"] == {"20": pytest.approx(20.5)}
    assert result["open_loop_underrun_share"] == {"20": 0.05}
    assert result["closed_loop_audio_s_per_s"] == {"1": 4.0, "4": 4.0}
    assert result["live_streams"] == 512
    assert result["ttfa_c4_over_c1"] == pytest.approx(1.25)
    assert result["burst128_p99_ms"] == pytest.approx(50, abs=0.1)


def test_of_several_runs_the_worst_figures_count():
    runs = [
        run(point("open", 20, [outcome(0.02)] * 40), point("closed", 4, [outcome(0.02)] * 10)),
        run(point("open", 20, [outcome(0.03)] * 40), point("closed", 4, [outcome(0.02, duration=2.0)] * 10)),
        complete(point("live", 512, [outcome(0.02)] * 200)),
    ]
    result = summary.worst([summary.figures(each) for each in runs])
    assert result["open_loop_ttfa_p95_ms"] == {"20": pytest.approx(30)}
    assert result["closed_loop_audio_s_per_s"] == {"4": pytest.approx(2.0)}
    assert (result["live_streams"], result["burst128_p99_ms"]) == (512, None)
    assert result["ranges"]["open_loop_ttfa_p95_ms 20"] == [pytest.approx(20), pytest.approx(30)]


def test_a_talker_step_in_service_is_compared_with_one_of_as_many_rows_alone():
    work = {"talker-0": {"step_ms": 6.0, "frames_per_step": 48.0}}
    busy = structs.replace(point("closed", 64, [outcome(0.02)]), usage=Usage([], {}, work, None))
    assert summary.step_over_alone(run(busy), {"32": 3.0, "64": 5.0, "8": 1.0}) == pytest.approx(1.5)
    assert summary.step_over_alone(run(busy), {}) is None
    assert summary.step_over_alone(run(), {"1": 1.0}) is None


def test_report_compares_measured_figures_with_targets():
    talker = EngineResult(benchmark="talker", talker_frame_ms={"1": 2.4, "64": 4.4}, floor_ms={"1": 1.1})
    kills = [Kill("talker-0", 700, 3, 0, 0.8, 1.2, 13.6), Kill("codec-0", 700, 0, 0, 0.1, 1.2, 9.1)]
    gathered = Gathered(talker=talker, kills=kills, runs={"1b7_defaults": run(point("open", 20, [outcome(0.03)] * 40))})
    result = summary.summarize(gathered)
    verdicts = {row["what"]: row["met"] for row in result["targets"]}
    assert verdicts["talker frame, batch 1"] is True
    assert verdicts["talker frame, batch 64"] is False
    assert verdicts["talker frame, batch 32"] is None
    assert verdicts["TTFA p95, 20 requests/s"] is True
    assert result["open_loop_underrun_share"] == {"20": 0.0}
    assert not any("published" in key for key in result)
    assert (result["crash_stall_s"], result["crash_refused"]) == (0.8, 3)
    text = report.report(gathered, result, "Handwritten notes.")
    for expected in ("| 30.0 / 30.0 |", "random", "is incomplete", "Handwritten notes.", "Published by their authors"):
        assert expected in text
