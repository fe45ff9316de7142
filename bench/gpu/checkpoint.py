"""Writes checkpoints with the official shapes and random weights, for machines without access to the real ones.

`python -m gpu.checkpoint DIRECTORY [--size 0b6|1b7] [--base]` uses the official layout and the sizes published by Qwen.
The output is noise. The speed is that of the real checkpoint, with two differences that the results mention: EOS is
never sampled, so requests set the utterance length, and the audio is audible from the first sample on.
"""

import argparse
import json
import math
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import models, pre_tokenizers, trainers
from torch import Tensor, nn

from syrinx_operator.commands.bench.load import corpus
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.codec.decoder import CodecDecoder
from syrinx_stages.model.config import ModelType, TalkerConfig, read_model_config, read_speech_tokenizer_config
from syrinx_stages.model.layers import checkpoint_tensors
from syrinx_stages.model.speaker_encoder import SpeakerEncoder
from syrinx_stages.model.talker import Talker

OFFICIAL: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("official.json").read_bytes())
"""`config` is `config.json` of size 1b7; the other files are equal for both sizes: `speech_tokenizer` is
`speech_tokenizer/config.json`, `preprocessor` the file beside it, `generation` is `generation_config.json`."""
HIDDEN = {"0b6": (1024, 3072), "1b7": (2048, 6144)}
"""Width and MLP width of the talker, by size: their only difference."""
SIZES = tuple(HIDDEN)
ENCODER = {"hidden_size": 512, "num_hidden_layers": 8, "num_quantizers": 32}
"""Arguments of transformers' `MimiConfig` of a Base checkpoint's `encoder_config`."""
VOCAB_SIZE = 4000
"""Of the tokenizer: every word of the benchmark's sentences becomes one token, about as in Qwen's tokenizer."""
FIRST_SPECIAL_ID = 151_643
"""Of Qwen's tokenizer."""
NAMED_TOKENS = ("im_start", "im_end", "tts_pad", "tts_bos", "tts_eos")
PLAIN = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
LOGIT_STD = 3.0
"""Makes some dozens of codes likely, as in a real checkpoint."""


def write_configs(directory: Path, size: str, *, base: bool = False) -> None:
    """Writes a CustomVoice or Base checkpoint of a size (`0b6`, `1b7`) without its weights."""
    speech_tokenizer = directory / "speech_tokenizer"
    speech_tokenizer.mkdir(parents=True, exist_ok=True)
    settings = talker_settings(size, write_tokenizer(directory))
    codec = OFFICIAL["speech_tokenizer"]
    if base:
        settings |= {"tts_model_type": "base", "speaker_encoder_config": {"enc_dim": HIDDEN[size][0]}}
        settings["talker_config"] |= {"spk_id": {}, "spk_is_dialect": {}}
        codec = codec | {"encoder_config": ENCODER}
    (directory / "config.json").write_text(json.dumps(settings, indent=1))
    (directory / "generation_config.json").write_text(json.dumps(OFFICIAL["generation"], indent=1))
    (speech_tokenizer / "config.json").write_text(json.dumps(codec, indent=1))
    (speech_tokenizer / "preprocessor_config.json").write_text(json.dumps(OFFICIAL["preprocessor"], indent=1))


def write_weights(directory: Path, seed: int = 0, device: str | None = None) -> None:
    """Writes the weights that the configs in `directory` require; they depend on seed and device alone."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    generator = torch.Generator(device).manual_seed(seed)
    model = read_model_config(directory)
    config = model.talker_config
    decoder = read_speech_tokenizer_config(directory).decoder_config
    talker = {
        name: tensor.cpu() for name, tensor in _random_tensors(shapes(Talker, config, "talker"), config, generator)
    }
    audio = {
        name: random_tensor(codec_std(name, shape), shape, generator).cpu()
        for name, shape in shapes(CodecDecoder, decoder, "decoder")
    }
    if model.tts_model_type is ModelType.BASE:
        talker |= {
            name: random_tensor(encoder_std(name, shape), shape, generator).cpu()
            for name, shape in shapes(SpeakerEncoder, model.speaker_encoder_config, "speaker_encoder")
        }
        audio |= _encoder_tensors(seed)
    save_file(talker, directory / "model.safetensors")
    save_file(audio, directory / "speech_tokenizer" / "model.safetensors")


def _encoder_tensors(seed: int) -> dict[str, Tensor]:
    """Returns the tensors of the codec's encoder, as transformers initializes them, with random codebooks."""
    transformers: Any = import_module("transformers")  # Only Base checkpoints need it.
    torch.manual_seed(seed)
    mimi = transformers.MimiModel(transformers.MimiConfig(**ENCODER))
    tensors = {f"encoder.{name}": tensor for name, tensor in mimi.state_dict().items()}
    return {
        name: torch.randn_like(tensor) if name.endswith("embed_sum") else tensor.contiguous()
        for name, tensor in tensors.items()
        if not name.removeprefix("encoder.").startswith(("decoder", "upsample"))
    }


class RandomCheckpoint(Checkpoint):
    """A checkpoint whose talker weights are generated when loaded; the same that `write_weights` writes."""

    def load_talker(self, *skip: str) -> Talker:
        """Returns the talker, with the same bfloat16 weights in any dtype. Raises ValueError for `skip`."""
        if skip:
            raise ValueError(f"{skip[0]}: modules of a random talker cannot be skipped")
        return random_talker(self.config.talker_config, self.device, self.dtype)


def random_talker(config: TalkerConfig, device: torch.device, dtype: torch.dtype, seed: int = 0) -> Talker:
    """Returns a talker with the same bfloat16 weights in any dtype."""
    default_dtype = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            talker = Talker(config)
    finally:
        torch.set_default_dtype(default_dtype)
    slots = dict(checkpoint_tensors(talker, "talker"))
    shapes = [(name, slot.shape) for name, slot in slots.items()]
    with torch.no_grad():
        for name, tensor in _random_tensors(shapes, config, torch.Generator(device).manual_seed(seed)):
            slots[name].target.copy_(tensor)
    return talker.eval().requires_grad_(False)


def _random_tensors(
    tensors: Iterable[tuple[str, tuple[int, ...]]], config: TalkerConfig, generator: torch.Generator
) -> Iterator[tuple[str, Tensor]]:
    """Yields the talker's tensors, given their official names and shapes in order."""
    for name, shape in tensors:
        tensor = random_tensor(talker_std(name, shape, config.num_hidden_layers), shape, generator).to(torch.bfloat16)
        if name == "talker.codec_head.weight":
            # The top 50 of some 2,000 logits are all above zero, so EOS is never sampled.
            tensor[config.codec_eos_token_id] = 0
        yield name, tensor


def talker_settings(size: str, assistant: int) -> dict[str, Any]:
    """Returns `config.json` of a size. assistant: the tokenizer's id of the word "assistant"."""
    settings = OFFICIAL["config"] | {"tts_model_size": size, "assistant_token_id": assistant}
    hidden, intermediate = HIDDEN[size]
    talker = settings["talker_config"] | {"hidden_size": hidden, "intermediate_size": intermediate}
    return settings | {"talker_config": talker}


def shapes(module_class: type[nn.Module], config: Any, prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields the official name and shape of every tensor of a module, without allocating it."""
    with torch.device("meta"):
        module = module_class(config)
    for name, slot in checkpoint_tensors(module, prefix):
        yield name, slot.shape


def talker_std(name: str, shape: tuple[int, ...], layers: int) -> float | None:
    """Returns the standard deviation of a tensor that keeps activations near one; None for a tensor of ones."""
    if name.endswith(".bias"):
        return 0.0
    if "norm" in name:
        return None
    if "text_embedding" in name:
        return 1.0
    if "embedding" in name:
        return 0.25  # Sixteen embeddings are summed.
    std = 1 / math.sqrt(shape[1])
    if name.endswith(("o_proj.weight", "down_proj.weight")):
        return std / math.sqrt(2 * layers)
    return std * LOGIT_STD if "_head" in name else std


def encoder_std(name: str, shape: tuple[int, ...]) -> float:
    """Returns the standard deviation of a tensor of the speaker encoder."""
    return 0.0 if name.endswith(".bias") else 1 / math.sqrt(math.prod(shape[1:]))


LAST_CONV = "decoder.decoder.6.conv.weight"


def codec_std(name: str, shape: tuple[int, ...]) -> float | None:
    """Like `talker_std`, for the codec; its noise reaches about a tenth of full scale."""
    last = name.rpartition(".")[2]
    if last in ("bias", "alpha", "beta"):
        return 0.0
    if "norm" in name or last == "cluster_usage":
        return None
    if last in ("gamma", "scale", "embedding_sum"):
        return 0.1 if last != "embedding_sum" else 1.0
    if len(shape) == 2:
        return 1 / math.sqrt(shape[1])
    if name == LAST_CONV:
        return 0.05 / math.sqrt(shape[1] * shape[2])
    if ".block.1." in name:
        return 1 / math.sqrt(2 * shape[0])  # Transposed, two taps per sample.
    if name.startswith("decoder.upsample") and ".0.conv." in name:
        return 1 / math.sqrt(shape[0])  # Transposed, one tap per sample.
    gain = 0.3 if name.endswith("conv2.conv.weight") else 1.0
    return gain / math.sqrt(shape[1] * shape[2])


def random_tensor(std: float | None, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Returns a random tensor with this standard deviation; ones for None."""
    if std is None:
        return torch.ones(shape)
    return torch.randn(shape, generator=generator, device=generator.device).mul_(std)


def write_tokenizer(directory: Path) -> int:
    """Writes a byte-level BPE trained on the benchmark's sentences; returns the id of "assistant"."""
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB_SIZE, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator([*corpus(), "assistant", "user"], trainer)
    bpe.model.save(str(directory))
    _fill_vocabulary(directory / "vocab.json")
    named = {OFFICIAL["config"][f"{name}_token_id"]: f"<|{name}|>" for name in NAMED_TOKENS}
    tokens = {
        str(number): {"content": named.get(number, f"<|special_{number}|>"), "special": True, **PLAIN}
        for number in range(FIRST_SPECIAL_ID, max(named) + 1)
    }
    settings = {"tokenizer_class": "Qwen2Tokenizer", "add_prefix_space": False, "added_tokens_decoder": tokens}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    assistant = bpe.token_to_id("assistant")
    assert assistant is not None, "every word of the training text is a token"
    return int(assistant)


def _fill_vocabulary(file: Path) -> None:
    """Adds unused tokens up to the first special one, because transformers numbers special tokens after all others."""
    words = json.loads(file.read_bytes())
    unused = {f"<unused {number}>": number for number in range(len(words), FIRST_SPECIAL_ID)}
    file.write_text(json.dumps(words | unused, ensure_ascii=False))


def main() -> None:
    """Writes a checkpoint."""
    parser = argparse.ArgumentParser(prog="python -m gpu.checkpoint", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--size", choices=SIZES, default="1b7")
    parser.add_argument("--base", action="store_true", help="a checkpoint that clones voices (default: CustomVoice)")
    parser.add_argument("--configs", action="store_true", help="write all files except the weights")
    args = parser.parse_args()
    write_configs(args.directory, args.size, base=args.base)
    if not args.configs:
        write_weights(args.directory)


if __name__ == "__main__":
    main()
