"""espeak-ng's speech through the codec and back: what a perfect talker would sound like."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from syrinx_stages.contract.family import FAMILY
from syrinx_stages.model.checkpoint import load_module
from syrinx_stages.model.codec_decoder import CodecDecoder

from . import speak, synthesis
from .codec import encode
from .codec_model import Codec
from .config import TrainingConfig
from .export import export_codec
from .sentence import Sentence
from .shapes import decoder_config


def write(
    path: Path, config: TrainingConfig, codec: Codec, voice: str, sentences: Sequence[Sentence], device: torch.device
) -> None:
    """Writes the sentences as `voice` as the exported decoder plays them."""
    decoder = _exported(config, codec, device)
    rate = (config.synthesis.slowest + config.synthesis.fastest) // 2
    said = []
    for sentence in sentences:
        samples = synthesis.utterance(sentence, config.synthesis.speakers[voice][sentence.language], rate)
        said.append(speak.Said(_through(codec, decoder, samples, device), True))
    requests = [speak.Wanted(sentence=each, voice=voice, streaming=False, seed=0) for each in sentences]
    speak.write(path, requests, said)


def _exported(config: TrainingConfig, codec: Codec, device: torch.device) -> CodecDecoder:
    """The decoder as a checkpoint has it, in float16."""
    with TemporaryDirectory() as directory:
        export_codec(config.codec, codec.decoder, Path(directory))
        decoder = CodecDecoder(decoder_config(config.codec))
        load_module(decoder, Path(directory) / "speech_tokenizer", "decoder")
    return decoder.eval().to(device)


def _through(codec: Codec, decoder: CodecDecoder, heard: synthesis.Samples, device: torch.device) -> bytes:
    frames = np.array([len(heard) // FAMILY.samples_per_frame], np.int32)
    codes = encode(codec, torch.from_numpy(heard).to(device), frames).long()[None]
    lengths = torch.tensor([codes.shape[1]], device=device)
    pcm, _ = decoder(codes, lengths, decoder.new_state(1))
    samples = pcm[0].float().mul(32767).round().clamp(-32768, 32767).to(torch.int16)
    return bytes(samples.cpu().numpy().tobytes())
