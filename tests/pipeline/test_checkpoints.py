"""Checkpoints of every kind through talker and codec: voice clones and designed voices."""

from pathlib import Path

import numpy as np
import pytest
import torch

from support import small_checkpoint
from support.stages import ReceivedAudio, pipeline, receive, request, submit, synthesize
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.contract.keys import REFERENCE_POSITION, StreamKind
from syrinx_stages.contract.messages import Codes, EndReason, Reference, Sampling, TaskType
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.layers import pack_weights

FRAMES = 30


@pytest.fixture(scope="module")
def reference() -> bytes:
    """A tone with rising pitch, 20 frames (1.6 s) of float32 samples."""
    seconds = np.arange(int(1.6 * FAMILY.sample_rate)) / FAMILY.sample_rate
    return (0.25 * np.sin(2 * np.pi * (200 + 150 * seconds) * seconds)).astype("<f4").tobytes()


def clone(name: str, **fields: object):
    fields = {"reference_text": "Okay. Yeah.", "language": "english", "seed": 5, **fields}
    sampling = Sampling(min_frames=FRAMES)
    return request(
        name, task_type=TaskType.BASE, voice=None, has_reference=True, max_frames=FRAMES, sampling=sampling, **fields
    )


def frames_of(received: ReceivedAudio) -> int:
    return len(received.pcm) // FAMILY.frame_bytes


@pytest.mark.parametrize("whole_text", [True, False], ids=["whole text", "streamed text"])
async def test_a_clone_continues_its_reference_without_repeating_it(
    base: Checkpoint, reference: bytes, whole_text: bool
) -> None:
    """Like the official package: decodes reference and speech together, then drops the reference."""
    async with pipeline(checkpoint=base) as stages:
        connector = stages.connector()
        ticket = await submit(connector, clone("a", non_streaming_text=whole_text), reference)
        received = await receive(connector, "a")
        entries = await connector.history("a", StreamKind.CODES)
        await connector.release(ticket)
    assert (entries[1].position, type(entries[1].entry)) == (REFERENCE_POSITION, Reference)
    generated = [
        np.frombuffer(item.entry.codes, "<i2") for item in entries if isinstance(item.entry, Codes | Reference)
    ]
    codes = torch.from_numpy(np.concatenate(generated).reshape(1, -1, 16).astype(np.int64))
    assert codes.shape[1] == 20 + FRAMES
    decoder = base.load_codec_decoder()
    pack_weights(decoder)  # As the engine: products of float16 weights round differently.
    pcm, _ = decoder(codes, torch.tensor([codes.shape[1]]), decoder.new_state(1))
    samples = (pcm[0, 20 * FAMILY.samples_per_frame :] * 32767).round().to(torch.int16).numpy()
    assert received.pcm == samples.tobytes()


async def test_a_reference_is_decoded_once_for_all_its_clones(base: Checkpoint, reference: bytes) -> None:
    async with pipeline(checkpoint=base) as stages:
        connector = stages.connector()
        codec = stages.worker("codec")
        first = await synthesize(connector, clone("a"), reference)
        decode, decoded = codec.engine.launch, []

        def launch(ids: list[str], codes: list[list[bytes]], shape: tuple[int, int]) -> object:
            decoded.extend(map(len, codes))
            return decode(ids, codes, shape)

        codec.engine.launch = launch
        again = await synthesize(connector, clone("b"), reference)
        assert sum(decoded) == FRAMES
        samples = np.frombuffer(reference, "<f4")
        other = await synthesize(connector, clone("c"), samples[::-1].tobytes())
    assert again.pcm == first.pcm != other.pcm
    assert sum(decoded) > 2 * FRAMES, "another reference is decoded"


async def test_a_clone_from_the_x_vector_needs_no_text_and_sends_no_reference(
    base: Checkpoint, reference: bytes
) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, len(reference) // 4).astype("<f4").tobytes()
    async with pipeline(checkpoint=base) as stages:
        connector = stages.connector()
        await submit(connector, clone("a", x_vector_only=True, reference_text=None), reference)
        alone = await receive(connector, "a")
        entries = await connector.history("a", StreamKind.CODES)
        other = await synthesize(connector, clone("b", x_vector_only=True, reference_text=None), noise)
    assert not any(isinstance(item.entry, Reference) for item in entries)
    assert frames_of(alone) == frames_of(other) == FRAMES
    assert alone.pcm != other.pcm, "another voice sounds different"


async def test_a_designed_voice_follows_its_instructions(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(small_checkpoint.write(tmp_path / "model", "voice_design")))
    async with pipeline(checkpoint=checkpoint) as stages:
        fields = {"task_type": TaskType.VOICE_DESIGN, "voice": None, "seed": 1, "max_frames": 12}
        received = [
            await synthesize(stages.connector(), request(name, instructions=instructions, **fields))
            for name, instructions in (("a", "A calm old man."), ("b", "A calm old man."), ("c", "An excited child."))
        ]
    assert received[0].pcm == received[1].pcm != received[2].pcm


async def test_a_too_long_prompt_is_refused_with_its_field(base: Checkpoint, reference: bytes) -> None:
    async with pipeline(checkpoint=base) as stages:
        received = await synthesize(stages.connector(), clone("a", text="word " * 600, is_divided=False), reference)
        good = await synthesize(stages.connector(), clone("b"), reference)
    assert (received.end.reason, received.end.param) == (EndReason.ERROR, "input")
    assert "shorter" in received.end.message
    assert frames_of(good) == FRAMES
