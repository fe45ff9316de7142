"""The talker engine of a GPU in Triton's interpreter: each request says what it says alone on a CPU."""

import support.interpreter  # noqa: F401, I001 (before any kernel)

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from support import small_talker
from support.talker_lifetimes import Lifetimes, Reference, poison

from syrinx_stages.contract.messages import End, EndReason, Sampling, SpeechRequest
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.runtime.errors import RequestError
from syrinx_stages.talker.cuda_engine import LENGTHS, MOST_PAGES, CudaTalkerEngine
from syrinx_stages.talker.eager_engine import EagerTalkerEngine
from syrinx_stages.talker.engine import EngineFull
from syrinx_stages.talker.allocation import PAGE_SIZE

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

Make = Callable[..., CudaTalkerEngine]
ENDLESS = Sampling(top_k=0, residual_top_k=0, min_frames=99)
STOP, LENGTH = End(EndReason.STOP), End(EndReason.LENGTH)


@pytest.fixture(scope="module")
def voice(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint(str(small_talker.write(tmp_path_factory.mktemp("checkpoint") / "voice")))


@pytest.fixture(scope="module")
def eager(voice: Checkpoint) -> EagerTalkerEngine:
    return EagerTalkerEngine(voice)


@pytest.fixture
def make(voice: Checkpoint) -> Make:
    """Engines whose memory is poisoned. Their steps are as wide as can be: the interpreter is slowest at one row."""

    def made(resident: int, *, wide: bool = True) -> CudaTalkerEngine:
        engine = CudaTalkerEngine(voice, resident)
        if wide:
            engine._sizes = [resident]
        engine.warm_up()
        poison(engine)
        return engine

    return made


def alone(eager: EagerTalkerEngine, request: SpeechRequest, frames: int) -> list[bytes | End]:
    """What a request says on a CPU: up to so many frames, or its end."""
    eager.admit([eager.prepare(request, b"", None)])
    said: list[bytes | End] = []
    while len(said) < frames and not (said and isinstance(said[-1], End)):
        said.append(eager.read(eager.launch([request.id]))[request.id])
    eager.release(request.id)
    return said


def all_is_free(engine: CudaTalkerEngine) -> bool:
    return all(len(pool) == pool.count for pool in (engine._slots, engine._pages, engine._text_pages))


def test_requests_that_come_and_go_say_what_each_says_alone(
    voice: Checkpoint, eager: EagerTalkerEngine, make: Make
) -> None:
    engine = make(3)
    rings = set()
    lifetimes = Lifetimes(
        Reference(voice), engine, resident=3, seed=16, between=lambda: poison(engine),
        launched=lambda step: rings.update({step.ring} if step.rows else ()),
    )  # fmt: skip
    lifetimes.run(steps=9)
    assert lifetimes.errors == [0.0] * len(lifetimes.errors)
    assert len(lifetimes.errors) > 8
    assert {STOP, LENGTH} <= {spoken.end for spoken in lifetimes.all}
    assert lifetimes.resumed
    # Place 0 is where padded rows write.
    assert rings == {1, 2, 3}
    for spoken in lifetimes.all:
        said = [*spoken.frames, *([spoken.end] if spoken.end else [])]
        assert alone(eager, spoken.request, len(said)) == said
    assert all_is_free(engine)


def test_one_request_and_its_last_frame(eager: EagerTalkerEngine, make: Make) -> None:
    engine, request = make(2, wide=False), small_talker.request("a", max_frames=1, sampling=ENDLESS)
    engine.admit([engine.prepare(request, b"", None)])
    steps = [engine.launch(["a"]) for _ in range(3)]
    [frame] = alone(eager, request, 1)
    assert [engine.read(step) for step in steps] == [{"a": frame}, {"a": LENGTH}, {}]


def test_a_row_that_ended_in_a_step_that_was_not_read_says_nothing_more(eager: EagerTalkerEngine, make: Make) -> None:
    engine = make(3)
    ending = Sampling(top_k=0, residual_top_k=0, min_frames=0)
    requests = (small_talker.request("ends", sampling=ending, seed=seed) for seed in range(500))
    ends = next(request for request in requests if alone(eager, request, 1) == [STOP])
    goes_on = small_talker.request("goes on", sampling=ENDLESS)
    # Its last frame was its end.
    engine.admit([engine.prepare(each, b"", None) for each in (msgspec.structs.replace(ends, max_frames=1), goes_on)])
    steps = [engine.launch(["ends", "goes on"]) for _ in range(2)]
    frames = alone(eager, goes_on, 2)
    assert engine.read(steps[0]) == {"ends": STOP, "goes on": frames[0]}
    assert engine.read(steps[1]) == {"goes on": frames[1]}
    assert engine.read(engine.launch(["ends"])) == {}


def test_one_that_goes_on_elsewhere_remembers_what_it_said(eager: EagerTalkerEngine, make: Make) -> None:
    """It would say again what is the likeliest, if that were not held against it."""
    sampling = Sampling(temperature=0, residual_temperature=0, repetition_penalty=5, min_frames=99)
    engine, request = make(3), small_talker.request("a", sampling=sampling)
    *before, after = alone(eager, request, 4)
    engine.admit([engine.prepare(request, b"".join(before), None)])
    assert engine.read(engine.launch(["a"])) == {"a": after}


def test_for_whom_there_is_no_memory_nothing_is_taken(eager: EagerTalkerEngine, make: Make) -> None:
    engine = make(3)
    requests = [
        small_talker.request(name, small_talker.text(400), non_streaming_text=False, sampling=ENDLESS)
        for name in ("a", "b")
    ]
    prepared = [engine.prepare(request, b"", None) for request in requests]
    with pytest.raises(EngineFull):
        engine.admit(prepared)
    assert all_is_free(engine)
    with pytest.raises(EngineFull):
        engine.admit([engine.prepare(small_talker.request(str(number)), b"", None) for number in range(4)])
    assert all_is_free(engine)
    engine.admit(prepared[:1])
    free = len(engine._pages), len(engine._text_pages), len(engine._slots)
    with pytest.raises(EngineFull):
        engine.admit(prepared[1:])
    assert free == (len(engine._pages), len(engine._text_pages), len(engine._slots))
    engine.release("a")
    poison(engine)
    engine.admit(prepared[1:])
    assert engine.read(engine.launch(["b"])) == {"b": alone(eager, requests[1], 1)[0]}
    engine.release("b")
    engine.release("b")
    engine.release("never there")
    assert all_is_free(engine)


def test_a_row_without_a_page_waits_and_then_goes_on(eager: EagerTalkerEngine, make: Make) -> None:
    engine = make(3)
    short = small_talker.request("short", sampling=ENDLESS)
    full = small_talker.request("full", small_talker.text(PAGE_SIZE - 1), sampling=ENDLESS)
    prepared = [engine.prepare(request, b"", None) for request in (short, full)]
    assert len(prepared[1].prompt.embeds) == PAGE_SIZE - 1
    engine.admit(prepared)
    others = engine._pages.allocate(len(engine._pages))
    read = [engine.read(engine.launch(["short", "full"])) for _ in range(2)]
    shorts, fulls = alone(eager, short, 2), alone(eager, full, 2)
    assert read == [{"short": shorts[0], "full": fulls[0]}, {"short": shorts[1]}]
    engine._pages.free(others)
    assert engine.read(engine.launch(["full"])) == {"full": fulls[1]}


@torch.inference_mode()
def test_a_prompt_longer_than_any_prefill_is_fed_in_parts(tmp_path: Path) -> None:
    voice = Checkpoint(str(small_talker.write(tmp_path / "voice", num_hidden_layers=1)))
    engine, reference = CudaTalkerEngine(voice, 1), Reference(voice)
    engine.warm_up()
    poison(engine)
    request = small_talker.request("a", small_talker.text(LENGTHS[-1] + 5))
    state = reference.begin(request).hidden
    engine.admit([engine.prepare(request, b"", None)])
    place = engine._rows["a"].place
    assert place.position == LENGTHS[-1] + 5
    torch.testing.assert_close(engine._arena.state[place.slot], state, atol=1e-5, rtol=1e-5)


def test_a_prompt_longer_than_a_requests_places_is_refused(tmp_path: Path) -> None:
    voice = Checkpoint(str(small_talker.write(tmp_path / "voice", max_position_embeddings=8192)))
    engine = CudaTalkerEngine(voice, 1)
    positions = MOST_PAGES * PAGE_SIZE
    fits = engine.prepare(small_talker.request("a", small_talker.text(positions - 13)), b"", None)
    assert fits.max_frames == positions - len(fits.prompt.embeds) == 13
    with pytest.raises(RequestError, match=f"has {positions - 12} positions of the model's {positions}") as refused:
        engine.prepare(small_talker.request("a", small_talker.text(positions - 12)), b"", None)
    assert refused.value.param == "input"
    # Another owner, who had more places, made more frames.
    engine.warm_up()
    with pytest.raises(EngineFull):
        engine.admit([engine.prepare(small_talker.request("a"), b"\0" * 32 * positions, None)])
