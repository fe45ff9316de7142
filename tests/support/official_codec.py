"""The records of the official codec (`tests/fixtures/official/make_codec.py`), and decoders of checkpoints."""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

import syrinx_stages
from syrinx_stages.model.checkpoint import load_module
from syrinx_stages.model.codec.decoder import CodecDecoder
from syrinx_stages.model.config import read_speech_tokenizer_config

OFFICIAL = Path(__file__).parents[1] / "fixtures" / "official" / "codec"
VOICE = Path(syrinx_stages.__file__).parent / "voice"


def expected() -> dict[str, Tensor]:
    """What the official package has given."""
    return load_file(OFFICIAL / "expected.safetensors")


def load_decoder(directory: Path = OFFICIAL) -> CodecDecoder:
    """Loads the decoder of a checkpoint."""
    decoder = CodecDecoder(read_speech_tokenizer_config(directory).decoder_config)
    load_module(decoder, directory / "speech_tokenizer", "decoder")
    return decoder.eval()


def decode(decoder: CodecDecoder, codes: Tensor, chunks: Sequence[int] = ()) -> Tensor:
    """Decodes the requests of a batch together in calls of `chunks` frames, then the rest in one."""
    state, parts, start = decoder.new_state(codes.shape[0]), [], 0
    for size in [*chunks, codes.shape[1]]:
        part = codes[:, start : start + size]
        if not part.shape[1]:
            break
        pcm, state = decoder(part, torch.full((codes.shape[0],), part.shape[1]), state)
        parts.append(pcm)
        start += size
    return torch.cat(parts, 1)


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """Returns the norm of the difference, as a part of that of what is wanted."""
    return ((found - wanted).norm() / wanted.norm()).item()
