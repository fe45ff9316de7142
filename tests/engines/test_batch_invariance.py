"""On a CPU a request's states, logits and codes are bit-identical for any other requests in the batch."""

from collections.abc import Sequence

import pytest
import torch

from support import talker_recipe as recipe
from support.talker import speech_request, write_checkpoint
from syrinx_stages.contract.messages import Sampling
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.sampling import Sampler
from syrinx_stages.model.talker import KVCache, Talker
from syrinx_stages.talker.eager_engine import REPLAY_FRAMES, EagerTalkerEngine
from syrinx_stages.talker.inputs import embed
from syrinx_stages.talker.prompt import PromptBuilder

OTHERS = [1, 7, 40]
FRAMES = 3


@pytest.fixture(scope="module", params=["bundled", "1b7", "0b6"])
def checkpoint(request, tmp_path_factory) -> Checkpoint:
    if request.param == "bundled":
        return Checkpoint("bundled")
    return Checkpoint(str(write_checkpoint(tmp_path_factory.mktemp("m") / "x", "custom_voice", request.param)))


@pytest.fixture(scope="module")
def talker(checkpoint: Checkpoint) -> Talker:
    return checkpoint.load_talker()


class Row:
    """One request, generated frame by frame in any batch."""

    def __init__(self, checkpoint: Checkpoint, talker: Talker, number: int, age: int) -> None:
        voice = next(iter(checkpoint.config.talker_config.speakers))
        text = "word " * (number % 5) + "and so on."
        sampling = Sampling(temperature=0.9 if number % 3 else 0.0, top_k=50 - number % 40, top_p=1 - number % 2 / 10)
        fields = {"text": text, "voice": voice, "non_streaming_text": number % 2 == 0}
        self.request = speech_request("custom_voice", fields, sampling, seed=number)
        prompt = PromptBuilder(checkpoint.load_tokenizer(), checkpoint.config).build(self.request)
        self.prompt = embed(talker, prompt)
        self.cache: KVCache = talker.new_cache()
        self.hidden = talker.prefill(self.prompt.embeds, self.cache)
        self.seen = torch.zeros(talker.config.vocab_size, dtype=torch.bool)
        self.frame = 0
        self.states: list[torch.Tensor] = []
        self.codes: list[list[int]] = []
        for _ in range(age):
            step(talker, [self])


def step(talker: Talker, rows: Sequence[Row]) -> None:
    """Generates one frame of all rows in one batch."""
    hidden = torch.stack([row.hidden for row in rows])
    sampler = Sampler(
        [row.request.sampling for row in rows], [row.request.seed for row in rows], talker.config, talker.device
    )
    draw = sampler.step(torch.tensor([row.frame for row in rows]))
    logits = talker.logits(hidden)
    codes = talker.predict(hidden, draw.code0(logits, torch.stack([row.seen for row in rows])), draw.residual)
    text = torch.stack([row.prompt.text_row(row.frame) for row in rows])
    states = talker.decode(talker.embed_frame(codes) + text, [row.cache for row in rows])
    for row, state, frame, scores in zip(rows, states, codes, logits, strict=True):
        row.hidden = state
        row.seen[frame[0]] = True
        row.frame += 1
        row.codes.append(frame.tolist())
        row.states += [state, scores]


@torch.inference_mode()
def test_codes_are_the_same_alone_and_in_a_batch(checkpoint: Checkpoint, talker: Talker) -> None:
    """Other rows differ in age, text and sampling, and join and leave from frame to frame."""
    alone = Row(checkpoint, talker, 1, age=0)
    for _ in range(FRAMES):
        step(talker, [alone])
    pool = [Row(checkpoint, talker, 2 + i, age=i % 4) for i in range(max(OTHERS))]
    for count in OTHERS:
        together = Row(checkpoint, talker, 1, age=0)
        for frame in range(FRAMES):
            others = pool[frame : frame + count] if count < len(pool) else pool
            place = (frame * 3) % (count + 1)
            step(talker, [*others[:place], together, *others[place:]])
        assert together.codes == alone.codes, count
        assert all(torch.equal(a, b) for a, b in zip(together.states, alone.states, strict=True)), count


@torch.inference_mode()
def test_predictor_logits_are_bit_identical_in_any_batch(talker: Talker) -> None:
    generator = torch.Generator().manual_seed(5)
    hidden = torch.randn(41, talker.config.hidden_size, generator=generator)
    frames = torch.randint(0, talker.config.codebook_size, (41, 16), generator=generator)

    def logits(rows: torch.Tensor) -> torch.Tensor:
        kept = []

        def draw(values: torch.Tensor, group: int) -> torch.Tensor:
            kept.append(values.clone())
            return frames[rows, group]

        talker.predict(hidden[rows], frames[rows, 0], draw)
        return torch.stack(kept, 1)

    everything = torch.arange(41)
    whole, embedded = logits(everything), talker.embed_frame(frames)
    for count in (1, 2, 3, 8, 17):
        for start in (0, 5, 41 - count):
            rows = everything[start : start + count]
            assert torch.equal(logits(rows), whole[rows]), (count, start)
            assert torch.equal(talker.embed_frame(frames[rows]), embedded[rows]), (count, start)


@torch.inference_mode()
def test_cache_growth_does_not_change_a_state(talker: Talker) -> None:
    """A cache that grows beyond its first capacity gives the states of one allocated in full."""
    inputs = torch.randn(132, talker.config.hidden_size, generator=torch.Generator().manual_seed(1))
    growing, roomy = talker.new_cache(), talker.new_cache()
    roomy.extend(300)
    roomy.length = 0
    for cache in (growing, roomy):
        talker.prefill(inputs[:120], cache)
    for position in range(120, len(inputs)):
        states = [talker.decode(inputs[position : position + 1], [cache]) for cache in (growing, roomy)]
        assert torch.equal(*states), position
    assert growing._data.numel() < roomy._data.numel()


@torch.inference_mode()
def test_a_replayed_request_has_the_state_of_its_previous_owner(checkpoint: Checkpoint) -> None:
    engine = EagerTalkerEngine(checkpoint)
    voice = next(iter(checkpoint.config.talker_config.speakers))
    fields = {"text": "word " * 9, "voice": voice, "non_streaming_text": False}
    request = speech_request("custom_voice", fields, Sampling(min_frames=REPLAY_FRAMES + 4), seed=1)
    engine.admit([engine.prepare(request, b"", None)])
    codes = b""
    for count in range(1, REPLAY_FRAMES + 4):
        frame = engine.launch([request.id])[request.id]
        assert isinstance(frame, bytes)
        codes += frame
        if count in (1, 2, REPLAY_FRAMES, REPLAY_FRAMES + 1, REPLAY_FRAMES + 2):
            owner, successor = engine._rows[request.id], engine._prefill(engine.prepare(request, codes, None))
            assert owner.last_frame is not None and successor.last_frame is not None
            assert torch.equal(successor.last_frame, owner.last_frame), count
            assert torch.equal(successor.hidden, owner.hidden), count
            assert torch.equal(successor.seen, owner.seen) and successor.frames == owner.frames == count
            for old, new in zip(owner.cache._layers, successor.cache._layers, strict=True):
                length = owner.cache.length
                assert successor.cache.length == length and torch.equal(new[..., :length, :], old[..., :length, :])


@torch.inference_mode()
def test_prefill_and_decode_agree(talker: Talker) -> None:
    """Close, but not bit-identical, because the order of summation differs."""
    inputs = torch.randn(20, talker.config.hidden_size, generator=torch.Generator().manual_seed(2))
    whole, stepped = talker.new_cache(), talker.new_cache()
    state = talker.prefill(inputs, whole)
    for row in inputs:
        last = talker.decode(row[None], [stepped])[0]
    assert torch.allclose(state, last, rtol=1e-4, atol=1e-4 * float(state.abs().max()))


def test_recipe_widths_have_no_short_tail() -> None:
    """Elementwise kernels round a short tail differently, so other widths would void these tests."""
    assert not recipe.WIDTH % 32 and not recipe.CODES % 32
