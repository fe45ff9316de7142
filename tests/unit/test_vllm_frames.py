"""The talker beside its layers, when vLLM runs those: inputs and codes by position, in whatever order they come.

The layers are the modules' own here, a request at a time.
"""

import support.interpreter  # noqa: F401, I001 (before any kernel)

import numpy as np
import pytest
import torch
from support import small_talker

from syrinx_stages.contract.messages import End, SpeechRequest
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.kv_cache import KVCache
from syrinx_stages.talker.eager_engine import EagerTalkerEngine
from syrinx_stages.talker.on_vllm.cuda_frames import CudaFrames
from syrinx_stages.talker.on_vllm.frames import DIGIT, EagerFrames, Frames, Opened
from syrinx_stages.talker.on_vllm.where import GENERATIONS, Handle

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

FRAMES = 6
HANDLE = Handle(3, GENERATIONS - 1)


@pytest.fixture(scope="module")
def voice(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint(str(small_talker.write(tmp_path_factory.mktemp("checkpoint") / "voice")))


@pytest.fixture(scope="module")
def eager(voice: Checkpoint) -> EagerTalkerEngine:
    return EagerTalkerEngine(voice)


@pytest.fixture(params=["modules", "kernels"])
def frames(voice: Checkpoint, request: pytest.FixtureRequest) -> Frames:
    return EagerFrames(voice) if request.param == "modules" else CudaFrames(voice, slots=6, frames=FRAMES)


def spoken(name: str = "a") -> SpeechRequest:
    sampling = small_talker.request("").sampling
    return small_talker.request(name, "Hello there, it's late.", non_streaming_text=False, seed=7, sampling=sampling)


def codes_of(eager: EagerTalkerEngine) -> list[list[int]]:
    """What the request says by the torch engine."""
    wanted = spoken()
    eager.admit([eager.prepare(wanted, b"", None)])
    said = [eager.read(eager.launch([wanted.id]))[wanted.id] for _ in range(FRAMES)]
    eager.release(wanted.id)
    assert not any(isinstance(frame, End) for frame in said)
    return [np.frombuffer(frame, "<i2").tolist() for frame in said]


@torch.inference_mode()
def opened(eager: EagerTalkerEngine, handle: Handle = HANDLE, codes: torch.Tensor | None = None) -> Opened:
    prompt = eager.prepare(spoken(), b"", None).prompt
    none = torch.zeros((0, 16), dtype=torch.int64)
    return Opened(handle, prompt, none if codes is None else codes, (spoken().sampling, spoken().seed))


def told(hidden: torch.Tensor) -> list[int]:
    """The codes 0 that rows say."""
    return (hidden[:, 0] * DIGIT + hidden[:, 1]).int().tolist()


def read(frames: Frames, first: int, count: int) -> list[list[int]]:
    (codes,) = frames.read([(HANDLE, first, count)])
    return np.frombuffer(codes, "<i2").reshape(-1, 16).tolist()


class Layers:
    """The talker's decoder layers, for one request."""

    def __init__(self, eager: EagerTalkerEngine, frames: Frames, handle: Handle = HANDLE) -> None:
        self._talker, self._frames, self._base = eager._talker, frames, handle.base
        self._cache: KVCache = eager._talker.new_cache()

    @torch.inference_mode()
    def feed(self, count: int) -> list[int]:
        """The code 0 that follows each of the next places, fed one by one and told in one batch."""
        first = self._cache.length
        places = torch.arange(first, first + count) + self._base
        hidden = [self._talker.decode(row[None], [self._cache]) for row in self._frames.inputs(places)]
        return told(self._frames.speak(places, torch.cat(hidden)))


def test_a_prompt_and_its_frames(eager: EagerTalkerEngine, frames: Frames) -> None:
    expected, start = codes_of(eager), opened(eager)
    frames.open(start)
    layers = Layers(eager, frames)
    length = len(start.prompt.embeds)
    assert layers.feed(length - 2) == [0] * (length - 2)
    said = [layers.feed(2), *(layers.feed(1) for _ in range(FRAMES - 1))]
    assert said == [[0, expected[0][0]], *([frame[0]] for frame in expected[1:])]
    assert read(frames, 0, FRAMES) == expected
    assert read(frames, FRAMES - 2, 1) == expected[-2:-1]
    assert read(frames, FRAMES, 0) == []


def test_places_fed_again_draw_nothing_anew(eager: EagerTalkerEngine, frames: Frames) -> None:
    """As after a preemption: the cache is lost, the frames are not."""
    expected, start = codes_of(eager), opened(eager)
    frames.open(start)
    layers = Layers(eager, frames)
    length = len(start.prompt.embeds)
    layers.feed(length)
    for _ in range(FRAMES - 2):
        layers.feed(1)
    again = Layers(eager, frames)
    follows = again.feed(length + FRAMES - 2)
    assert follows[length - 1 :] == [frame[0] for frame in expected[: FRAMES - 1]]
    assert again.feed(1) == [expected[-1][0]]
    assert read(frames, 0, FRAMES) == expected


def test_a_request_of_an_earlier_owner_goes_on(eager: EagerTalkerEngine, frames: Frames) -> None:
    expected = codes_of(eager)
    start = opened(eager, codes=torch.tensor(expected[:3]))
    frames.open(start)
    layers = Layers(eager, frames)
    assert layers.feed(len(start.prompt.embeds) + 3)[-1] == expected[3][0]
    assert layers.feed(1) == [expected[4][0]]
    assert read(frames, 3, 2) == expected[3:5]


def test_rows_of_others_change_nothing(eager: EagerTalkerEngine, frames: Frames) -> None:
    """Nobody's, an older generation's, a closed request's."""
    start = opened(eager)
    frames.open(start)
    gone = Handle(5, 0)
    frames.open(opened(eager, gone))
    frames.close(gone)
    frames.close(gone)
    last = len(start.prompt.embeds) - 1
    strangers = torch.tensor([0, Handle(3, 0).base + last, gone.base + last])
    width = eager._talker.config.hidden_size
    assert not frames.inputs(strangers).any()
    assert told(frames.speak(strangers, torch.randn(3, width))) == [0, 0, 0]
    layers = Layers(eager, frames)
    assert layers.feed(last + 1)[-1] == codes_of(eager)[0][0]


def test_more_rows_than_there_may_be_requests(eager: EagerTalkerEngine, frames: Frames) -> None:
    """Prompts, and requests that speak, in one step: who is due is found among them."""
    expected, handles = codes_of(eager), [Handle(slot, 0) for slot in (2, 5, 1)]
    for handle in handles:
        frames.open(opened(eager, handle))
    length = len(opened(eager).prompt.embeds)
    each = [Layers(eager, frames, handle) for handle in handles]
    assert each[1].feed(length)[-1] == expected[0][0]
    places = [torch.arange(length), torch.tensor([length]), torch.arange(length)]
    where = torch.cat([place + handle.base for place, handle in zip(places, handles, strict=True)])
    fed = torch.split(frames.inputs(where), [len(place) for place in places])
    with torch.inference_mode():
        hidden = [
            layers._talker.decode(row[None], [layers._cache])
            for layers, rows in zip(each, fed, strict=True)
            for row in rows
        ]
        follows = told(frames.speak(where, torch.cat(hidden)))
    assert [follows[length - 1], follows[length], follows[-1]] == [expected[frame][0] for frame in (0, 1, 0)]
    assert sum(code > 0 for code in follows) <= 3
    said = frames.read([(handle, 0, 2 if handle is handles[1] else 1) for handle in handles])
    found = [np.frombuffer(codes, "<i2").reshape(-1, 16).tolist() for codes in said]
    assert found == [expected[:1], expected[:2], expected[:1]]
