"""The GPU talker engine in Triton's interpreter: each request gets the frames that it gets alone on a CPU."""

import support.interpreter  # noqa: F401, I001 (before any kernel)

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from support import marks, small_talker
from support.talker_lifetimes import Lifetimes, Reference, poison

from syrinx_stages.contract.frames import MarkedFrame
from syrinx_stages.contract.messages import End, EndReason, Sampling, SpeechRequest
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.runtime.errors import RequestError
from syrinx_stages.talker.cuda_engine import CudaTalkerEngine
from syrinx_stages.talker.eager_engine import EagerTalkerEngine
from syrinx_stages.talker.engine import EngineFull
from syrinx_stages.talker.model_runner import MAX_PAGES
from syrinx_stages.talker.prefill import PREFILL_LENGTHS
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
    """Creates engines with poisoned memory. Their steps have all rows: one row at a time is slow in the interpreter."""

    def create(resident: int, *, wide: bool = True) -> CudaTalkerEngine:
        engine = CudaTalkerEngine(voice, resident)
        if wide:
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
    pools = allocator.slots, allocator.pages, allocator.text_pages
    return all(pool.num_free == pool.capacity for pool in pools)


def test_concurrent_requests_get_the_frames_of_each_alone(
    voice: Checkpoint, eager: EagerTalkerEngine, make: Make
) -> None:
    engine = make(3)
    rings = set()
    lifetimes = Lifetimes(
        Reference(voice), engine, resident=3, seed=16, before_launch=lambda: poison(engine),
        after_launch=lambda step: rings.update({step.ring} if step.rows else ()),
    )  # fmt: skip
    lifetimes.run(steps=9)
    assert lifetimes.errors == [0.0] * len(lifetimes.errors)
    assert len(lifetimes.errors) > 8
    assert {STOP, LENGTH} <= {request.end for request in lifetimes.all}
    assert lifetimes.resumed
    # Padded rows write to entry 0.
    assert rings == {1, 2, 3}
    for request in lifetimes.all:
        results = [*request.frames, *([request.end] if request.end else [])]
        expected = alone(eager, request.request, len(results))
        assert expected == results
        if request.frames:
            marks.assert_close(
                *([frame.mark for frame in each if isinstance(frame, MarkedFrame)] for each in (results, expected))
            )
    assert is_empty(engine)


def test_request_ends_after_its_last_frame(eager: EagerTalkerEngine, make: Make) -> None:
    engine, request = make(2, wide=False), small_talker.request("a", max_frames=1, sampling=ENDLESS)
    engine.admit([engine.prepare(request, b"", None)])
    steps = [engine.launch(["a"]) for _ in range(3)]
    [frame] = alone(eager, request, 1)
    assert [engine.read(step) for step in steps] == [{"a": frame}, {"a": LENGTH}, {}]


def test_row_that_ended_in_an_unread_step_has_no_more_results(eager: EagerTalkerEngine, make: Make) -> None:
    engine = make(3)
    ending = Sampling(top_k=0, residual_top_k=0, min_frames=0)
    requests = (small_talker.request("ends", sampling=ending, seed=seed) for seed in range(500))
    ends = next(request for request in requests if alone(eager, request, 1) == [STOP])
    continues = small_talker.request("continues", sampling=ENDLESS)
    # It samples EOS as its last frame.
    engine.admit([engine.prepare(each, b"", None) for each in (msgspec.structs.replace(ends, max_frames=1), continues)])
    steps = [engine.launch(["ends", "continues"]) for _ in range(2)]
    frames = alone(eager, continues, 2)
    assert engine.read(steps[0]) == {"ends": STOP, "continues": frames[0]}
    assert engine.read(steps[1]) == {"continues": frames[1]}
    assert engine.read(engine.launch(["ends"])) == {}


def test_resumed_request_keeps_its_repetition_penalty(eager: EagerTalkerEngine, make: Make) -> None:
    """Without the penalty for its earlier codes, the most likely codes would repeat."""
    sampling = Sampling(temperature=0, residual_temperature=0, repetition_penalty=5, min_frames=99)
    engine, request = make(3), small_talker.request("a", sampling=sampling)
    *before, after = alone(eager, request, 4)
    engine.admit([engine.prepare(request, b"".join(before), None)])
    assert engine.read(engine.launch(["a"])) == {"a": after}


def test_admit_without_memory_allocates_nothing(eager: EagerTalkerEngine, make: Make) -> None:
    engine = make(3)
    requests = [
        small_talker.request(name, small_talker.text(400), non_streaming_text=False, sampling=ENDLESS)
        for name in ("a", "b")
    ]
    prepared = [engine.prepare(request, b"", None) for request in requests]
    with pytest.raises(EngineFull):
        engine.admit(prepared)
    assert is_empty(engine)
    with pytest.raises(EngineFull):
        engine.admit([engine.prepare(small_talker.request(str(number)), b"", None) for number in range(4)])
    assert is_empty(engine)
    engine.admit(prepared[:1])
    pools = engine.allocator.pages, engine.allocator.text_pages, engine.allocator.slots
    free = [pool.num_free for pool in pools]
    with pytest.raises(EngineFull):
        engine.admit(prepared[1:])
    assert free == [pool.num_free for pool in pools]
    engine.release("a")
    poison(engine)
    engine.admit(prepared[1:])
    assert engine.read(engine.launch(["b"])) == {"b": alone(eager, requests[1], 1)[0]}
    engine.release("b")
    engine.release("b")
    engine.release("unknown")
    assert is_empty(engine)


def test_row_without_a_free_page_waits(eager: EagerTalkerEngine, make: Make) -> None:
    engine = make(3)
    short = small_talker.request("short", sampling=ENDLESS)
    full = small_talker.request("full", small_talker.text(PAGE_SIZE - 1), sampling=ENDLESS)
    prepared = [engine.prepare(request, b"", None) for request in (short, full)]
    assert len(prepared[1].prompt.embeds) == PAGE_SIZE - 1
    engine.admit(prepared)
    pages = engine.allocator.pages
    others = pages.allocate(pages.num_free)
    read = [engine.read(engine.launch(["short", "full"])) for _ in range(2)]
    shorts, fulls = alone(eager, short, 2), alone(eager, full, 2)
    assert read == [{"short": shorts[0], "full": fulls[0]}, {"short": shorts[1]}]
    pages.free(others)
    assert engine.read(engine.launch(["full"])) == {"full": fulls[1]}


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
        assert allocation.position == positions[request.id]
        hidden = engine.runner.state.hidden[allocation.slot]
        torch.testing.assert_close(hidden, reference.start(request).hidden, atol=1e-5, rtol=1e-5)


def test_rejects_a_prompt_longer_than_a_requests_pages(tmp_path: Path) -> None:
    voice = Checkpoint(str(small_talker.write(tmp_path / "voice", max_position_embeddings=8192)))
    engine = CudaTalkerEngine(voice, 1)
    positions = MAX_PAGES * PAGE_SIZE
    fits = engine.prepare(small_talker.request("a", small_talker.text(positions - 13)), b"", None)
    assert fits.max_frames == positions - len(fits.prompt.embeds) == 13
    with pytest.raises(RequestError, match=f"has {positions - 12} positions of the model's {positions}") as refused:
        engine.prepare(small_talker.request("a", small_talker.text(positions - 12)), b"", None)
    assert refused.value.param == "input"
    # A previous owner with more pages may have generated more frames.
    engine.warm_up()
    with pytest.raises(EngineFull):
        engine.admit([engine.prepare(small_talker.request("a"), b"\0" * 32 * positions, None)])
