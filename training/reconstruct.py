"""Encodes and decodes espeak-ng's speech: the quality that a perfect talker would reach with this codec."""

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
from .checkpoint_config import decoder_config
from .codec import encode
from .codec_model import Codec
from .config import TrainingConfig
from .corpus import Sentence
from .export import export_codec


def write(
    path: Path, config: TrainingConfig, codec: Codec, voice: str, sentences: Sequence[Sentence], device: torch.device
) -> None:
    """Writes a case file of the sentences, read by `voice` and passed through the encoder and the exported decoder."""
    decoder = _export_and_load(config, codec, device)
    speech = []
    for sentence in sentences:
        espeak_voice = config.synthesis.speakers[voice][sentence.language]
        samples = synthesis.utterance(sentence, espeak_voice, config.synthesis.mean_words_per_minute)
        speech.append(speak.Speech(_reconstruct(codec, decoder, samples, device), True))
    utterances = [speak.Utterance(sentence=each, voice=voice, streaming=False, seed=0) for each in sentences]
    speak.write(path, utterances, speech)


def _export_and_load(config: TrainingConfig, codec: Codec, device: torch.device) -> CodecDecoder:
    """Returns the decoder with its weights rounded to float16, as in a checkpoint."""
    with TemporaryDirectory() as directory:
        export_codec(config.codec, codec.decoder, Path(directory))
        decoder = CodecDecoder(decoder_config(config.codec))
        load_module(decoder, Path(directory) / "speech_tokenizer", "decoder")
    return decoder.eval().to(device)


def _reconstruct(codec: Codec, decoder: CodecDecoder, original: synthesis.Samples, device: torch.device) -> bytes:
    frames = np.array([len(original) // FAMILY.samples_per_frame], np.int32)
    codes = encode(codec, torch.from_numpy(original).to(device), frames).long()[None]
    lengths = torch.tensor([codes.shape[1]], device=device)
    pcm, _ = decoder(codes, lengths, decoder.new_state(1))
    samples = pcm[0].float().mul(32767).round().clamp(-32768, 32767).to(torch.int16)
    return bytes(samples.cpu().numpy().tobytes())
