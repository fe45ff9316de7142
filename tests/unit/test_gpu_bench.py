"""The GPU benchmarks' parts that need no GPU: what is asked for, at which loads, and what the report says of it."""

import math
import statistics
from pathlib import Path

import msgspec
import pytest

import gpu
from gpu import checkpoint, live, plan, plots, report
from gpu.capacity import stand_in
from gpu.gathered import EngineResult, Gathered, Kernel, figures
from gpu.generators import Burden, Generators
from gpu.options import parse, plan_of, setup_of
from gpu.requests import MEAN_SECONDS, Requests, seconds
from gpu.results import ServicePoint, ServiceRun
from gpu.watch import Watched
from syrinx_operator.commands.bench.playback import Playback
from syrinx_operator.commands.bench.run import corpus
from syrinx_operator.commands.bench.stats import Loop, Outcome, summarize
from syrinx_operator.local.machine import Machine
from syrinx_operator.resource.rules import violations
from syrinx_operator.resource.spec import TTSPipeline
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.model.codec_decoder import CodecDecoder
from syrinx_stages.model.config import ModelConfig, SpeechTokenizerConfig
from syrinx_stages.model.talker import Talker
from syrinx_stages.model.tokenizer import load_tokenizer

MACHINE = Machine(cpu="a processor", cores=16, memory_gib=128, system="Linux", python="3.12", packages={})


def heard(ttfa: float, *, underruns: int = 0, duration: float = 4.0) -> Outcome:
    return Outcome(
        Playback(
            first_byte=ttfa,
            first_playable=ttfa,
            ttfa=ttfa,
            end=1.0,
            duration=duration,
            underruns=underruns,
            underrun_seconds=0.1 * underruns,
            gaps=(),
        )
    )


def point(load: str, amount: float, outcomes: list[Outcome]) -> ServicePoint:
    return ServicePoint(
        load=load,
        amount=amount,
        seconds=10,
        chunk_ramp=(2, 4),
        heard=summarize(Loop.OPEN, amount, outcomes, 10.0),
        watched=Watched([], {}, {}, None),
        generator=Burden(4, 0.1, 1.0),
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
        setup=None,
        seed=0,
        utterance_seconds=4.2,
        points=list(points),
    )


def test_utterances_have_the_published_mean_length_and_longer_ones_longer_texts():
    texts = corpus()
    bodies = [Requests(texts, ("ryan",), 0, True).body(number) for number in range(4000)]
    lengths = [body["max_new_tokens"] * FAMILY.frame_seconds for body in bodies]
    assert statistics.fmean(lengths) == pytest.approx(MEAN_SECONDS, rel=0.03)
    assert min(lengths) >= 1.0 and max(lengths) <= 15.0
    short, long = (texts.index(min(bodies, key=key)["input"]) for key in (length, lambda body: -length(body)))
    assert short < 5 and long > 95


def length(body: dict) -> int:
    return body["max_new_tokens"]


def test_a_request_is_the_same_in_every_run_and_a_real_model_ends_its_own_utterances():
    ours, theirs = (Requests(corpus(), (), 7, measured) for measured in (True, False))
    assert ours.body(5) == ours.body(5) != ours.body(6)
    assert "max_new_tokens" not in theirs.body(5)


def test_lengths_are_cut():
    assert seconds(1e-9) == 1.0
    assert seconds(1 - 1e-9) == 15.0


@pytest.mark.parametrize("carried", [0, 1, 100, 128, 317, 640, 1000, 1536, 5000])
def test_the_search_finds_how_many_listeners_are_carried_to_one_part_in_sixteen(carried):
    levels = live.search(128, 1536)
    tried = [next(levels)]
    with pytest.raises(StopIteration) as end:
        while True:
            tried.append(levels.send(tried[-1] <= carried))
    found = end.value.value
    assert found <= carried
    assert found == 1536 or min(carried, 1536) - found <= max(1, found // 8)
    assert len(tried) <= 12


def test_a_level_with_a_gap_an_error_or_a_long_wait_is_not_carried():
    good = [heard(0.05)] * 200
    assert live.gap_free(summarize(Loop.CLOSED, 1, good, 10.0))
    one_gap = summarize(Loop.CLOSED, 1, [*good, heard(0.05, underruns=1)], 10.0)
    assert not live.gap_free(one_gap) and live.nearly(one_gap)
    for spoiled in ([*good, Outcome(error="http 503")], [heard(0.6)] * 200, []):
        assert not live.nearly(summarize(Loop.CLOSED, 1, spoiled, 10.0))


def test_the_full_plan_has_the_loads_that_were_asked_for_and_enough_requests():
    loads = plan.FULL.loads
    assert [load.amount for load in loads if load.loop == "open"] == [1, 2, 4, 8, 10, 20, 40, 80]
    assert [load.amount for load in loads if load.loop == "closed"] == [1, 4, 8, 16, 32, 64, 128]
    assert all(load.amount * load.seconds >= 40 for load in loads if load.loop == "open")
    assert sum(load.seconds for load in loads) < 240


def test_rates_and_clients_of_ones_own():
    chosen = plan_of(parse(["--only", "open,closed", "--rates", "30", "--concurrency", "64,256", "--busy-ramp", "4,8"]))
    assert [(load.loop, load.amount) for load in chosen.loads] == [("open", 30), ("closed", 64), ("closed", 256)]
    assert chosen.live is None
    assert [chosen.ramp(load) for load in chosen.loads] == [(4, 8)] * 3


@pytest.mark.parametrize("where", [[], ["--colocated"], ["--paced"]])
def test_the_service_is_set_up_as_a_valid_resource_that_names_the_captured_calls(where):
    pipeline = setup_of(parse(["--codec-rows", "8", *where]), "/models/1b7").pipeline("redis://127.0.0.1:1/0")
    again = msgspec.convert(msgspec.to_builtins(pipeline), TTSPipeline)
    assert again == pipeline and not violations(pipeline)
    shapes = pipeline.spec.codec.capture_pairs
    assert max(shape.rows for shape in shapes) == 8
    assert {shape.frames for shape in shapes} >= set(plan.FULL.early_ramp) | set(plan.FULL.busy_ramp)


@pytest.mark.parametrize(("size", "parameters"), [("1b7", 1.917e9), ("0b6", 0.906e9)])
def test_random_checkpoints_have_the_published_number_of_parameters(size, parameters):
    config = msgspec.convert(checkpoint.talker_settings(size, 77091), ModelConfig).talker_config
    shapes = dict(checkpoint.shapes(Talker, config, "talker"))
    assert sum(map(math.prod, shapes.values())) == pytest.approx(parameters, rel=1e-3)
    assert shapes["talker.model.layers.27.mlp.down_proj.weight"] == checkpoint.HIDDEN[size]


def test_a_random_tokenizer_reads_as_an_official_one_and_cuts_english_by_words(tmp_path):
    settings = checkpoint.talker_settings("1b7", checkpoint.write_tokenizer(tmp_path))
    tokenizer = load_tokenizer(tmp_path, msgspec.convert(settings, ModelConfig))
    for text in corpus()[::10]:
        assert len(text.split()) <= len(tokenizer.encode(text)) <= len(text.split()) + 4


def test_the_random_codec_is_loud_but_not_clipped():
    import torch

    from syrinx_stages.model.layers import checkpoint_tensors

    config = msgspec.convert(checkpoint.codec_settings(), SpeechTokenizerConfig).decoder_config
    decoder, generator = CodecDecoder(config).requires_grad_(False), torch.Generator().manual_seed(0)
    for name, slot in checkpoint_tensors(decoder, "decoder"):
        slot.target.copy_(checkpoint.draw(checkpoint.codec_deviation(name, slot.shape), slot.shape, generator))
    codes = torch.randint(0, 2048, (1, 2, 16), generator=generator)
    pcm, _ = decoder(codes, torch.tensor([2]), decoder.new_state(1))
    assert 0.02 < pcm.std() < 0.3 and pcm.abs().max() < 1
    assert pcm[0, :240].abs().max() > 0.01  # From the first ten milliseconds on.


def test_figures_of_a_run():
    told = figures(
        run(
            point("open", 20, [heard(0.02)] * 19 + [heard(0.03, underruns=1)]),
            point("closed", 1, [heard(0.02)] * 10),
            point("closed", 4, [heard(0.025)] * 10),
            point("live", 512, [heard(0.02)] * 200),
            point("live", 600, [*[heard(0.02)] * 200, heard(0.02, underruns=2)]),
        )
    )
    assert told.open_loop_ttfa_p95_ms == {"20": pytest.approx(20.5)}
    assert told.open_loop_underrun_share == {"20": 0.05}
    assert told.closed_loop_audio_s_per_s == {"1": 4.0, "4": 4.0}
    assert (told.live_streams, told.live_streams_under_1_percent) == (512, 600)
    assert told.ttfa_c4_over_c1 == pytest.approx(1.25)


def test_the_report_holds_measured_figures_against_targets_and_keeps_published_ones_apart():
    talker = EngineResult(benchmark="talker", talker_frame_ms={"1": 2.4, "64": 4.4}, floor_ms={"1": 1.1})
    gathered = Gathered(talker=talker, codec=None, runs={"1b7": run(point("open", 20, [heard(0.03)] * 40))})
    told = report.summary(gathered)
    verdicts = {row["what"]: row["met"] for row in told["targets"]}
    assert verdicts["talker frame, batch 1"] is True
    assert verdicts["talker frame, batch 64"] is False
    assert verdicts["talker frame, batch 32"] is None
    assert verdicts["TTFA p95, 20 requests/s"] is True
    assert told["open_loop_underrun_share"] == {"20": 0.0}
    assert not any("published" in key for key in told)
    text = report.markdown(gathered, told, ["h200_ttfa.png"], "What is left to do.")
    for expected in ("| 30.0 / 30.0 |", "random", "did not end", "What is left to do.", "Quoted, not measured here"):
        assert expected in text


def test_the_report_shows_what_a_frame_waits_for_and_what_its_number_format_changes():
    compared = {"code0_error": 0.011, "residual_error": 0.009, "code0_equal": 0.98, "residual_equal": 0.97}
    compared |= {"code0_best_equal": 0.99, "residual_best_equal": 1.0}
    talker = EngineResult(
        benchmark="talker",
        talker_frame_ms={"1": 2.4, "64": 4.4},
        graph_ms={"draw": {"1": 1.5}, "advance": {"1": 0.8}, "frame": {"1": 2.3}},
        floor_ms={"1": 1.1, "64": 1.2},
        launch_gap_ms={"1": 0.02},
        launch_gap_p99_ms={"1": 0.05},
        kernels=[Kernel("talker down", 28, 0.3), Kernel("rest", 2, -0.01)],
        precision={"bundled voice": {"engine, bfloat16": compared}},
    )
    codec = EngineResult(benchmark="codec", codec_4frames_ms={"1": 0.5}, graph_ms={"1": {"1": 0.3}, "4": {"1": 0.4}})
    gathered = Gathered(talker=talker, codec=codec, runs={})
    told = report.summary(gathered)
    assert told["talker_launch_gap_ms"] == {"1": 0.02}
    assert {row["what"]: row["met"] for row in told["targets"]}["device idle between two frames, batch 1"] is True
    text = " ".join(report.markdown(gathered, told, [], "").split())
    for expected in ("| 1 | 2.400 | 2.300 | 1.100 | 0.020 | 0.050 |", "| 64 | 4.400 | - |", "| 1 | 0.500 | 0.400 |"):
        assert expected in text
    assert "| bundled voice | engine, bfloat16 | 1.1e-02 / 9.0e-03 | 98.0 / 97.0 | 99.0 / 100.0 |" in text


def test_the_plots_draw_what_was_measured_the_graphs_alone_and_the_floor(tmp_path):
    shown = {"talker_frame_ms": {"1": 2.4, "64": 4.4}, "graph_ms": {"frame": {"1": 2.3, "64": 4.3}}}
    talker = EngineResult(
        benchmark="talker", floor_ms={"1": 1.1, "64": 1.2}, kernels=[Kernel("rest", 2, -0.1)], **shown
    )
    files = plots.draw(Gathered(talker=talker, codec=None, runs={}), tmp_path, "h200")
    assert [file.name for file in files] == ["h200_talker.png", "h200_talker_kernels.png"]
    axes = plots._engine(talker, talker.talker_frame_ms, "a title").axes[0]
    lines = {line.get_label().partition(":")[0]: list(line.get_ydata()) for line in axes.lines}
    assert lines == {"measured": [2.4, 4.4], "graphs alone": [2.3, 4.3], "floor": [1.1, 1.2]}


async def test_the_generator_hears_what_a_service_streams_without_a_gap(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(gpu.__file__).parents[1]))
    requests = Requests(corpus(), (), 0, True)
    async with stand_in() as url, Generators(2, [url], requests) as generators:
        opened = await generators.open(20, 1.0)
        listened = await generators.live(16, 0.5, 3.0)
    assert len(opened.outcomes) == 20 and not any(outcome.error for outcome in opened.outcomes)
    assert sum(outcome.playback.underruns for outcome in opened.outcomes) == 0
    assert opened.burden.processes == 2
    assert listened.outcomes and not any(outcome.error for outcome in listened.outcomes)


@pytest.mark.parametrize("where", ["--paced", "--colocated"])
def test_vllm_where_it_would_be_ignored_is_refused(where: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--engine", "vllm", where])
    assert "--engine vllm: it has a process of its own" in capsys.readouterr().err
