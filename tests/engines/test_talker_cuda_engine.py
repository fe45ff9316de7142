"""The GPU talker engine in Triton's interpreter: each request gets the frames that it gets alone on a CPU."""

import support.interpreter  # noqa: F401, I001 (before any kernel)

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from support import small_talker
from support import talker_recipe as recipe
from support.talker import reference_voice, speech_request, write_checkpoint
from support.talker_lifetimes import Lifetimes, Reference, poison

from syrinx_stages.contract.messages import End, EndReason, Sampling, SpeechRequest
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.config import ModelType
from syrinx_stages.runtime.errors import RequestError
from syrinx_stages.talker.cuda import layers, model_runner
from syrinx_stages.talker.cuda.engine import CudaTalkerEngine
from syrinx_stages.talker.eager_engine import EagerTalkerEngine
from syrinx_stages.talker.engine import EngineFull
from syrinx_stages.talker.inputs import embed
from syrinx_stages.talker.cuda.model_runner import MAX_PAGES
from syrinx_stages.talker.cuda.prefill import PREFILL_LENGTHS
from syrinx_stages.talker.prompt import Prepared, PromptBuilder
from syrinx_stages.talker.cuda.allocation import PAGE_SIZE

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

Make = Callable[[int], CudaTalkerEngine]
ENDLESS = Sampling(top_k=0, residual_top_k=0, min_frames=99)
ENDING = Sampling(top_k=0, residual_top_k=0, min_frames=0)
STOP, LENGTH = End(EndReason.STOP), End(EndReason.LENGTH)


@pytest.fixture
def make(voice: Checkpoint) -> Make:
    """Creates engines with poisoned memory. Their steps have all rows: one row at a time is slow in the interpreter."""

    def create(resident: int) -> CudaTalkerEngine:
        engine = CudaTalkerEngine(voice, resident)
        engine.runner.batch_sizes = [resident]
        engine.warm_up()
        poison(engine)
        return engine

    return create


def alone(eager: EagerTalkerEngine, request: SpeechRequest, frames: int) -> list[bytes | End]:
    """Returns a request's frames on a CPU: up to `frames`, or until its end."""
    eager.admit([eager.prepare(request, b"", None)])
    results: list[bytes | End] = []
    while len(results) < frames and not (results and isinstance(results[-1], End)):
        results.append(eager.read(eager.launch([request.id]))[request.id])
    eager.release(request.id)
    return results


def is_empty(engine: CudaTalkerEngine) -> bool:
    allocator = engine.allocator
    pools = allocator.slots, allocator.pages
    return all(pool.num_free == pool.capacity for pool in pools)


@pytest.mark.parametrize(
    ("mixes", "fuses", "seed", "steps", "max_frames"),
    [
        pytest.param(False, True, 16, 9, 5, id="prefills first", marks=pytest.mark.night),
        pytest.param(False, False, 16, 9, 5, id="products of a library", marks=pytest.mark.night),
        pytest.param(True, True, 44, 6, 3, id="prefills beside frames"),
    ],
)
def test_concurrent_requests_get_the_frames_of_each_alone(
    voice: Checkpoint, eager: EagerTalkerEngine, make: Make, monkeypatch: pytest.MonkeyPatch,
    mixes: bool, fuses: bool, seed: int, steps: int, max_frames: int,
) -> None:  # fmt: skip
    if mixes:
        monkeypatch.setattr(model_runner, "MIXED_FRAMES", (3,))
    monkeypatch.setattr(layers, "FUSED_ELEMENTS", 1 << 20 if fuses else 0)
    engine = make(3)
    rings = set()
    decode, mixed = engine.runner.decode, []
    monkeypatch.setattr(
        engine.runner, "decode", lambda rows, prompts: (mixed.append(len(prompts)), decode(rows, prompts))[1]
    )
    lifetimes = Lifetimes(
        Reference(voice), engine, resident=3, seed=seed, max_frames=max_frames, before_launch=lambda: poison(engine),
        after_launch=lambda step: rings.update({step.ring} if step.rows else ()),
    )  # fmt: skip
    lifetimes.run(steps)
    assert lifetimes.errors == [0.0] * len(lifetimes.errors)
    assert len(lifetimes.errors) > 6
    assert {STOP, LENGTH} <= {request.end for request in lifetimes.all}
    assert lifetimes.resumed
    # Padded rows write to entry 0.
    assert rings == {1, 2, 3}
    assert any(mixed) == mixes
    for request in lifetimes.all:
        results = [*request.frames, *([request.end] if request.end else [])]
        assert alone(eager, request.request, len(results)) == results
    assert is_empty(engine)


def test_ended_requests_have_no_more_results(eager: EagerTalkerEngine, make: Make) -> None:
    engine = make(3)
    requests = (small_talker.request("stops", sampling=ENDING, seed=seed) for seed in range(500))
    stops = next(request for request in requests if alone(eager, request, 1) == [STOP])
    full, continues = (small_talker.request(name, sampling=ENDLESS) for name in ("full", "continues"))
    # It samples EOS as its last frame.
    stops, full = (msgspec.structs.replace(each, max_frames=1) for each in (stops, full))
    engine.admit([engine.prepare(each, b"", None) for each in (stops, full, continues)])
    names = ["stops", "full", "continues"]
    steps = [engine.launch(names) for _ in range(2)]
    frames = alone(eager, continues, 2)
    assert engine.read(steps[0]) == {"stops": STOP, "full": alone(eager, full, 1)[0], "continues": frames[0]}
    assert engine.read(steps[1]) == {"full": LENGTH, "continues": frames[1]}
    assert engine.read(engine.launch(names[:2])) == {}


def test_resumed_request_keeps_its_repetition_penalty(eager: EagerTalkerEngine, make: Make) -> None:
    """It is below 1, so that an earlier code follows, which would not follow without it."""
    sampling = Sampling(temperature=0, residual_temperature=0, repetition_penalty=0.2, min_frames=99)
    request = small_talker.request("a", sampling=sampling)
    *before, after = alone(eager, request, 4)
    assert isinstance(after, bytes) and after[:2] in {frame[:2] for frame in before}
    plain = msgspec.structs.replace(request, sampling=msgspec.structs.replace(sampling, repetition_penalty=1))

    def resumed(engine: EagerTalkerEngine | CudaTalkerEngine, request: SpeechRequest) -> bytes | End:
        engine.admit([engine.prepare(request, b"".join(before), None)])
        return engine.read(engine.launch(["a"]))["a"]

    assert resumed(eager, plain) != after
    assert resumed(make(1), request) == after


def test_admit_without_memory_allocates_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make(3)
    monkeypatch.setattr(engine.runner, "prefill", lambda requests: None)
    pages, slots = engine.allocator.pages, engine.allocator.slots
    others = pages.allocate(pages.num_free - 3)
    text = small_talker.text(PAGE_SIZE)
    prepared = [engine.prepare(small_talker.request(name, text), b"", None) for name in ("a", "b")]
    with pytest.raises(EngineFull):
        engine.admit(prepared)
    assert (pages.num_free, slots.num_free) == (3, 3), "one of them fits"
    with pytest.raises(EngineFull):
        engine.admit([engine.prepare(small_talker.request(str(number)), b"", None) for number in range(4)])
    assert (pages.num_free, slots.num_free) == (3, 3)
    engine.admit(prepared[:1])
    with pytest.raises(EngineFull):
        engine.admit(prepared[1:])
    assert (pages.num_free, slots.num_free) == (1, 2)
    engine.release("a")
    engine.admit(prepared[1:])
    assert (pages.num_free, slots.num_free) == (1, 2)
    engine.release("b")
    engine.release("b")
    engine.release("unknown")
    pages.free(others)
    assert is_empty(engine)


def test_row_without_a_free_page_waits(eager: EagerTalkerEngine, make: Make) -> None:
    engine = make(2)
    short = small_talker.request("short", sampling=ENDLESS)
    full = small_talker.request("full", small_talker.text(PAGE_SIZE - 1), sampling=ENDLESS)
    prepared = [engine.prepare(request, b"", None) for request in (short, full)]
    assert prepared[1].positions == PAGE_SIZE - 1
    engine.admit(prepared)
    pages = engine.allocator.pages
    others = pages.allocate(pages.num_free)
    read = [engine.read(engine.launch(["short", "full"])) for _ in range(2)]
    shorts, fulls = alone(eager, short, 2), alone(eager, full, 2)
    assert read == [{"short": shorts[0], "full": fulls[0]}, {"short": shorts[1]}]
    pages.free(others)
    assert engine.read(engine.launch(["full"])) == {"full": fulls[1]}
    before = engine.launch(["full"])
    engine.admit(prepared[1:])
    assert engine.read(before) == {}, "a request that was admitted anew has no frame of an earlier step"


@pytest.mark.night
@torch.inference_mode()
def test_long_prompt_is_prefilled_in_chunks_beside_short_ones(tmp_path: Path) -> None:
    voice = Checkpoint(str(small_talker.write(tmp_path / "voice", num_hidden_layers=1)))
    engine, reference = CudaTalkerEngine(voice, 3), Reference(voice)
    engine.warm_up()
    poison(engine)
    positions = {"short": 12, "long": PREFILL_LENGTHS[-1] + 14, "medium": 20}
    requests = [small_talker.request(name, small_talker.text(count)) for name, count in positions.items()]
    engine.admit([engine.prepare(request, b"", None) for request in requests])
    for request in requests:
        allocation = engine._rows[request.id].allocation
        assert engine.runner.next_frames.position(allocation.slot) == positions[request.id]
        hidden = engine.runner.state.hidden[allocation.slot]
        torch.testing.assert_close(hidden, reference.start(request).hidden, atol=1e-5, rtol=1e-5)


@pytest.mark.night
@torch.inference_mode()
def test_reference_voices_and_earlier_frames_are_added_to_inputs(tmp_path: Path) -> None:
    kind, fields = recipe.CASES["base_0b6_whole_continued_5"]
    voice = Checkpoint(str(write_checkpoint(tmp_path / "voice", *kind)))
    request = msgspec.structs.replace(speech_request(kind[0], fields), id="a")
    prompt = PromptBuilder(voice.load_tokenizer(), voice.config).build(request, reference_voice(kind[0], fields))
    # It has no reference encoders, so the voice is passed in.
    voice.config = msgspec.structs.replace(voice.config, tts_model_type=ModelType.CUSTOM_VOICE)
    engine, eager = CudaTalkerEngine(voice, 1), EagerTalkerEngine(voice)
    engine.warm_up()
    poison(engine)
    codes = torch.from_numpy(recipe.reference_codes(2))
    prepared = Prepared(request, prompt, codes, max_frames=9, embedded=embed(eager._talker, prompt))
    eager.admit([prepared])
    engine.admit([prepared])
    assert engine.read(engine.launch(["a"])) == eager.read(eager.launch(["a"]))
    cached = engine.runner.state.hidden[engine._rows["a"].allocation.slot]
    eager.read(eager.launch(["a"]))
    torch.testing.assert_close(cached, eager._rows["a"].hidden, atol=1e-4, rtol=1e-4)


def test_rejects_a_prompt_longer_than_a_requests_pages(tmp_path: Path) -> None:
    voice = Checkpoint(str(small_talker.write(tmp_path / "voice", max_position_embeddings=8192)))
    engine = CudaTalkerEngine(voice, 1)
    positions = MAX_PAGES * PAGE_SIZE
    fits = engine.prepare(small_talker.request("a", small_talker.text(positions - 13)), b"", None)
    assert fits.max_frames == positions - fits.positions == 13
    with pytest.raises(RequestError, match=f"has {positions - 12} positions of the model's {positions}") as refused:
        engine.prepare(small_talker.request("a", small_talker.text(positions - 12)), b"", None)
    assert refused.value.param == "input"
    # A previous owner with more pages may have generated more frames.
    engine.warm_up()
    with pytest.raises(EngineFull):
        engine.admit([engine.prepare(small_talker.request("a"), b"\0" * 32 * positions, None)])
