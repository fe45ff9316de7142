"""The memory of a codec on a CPU: weights, the state of `max_resident` streams, and the activations of few frames."""

import pytest

from support.small_codec import random_decoder, random_frames
from syrinx_stages.codec.eager_engine import MAX_FRAMES, EagerCodecEngine


@pytest.mark.parametrize(("rows", "frames"), [(3, 1), (7, 12), (40, 4), (2, MAX_FRAMES + 8)])
def test_a_large_call_is_decoded_in_parts_with_the_same_audio(rows: int, frames: int) -> None:
    decoder = random_decoder()
    decoded = []
    decoder.register_forward_pre_hook(lambda _, arguments: decoded.append(arguments[0].shape[:2]))
    engine = EagerCodecEngine(decoder, rows)
    streams = {str(row): random_frames(2 * frames, seed=row) for row in range(rows)}
    for name in streams:
        engine.open(name)
    pcm = {name: b"" for name in streams}
    for start in (0, frames):
        part = [each[start : start + frames] for each in streams.values()]
        for name, samples in zip(pcm, engine.launch(list(pcm), part, (rows, frames)), strict=True):
            pcm[name] += samples
    assert max(count * length for count, length in decoded) <= max(MAX_FRAMES, frames)
    for name, each in streams.items():
        engine.open(name)
        assert engine.launch([name], [each], (1, 2 * frames)) == [pcm[name]]
