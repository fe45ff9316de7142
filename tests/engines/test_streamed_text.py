"""Text that arrives while it is spoken: an engine generates the frames that it generates with the whole text."""

import support.interpreter  # noqa: F401, I001 (before any kernel)

import random

import pytest
from support import small_talker
from support.stages import bundled, request

from syrinx_stages.contract.messages import End, Sampling, SpeechRequest
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.streamed_text import StreamedText
from syrinx_stages.talker.cuda.engine import CudaTalkerEngine
from syrinx_stages.talker.eager_engine import EagerTalkerEngine
from syrinx_stages.talker.engine import TalkerEngine

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

TEXT = "The old teacher didn't find two heavy bags.  She waited 12 days, then: \n\nnothing!"
ITEM = request("a", TEXT, non_streaming_text=False, max_frames=40)


@pytest.fixture(scope="module")
def eager() -> EagerTalkerEngine:
    return EagerTalkerEngine(bundled())


def whole(engine: TalkerEngine, item: SpeechRequest, limit: int = 10_000) -> list[bytes | End]:
    engine.admit([engine.prepare(item, b"", None)])
    results: list[bytes | End] = []
    while len(results) < limit and not (results and isinstance(results[-1], End)):
        results.append(engine.read(engine.launch([item.id]))[item.id])
    engine.release(item.id)
    return results


class Speaking:
    """A request whose text is passed on piece by piece. Takes each frame as soon as the text allows it."""

    def __init__(self, engine: TalkerEngine, item: SpeechRequest, limit: int = 10_000) -> None:
        self.engine, self.item, self.limit = engine, item, limit
        self.text: StreamedText = engine.open_text(item)
        self.results: list[bytes | End] = []
        self._given = 0
        self._resident = False

    def feed(self, piece: str) -> None:
        self.text.feed(piece)
        self._pass_on()

    def end(self) -> None:
        self.text.end()
        self._pass_on()

    def restart(self) -> None:
        """Lets another owner continue: it replays the frames with the text so far."""
        if self._resident:
            self.engine.release(self.item.id)
            self._admit()

    def _admit(self) -> None:
        codes = b"".join(each for each in self.results if isinstance(each, bytes))
        self.engine.admit([self.engine.prepare(self.item, codes, None, self.text)])
        self._given, self._resident = len(self.text.ids), True

    def _pass_on(self) -> None:
        if not self._resident:
            if not self.text.ids:
                return
            self._admit()
        elif self.text.ids[self._given :] or self.text.ended:
            self.engine.extend(self.item.id, self.text.ids[self._given :], self.text.ended)
            self._given = len(self.text.ids)
        while len(self.results) < self.limit and not (self.results and isinstance(self.results[-1], End)):
            if not self.text.ended and len(self.results) >= self._given - self.engine.text_lookahead:
                return
            self.results.append(self.engine.read(self.engine.launch([self.item.id]))[self.item.id])


@pytest.fixture(scope="module")
def expected(eager: EagerTalkerEngine) -> list[bytes | End]:
    return whole(eager, ITEM)


@pytest.mark.parametrize("seed", range(3))
def test_frames_do_not_depend_on_the_cuts(eager: EagerTalkerEngine, expected: list[bytes | End], seed: int) -> None:
    chance, speaking, at = random.Random(seed), Speaking(eager, ITEM), 0
    while at < len(TEXT):
        size = chance.choice((1, 1, 2, 3, 7, 30))
        speaking.feed(TEXT[at : at + size])
        at += size
        if chance.random() < 0.2:
            speaking.restart()
    assert len(speaking.results) > 10, "frames are generated before the text is complete"
    speaking.end()
    assert speaking.results == expected
    assert len(expected) > 20


@pytest.mark.night
def test_text_of_a_gpu_grows(voice: Checkpoint) -> None:
    text = small_talker.text(80)
    item = small_talker.request(
        "a", text, non_streaming_text=False, sampling=Sampling(top_k=0, residual_top_k=0, min_frames=99)
    )
    frames = 4
    engine = CudaTalkerEngine(voice, 1)
    engine.warm_up()
    expected = whole(engine, item, frames)
    speaking = Speaking(engine, item, frames)
    for start in range(0, len(text), 40):
        speaking.feed(text[start : start + 40])
    speaking.end()
    assert speaking.results == expected
    engine.release("a")
