"""The talker beside its layers, when vLLM runs those: inputs and codes by position, in whatever order they come.

The layers are the modules' own here, a request at a time.
"""

import support.interpreter  # noqa: F401, I001 (before any kernel)

import numpy as np
import pytest
import torch
from support import small_talker

from syrinx_stages.contract.messages import SpeechRequest
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.talker import KVCache
from syrinx_stages.talker.eager_engine import EagerTalkerEngine
from syrinx_stages.talker_vllm.cuda_frame_generator import CudaFrameGenerator
from syrinx_stages.talker_vllm.frame_generator import EagerFrameGenerator, FrameGenerator, VllmRequest
from syrinx_stages.talker_vllm.positions import GENERATIONS, Handle

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

FRAMES = 4
HANDLE = Handle(2, GENERATIONS - 1)


@pytest.fixture(params=["modules", "kernels"])
def frames(voice: Checkpoint, request: pytest.FixtureRequest) -> FrameGenerator:
    return (
        EagerFrameGenerator(voice) if request.param == "modules" else CudaFrameGenerator(voice, slots=3, frames=FRAMES)
    )


def speech_request(name: str = "a") -> SpeechRequest:
    sampling = small_talker.request("").sampling
    return small_talker.request(name, "Hello there, it's late.", non_streaming_text=False, seed=7, sampling=sampling)


def codes_of(eager: EagerTalkerEngine) -> list[list[int]]:
    """What the request says by the torch engine."""
    wanted = speech_request()
    eager.admit([eager.prepare(wanted, b"", None)])
    generated = [eager.read(eager.launch([wanted.id]))[wanted.id] for _ in range(FRAMES)]
    eager.release(wanted.id)
    frames = [frame for frame in generated if isinstance(frame, bytes)]
    assert len(frames) == FRAMES
    return [np.frombuffer(frame, "<i2").tolist() for frame in frames]


@torch.inference_mode()
def opened(eager: EagerTalkerEngine, handle: Handle = HANDLE, codes: torch.Tensor | None = None) -> VllmRequest:
    prompt = eager.prepare(speech_request(), b"", None).embedded
    assert prompt is not None
    none = torch.zeros((0, 16), dtype=torch.int64)
    return VllmRequest(
        handle, prompt, none if codes is None else codes, (speech_request().sampling, speech_request().seed)
    )


def inputs(frames: FrameGenerator, places: torch.Tensor, width: int) -> torch.Tensor:
    """What rows are fed."""
    return frames.embed_inputs(places, torch.full((len(places), width), torch.nan))


def read(frames: FrameGenerator, first: int, count: int) -> list[list[int]]:
    (codes,) = frames.read([(HANDLE, first, count)])
    return np.frombuffer(codes, "<i2").reshape(-1, 16).tolist()


class Layers:
    """The talker's decoder layers, for one request."""

    def __init__(self, eager: EagerTalkerEngine, frames: FrameGenerator, handle: Handle = HANDLE) -> None:
        self._talker, self._frames, self._base = eager._talker, frames, handle.base
        self._cache: KVCache = eager._talker.new_cache()

    @torch.inference_mode()
    def feed(self, count: int) -> int:
        """The code 0 that follows the last of so many places, which are one step."""
        first, width = self._cache.length, self._talker.config.hidden_size
        places = torch.arange(first, first + count) + self._base
        for row in inputs(self._frames, places, width):
            hidden = self._talker.decode(row[None], [self._cache])
        return int(self._frames.sample(places[-1:], hidden))


def test_a_request_of_an_earlier_owner_continues(eager: EagerTalkerEngine, frames: FrameGenerator) -> None:
    expected = codes_of(eager)
    start = opened(eager, codes=torch.tensor(expected[:2]))
    frames.open(start)
    layers = Layers(eager, frames)
    assert layers.feed(len(start.prompt.embeds) + 2) == expected[2][0]
    assert layers.feed(1) == expected[3][0]
    assert read(frames, 2, 2) == expected[2:]


@pytest.mark.night
def test_recomputed_positions_sample_nothing(eager: EagerTalkerEngine, frames: FrameGenerator) -> None:
    """As after a preemption: the cache is lost, the frames are not."""
    expected, start = codes_of(eager), opened(eager)
    frames.open(start)
    layers = Layers(eager, frames)
    length = len(start.prompt.embeds)
    layers.feed(length)
    for _ in range(FRAMES - 2):
        layers.feed(1)
    again = Layers(eager, frames)
    assert [again.feed(length), again.feed(FRAMES - 2)] == [expected[0][0], expected[FRAMES - 2][0]]
    assert again.feed(1) == expected[-1][0]
    assert read(frames, 0, FRAMES) == expected


def test_rows_of_others_change_nothing(eager: EagerTalkerEngine, frames: FrameGenerator) -> None:
    """Nobody's, an older generation's, a closed request's."""
    start = opened(eager)
    frames.open(start)
    gone = Handle(3, 0)
    frames.open(opened(eager, gone))
    frames.close(gone)
    frames.close(gone)
    last = len(start.prompt.embeds) - 1
    # More than there may be requests: vLLM warms up with as many.
    strangers = torch.tensor([0, Handle(2, 0).base + last, gone.base + last, gone.base + last + 1])
    width = eager._talker.config.hidden_size
    assert not inputs(frames, strangers, width).any()
    assert not frames.sample(strangers, torch.randn(4, width)).any()
    layers = Layers(eager, frames)
    assert layers.feed(last + 1) == codes_of(eager)[0][0]


@pytest.mark.night
def test_requests_in_one_step(eager: EagerTalkerEngine, frames: FrameGenerator) -> None:
    """One row at the end of its prompt, one within it, one that generates frames."""
    expected, handles = codes_of(eager), [Handle(slot, 0) for slot in (2, 3, 1)]
    for handle in handles:
        frames.open(opened(eager, handle))
    length, width = len(opened(eager).prompt.embeds), eager._talker.config.hidden_size
    each = [Layers(eager, frames, handle) for handle in handles]
    assert [layers.feed(count) for layers, count in zip(each, (length - 1, length - 3, length), strict=True)] == [
        0, 0, expected[0][0],
    ]  # fmt: skip
    where = torch.tensor([place + handle.base for place, handle in zip((-1, -3, 0), handles, strict=True)]) + length
    with torch.inference_mode():
        fed = inputs(frames, where, width)
        hidden = [layers._talker.decode(row[None], [layers._cache]) for layers, row in zip(each, fed, strict=True)]
        follows = frames.sample(where, torch.cat(hidden)).tolist()
    assert follows == [expected[0][0], 0, expected[1][0]]
    generated = frames.read([(handles[0], 0, 1), (handles[2], 0, 2)])
    found = [np.frombuffer(codes, "<i2").reshape(-1, 16).tolist() for codes in generated]
    assert found == [expected[:1], expected[:2]]


def test_request_whose_scores_are_not_finite_ends_alone(eager: EagerTalkerEngine, frames: FrameGenerator) -> None:
    """vLLM ends a request after EOS; its last frame says that there was no code."""
    expected, handles = codes_of(eager), [HANDLE, Handle(1, 0)]
    length, eos = len(opened(eager).prompt.embeds), eager._talker.config.codec_eos_token_id
    hidden = []
    for handle in handles:
        frames.open(opened(eager, handle))
        layers = Layers(eager, frames, handle)
        layers.feed(length - 1)
        row = inputs(frames, torch.tensor([length - 1 + handle.base]), eager._talker.config.hidden_size)
        with torch.inference_mode():
            hidden.append(layers._talker.decode(row, [layers._cache]))
    last = torch.tensor([length - 1 + handle.base for handle in handles])
    with torch.inference_mode():
        states = torch.cat((torch.full_like(hidden[0], torch.nan), hidden[1]))
        assert frames.sample(last, states).tolist() == [eos, expected[0][0]]
        # vLLM may have scheduled one more step.
        assert inputs(frames, last + 1, states.shape[1]).isfinite().all()
    assert min(read(frames, 0, 1)[0]) < 0
    (good,) = frames.read([(handles[1], 0, 1)])
    assert np.frombuffer(good, "<i2").tolist() == expected[0]
