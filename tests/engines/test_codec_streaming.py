"""Streaming: on one CPU thread, samples are a bit-exact function of the request's own codes."""

import random
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from support.official_codec import VOICE, decode, load_decoder
from support.small_codec import CONFIG, random_decoder
from syrinx_stages.model.codec.decoder import CodecDecoder
from syrinx_stages.model.codec.state import DecoderState

FRAME = 1920
STREAMS, FRAMES = 3, 28
"""More frames than the fixture's attention window, which is 24."""


def random_codes(rows: int, frames: int, size: int, seed: int) -> Tensor:
    return torch.randint(0, size, (rows, frames, 16), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def decoder() -> CodecDecoder:
    return load_decoder()


@pytest.fixture(scope="module")
def voice() -> CodecDecoder:
    return load_decoder(VOICE)


@pytest.fixture(scope="module")
def codes() -> Tensor:
    return random_codes(STREAMS, FRAMES, 32, seed=0)


@pytest.fixture(scope="module")
def whole(decoder: CodecDecoder, codes: Tensor) -> Tensor:
    """Each stream decoded alone, in one call."""
    return torch.cat([decode(decoder, stream[None]) for stream in codes])


@pytest.mark.parametrize("chunks", [[], [1] * FRAMES, [2, 5, 1, 9], [25, 1, 1]], ids=str)
def test_chunking_does_not_change_samples(
    decoder: CodecDecoder, codes: Tensor, whole: Tensor, chunks: list[int]
) -> None:
    assert torch.equal(decode(decoder, codes[:1], chunks), whole[:1])


@pytest.mark.parametrize("seed", range(3))
def test_batches_of_different_ages_do_not_change_samples(
    decoder: CodecDecoder, codes: Tensor, whole: Tensor, seed: int
) -> None:
    """Each call decodes some requests of an arena, in any order and of any lengths, with padding and a scratch row."""
    choose = random.Random(seed)
    arena = decoder.new_state(STREAMS + 1)
    arena.data.normal_()  # State of earlier requests, which a reset must clear.
    arena.position.fill_(77)
    *own, scratch = choose.sample(range(STREAMS + 1), STREAMS + 1)
    arena.reset_(torch.tensor(own))
    done = [0] * STREAMS
    decoded: list[list[Tensor]] = [[] for _ in range(STREAMS)]
    while min(done) < FRAMES:
        waiting = [stream for stream in range(STREAMS) if done[stream] < FRAMES]
        rows = choose.sample(waiting, choose.randint(1, len(waiting)))
        fresh = [choose.randint(1, min(25, FRAMES - done[row])) for row in rows]
        spare = choose.randint(0, 1)
        batch = torch.full((len(rows) + spare, max(fresh) + choose.randint(0, 2), 16), 31)
        for index, (row, count) in enumerate(zip(rows, fresh, strict=True)):
            batch[index, :count] = codes[row, done[row] : done[row] + count]
        used = torch.tensor([own[row] for row in rows] + [scratch] * spare)
        pcm, state = decoder(batch, torch.tensor(fresh + [1] * spare), arena.gather(used))
        arena.scatter_(used, state)
        for index, (row, count) in enumerate(zip(rows, fresh, strict=True)):
            decoded[row].append(pcm[index, : count * FRAME])
            done[row] += count
            assert arena.position[own[row]] == done[row]
    for stream in range(STREAMS):
        assert torch.equal(torch.cat(decoded[stream]), whole[stream])


def test_input_state_and_rows_of_length_zero_are_unchanged(decoder: CodecDecoder, codes: Tensor) -> None:
    _, state = decoder(codes[:2, :5], torch.tensor([5, 3]), decoder.new_state(2))
    data, position = state.data.clone(), state.position.clone()
    _, after = decoder(codes[:2, 5:9], torch.tensor([4, 0]), state)
    assert torch.equal(state.data, data) and torch.equal(state.position, position)
    assert torch.equal(after.data[1], data[1]) and after.position.tolist() == [9, 3]
    assert not torch.equal(after.data[0], data[0])


def test_chunking_and_batching_the_bundled_voice_beyond_its_attention_window(voice: CodecDecoder) -> None:
    codes = random_codes(3, 80, 256, seed=1)
    alone = decode(voice, codes[:1])
    assert torch.equal(decode(voice, codes[:1], [2, 2, 4, 8, 12, 1, 1, 5, 30]), alone)
    assert torch.equal(decode(voice, codes, [2, 4, 8, 12, 50])[:1], alone)


@pytest.mark.parametrize(
    "changes",
    [
        {"intermediate_size": 100},
        {"intermediate_size": 17, "hidden_size": 33},
        {"hidden_size": 7, "latent_dim": 33, "codebook_dim": 6, "head_dim": 24},
        {"hidden_size": 36, "latent_dim": 28, "codebook_dim": 20, "intermediate_size": 30, "decoder_dim": 36},
        {"hidden_size": 50, "latent_dim": 10, "num_attention_heads": 9, "num_key_value_heads": 3, "decoder_dim": 8},
        {"head_dim": 40, "sliding_window": 72, "intermediate_size": 104, "num_attention_heads": 1,
         "num_key_value_heads": 1},
        {"head_dim": 18, "sliding_window": 72, "num_attention_heads": 1, "num_key_value_heads": 1},
        {"head_dim": 6, "sliding_window": 24, "num_attention_heads": 3, "num_key_value_heads": 1},
        {"sliding_window": 2, "upsample_rates": (1, 2), "upsampling_ratios": (3,), "decoder_dim": 20},
    ],
    ids=str,
)  # fmt: skip
@torch.inference_mode()
def test_chunking_and_batching_of_unusual_widths(changes: dict[str, Any]) -> None:
    """Widths that are no multiple of a vector register: kernels round the last elements of a tensor differently."""
    decoder = random_decoder(msgspec.structs.replace(CONFIG, **changes))
    codes = random_codes(3, 16, CONFIG.codebook_size, seed=1)
    alone = [decode(decoder, stream[None]) for stream in codes]
    for rows, chunks in ((1, [1] * 16), (2, [2, 2, 4]), (3, [3, 1, 5, 1, 1])):
        assert torch.equal(decode(decoder, codes[:rows], chunks), torch.cat(alone[:rows])), (rows, chunks)


def rebuild(decoder: CodecDecoder, codes: Tensor, prefilled: int, block: int) -> DecoderState:
    """Returns the state after codes [1, frames, 16] of which the first are prefilled, `block` at a time."""
    state = decoder.new_state(1)
    for start in range(0, prefilled, block):
        part = codes[:, start : min(start + block, prefilled)]
        state = decoder.prefill(part, torch.tensor([part.shape[1]]), state)
    return decoder(codes[:, prefilled:], torch.tensor([codes.shape[1] - prefilled]), state)[1]


@pytest.mark.parametrize("prefilled", [1, 24, 150])
@torch.inference_mode()
def test_prefilled_frames_leave_the_state_of_decoded_ones(voice: CodecDecoder, prefilled: int) -> None:
    """Prefills shorter and longer than the attention window, as one block and in several."""
    codes = random_codes(1, prefilled + voice.context_frames, 256, seed=prefilled)
    decoded = rebuild(voice, codes, 0, 1)
    for block in (prefilled, 7):
        state = rebuild(voice, codes, prefilled, block)
        assert torch.equal(state.data, decoded.data) and torch.equal(state.position, decoded.position)
    assert not torch.equal(rebuild(voice, codes, prefilled + 1, 7).data, decoded.data)


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": 7, "latent_dim": 33, "codebook_dim": 6, "head_dim": 24},
        {"sliding_window": 2, "upsample_rates": (1, 2), "upsampling_ratios": (3,), "decoder_dim": 20},
        {"upsample_rates": (5, 4, 3), "upsampling_ratios": (2, 2), "decoder_dim": 48},
    ],
    ids=str,
)
@torch.inference_mode()
def test_context_follows_from_the_shape_of_the_decoder(changes: dict[str, Any]) -> None:
    decoder = random_decoder(msgspec.structs.replace(CONFIG, **changes))
    codes = random_codes(1, 12 + decoder.context_frames, CONFIG.codebook_size, seed=1)
    decoded = rebuild(decoder, codes, 0, 1)
    assert torch.equal(rebuild(decoder, codes, 12, 5).data, decoded.data)
    assert not torch.equal(rebuild(decoder, codes, 13, 5).data, decoded.data)


def test_loading_new_weights_replaces_derived_tables(decoder: CodecDecoder, codes: Tensor) -> None:
    """Tables derived from the weights at first use are recomputed."""
    other = load_decoder()
    before = decode(other, codes[:1, :2])
    other.load_state_dict({name: tensor * 1.1 for name, tensor in decoder.state_dict().items()})
    assert not torch.equal(decode(other, codes[:1, :2]), before)
    other.load_state_dict(decoder.state_dict())
    assert torch.equal(decode(other, codes[:1, :2]), before)
