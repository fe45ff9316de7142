"""Loads modules from a checkpoint directory in the official layout: safetensors only, nothing is downloaded.

Every tensor of a module must be in the file with the module's shape, and the file must have no other tensor under the
module's prefix. Errors name the tensor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path
from typing import TypeVar

import msgspec
import torch
from msgspec import structs
from safetensors import SafetensorError, safe_open
from torch import nn

from syrinx_stages.model.codec.decoder import CodecDecoder
from syrinx_stages.model.codec.encoder import CodecEncoder, load_codec_encoder
from syrinx_stages.model.config import CheckpointError, decode_file, read_model_config, read_speech_tokenizer_config
from syrinx_stages.model.describe import checkpoint_directory
from syrinx_stages.model.layers import checkpoint_tensors
from syrinx_stages.model.speaker_encoder import SpeakerEncoder
from syrinx_stages.model.talker import Talker
from syrinx_stages.model.tokenizer import Tokenizer, load_tokenizer

_Module = TypeVar("_Module", bound=nn.Module)

_LAYERS = "model.layers"
_PREDICTOR_LAYERS = "code_predictor.model.layers"


class Checkpoint:
    """A checkpoint with validated configuration files; each stage loads only the modules it runs."""

    def __init__(self, name: str, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> None:
        """`name` is a directory or `bundled`. Raises `CheckpointError` naming file and field."""
        self.directory = checkpoint_directory(name)
        self.device = torch.device(device)
        self.dtype = dtype
        self.config = read_model_config(self.directory)
        self.speech_tokenizer = read_speech_tokenizer_config(self.directory)
        codes, entries = self.config.talker_config.codebook_size, self.speech_tokenizer.decoder_config.codebook_size
        if codes != entries:
            path = self.directory / "speech_tokenizer" / "config.json"
            raise CheckpointError(f"{path}: decoder_config.codebook_size: {entries}, but the talker has {codes} codes")

    def as_float32(self) -> Checkpoint:
        other = copy(self)
        other.dtype = torch.float32
        return other

    def load_tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.directory, self.config)

    def load_talker(self, *skip: str) -> Talker:
        """Talker and code predictor, without the submodules named in `skip`, which then need no memory."""
        config = self.config.talker_config
        predictor = config.code_predictor_config
        if _LAYERS in skip:
            config = structs.replace(config, num_hidden_layers=0)
        if _PREDICTOR_LAYERS in skip:
            config = structs.replace(config, code_predictor_config=structs.replace(predictor, num_hidden_layers=0))

        def make() -> Talker:
            talker = Talker(config)
            for name in set(skip) - {_LAYERS, _PREDICTOR_LAYERS}:
                parent, _, child = name.rpartition(".")
                setattr(talker.get_submodule(parent), child, nn.Identity())
            return talker

        return self._load(make, self.directory, "talker", skip)

    def load_codec_decoder(self) -> CodecDecoder:
        decoder = self.speech_tokenizer.decoder_config
        return self._load(lambda: CodecDecoder(decoder), self.directory / "speech_tokenizer", "decoder")

    def load_speaker_encoder(self) -> SpeakerEncoder:
        """The speaker encoder, which only Base checkpoints have: reference audio to a speaker embedding."""
        return self._load(lambda: SpeakerEncoder(self.config.speaker_encoder_config), self.directory, "speaker_encoder")

    def load_codec_encoder(self) -> CodecEncoder:
        """The codec's encoder: reference audio to codes. Raises ImportError if transformers is not installed."""
        directory = self.directory / "speech_tokenizer"
        return load_codec_encoder(directory, self.speech_tokenizer, self.device, self.dtype)

    def _load(self, make: Callable[[], _Module], directory: Path, prefix: str, skip: Sequence[str] = ()) -> _Module:
        before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        try:
            with self.device:
                module = make()
        finally:
            torch.set_default_dtype(before)
        load_module(module, directory, prefix, skip)
        return module.eval().requires_grad_(False)


def load_module(module: nn.Module, directory: Path, prefix: str, skip: Sequence[str] = ()) -> None:
    """Copies the tensors `prefix.*` of `directory` into a module, cast to its dtype.

    skip: submodules that the module lacks; their tensors `prefix.NAME.*` are ignored.
    Raises `CheckpointError` for a missing or unexpected tensor, a wrong shape or an unreadable file.
    """
    targets = dict(checkpoint_tensors(module, prefix))
    skipped = tuple(f"{prefix}.{name}." for name in skip)
    files = {
        name: path
        for name, path in _tensor_files(directory).items()
        if name.startswith(f"{prefix}.") and not name.startswith(skipped)
    }
    if missing := targets.keys() - files.keys():
        shape = targets[first := min(missing)].shape
        raise CheckpointError(f"{directory}: tensor {first} {list(shape)} is missing ({len(missing)} in total)")
    if unexpected := files.keys() - targets.keys():
        first = min(unexpected)
        raise CheckpointError(f"{files[first]}: tensor {first} is unexpected ({len(unexpected)} in total)")
    by_file = defaultdict(list)
    for name, path in files.items():
        by_file[path].append(name)
    for path, names in by_file.items():
        try:
            with safe_open(path, framework="pt") as tensors:
                for name in names:
                    found, expected = tuple(tensors.get_slice(name).get_shape()), targets[name].shape
                    if found != expected:
                        raise CheckpointError(f"{path}: tensor {name} is {list(found)}, expected {list(expected)}")
                    with torch.no_grad():
                        targets[name].target.copy_(tensors.get_tensor(name))
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: {error}") from None


def _tensor_files(directory: Path) -> dict[str, Path]:
    """The file of each tensor, by tensor name: `model.safetensors`, or what the index of a sharded checkpoint says."""
    index = directory / "model.safetensors.index.json"
    if index.exists():
        weight_map = decode_file(index, _Index).weight_map
        for name, file in weight_map.items():
            if Path(file).name != file or not file.endswith(".safetensors"):
                message = f"weight_map.{name}: {file!r} is not a .safetensors file beside the index"
                raise CheckpointError(f"{index}: {message}")
        return {name: directory / file for name, file in weight_map.items()}
    path = directory / "model.safetensors"
    try:
        with safe_open(path, framework="pt") as tensors:
            return dict.fromkeys(tensors.keys(), path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: {error}") from None


class _Index(msgspec.Struct):
    """The field of a shard index that is needed."""

    weight_map: dict[str, str]
